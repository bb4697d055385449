"""The executors of an app, for people to look at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fennelq.broker.talk import Talk
from fennelq.reasons import executors_of


class ExecutorInfo(NamedTuple):
    """An executor, and what it has reported."""

    name: str
    state: str
    """`works`, `silent`, or how its process ended."""
    facts: Mapping[str, Any]
    """As it reported them; what a later version reports is there too."""


def executors(app: str) -> Talk[list[ExecutorInfo]]:
    """The executors of an app, by name; none where the user of Redis may not read them."""
    known = yield from executors_of(app)
    if known is None:
        return []
    return [ExecutorInfo(name, known.state(name), facts) for name, facts in known.facts.items()]
