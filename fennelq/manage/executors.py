"""The executors of an app, as they have reported themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fennelq.broker.talk import Talk
from fennelq.reasons import executors_of


class ExecutorInfo(NamedTuple):
    """An executor, and the facts that it has reported."""

    name: str
    state: str
    """`works`, `silent`, or how its process ended."""
    facts: Mapping[str, Any]
    """All reported facts, also those of a later version of fennelq."""


def executors(app: str) -> Talk[list[ExecutorInfo]]:
    """The executors of an app, by name; an empty list when the user of Redis may not read them."""
    known = yield from executors_of(app)
    if known is None:
        return []
    return [ExecutorInfo(name, known.state(name), facts) for name, facts in known.facts.items()]
