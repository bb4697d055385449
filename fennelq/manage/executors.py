"""The executors of an app, as they have reported themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fennelq.broker.talk import Talk
from fennelq.manage.offered import Awaiting, Blocking, Family, Operation
from fennelq.reasons import executors_of


class ExecutorInfo(NamedTuple):
    """An executor, and the facts that it has reported."""

    name: str
    state: str
    """`works`, `silent`, or how its process ended."""
    facts: Mapping[str, Any]
    """All reported facts, also those of a later version of fennelq."""


# Defined here, because inside the class `list` is a method.
Infos = list[ExecutorInfo]


class ExecutorTalks(Family):
    """The operations on executors."""

    _attribute = "executors"

    @Operation
    def list(self) -> Talk[Infos]:
        """The executors that have reported themselves within the last hour, by name; an empty list when the user of
        Redis may not read them."""
        known = yield from executors_of(self._app.namespace)
        if known is None:
            return []
        return [ExecutorInfo(name, known.state(name), facts) for name, facts in known.facts.items()]


class Executors(ExecutorTalks, Awaiting):
    """The executors of an app: the processes that run its jobs."""


class BlockingExecutors(ExecutorTalks, Blocking):
    """The executors of an app, for code without an event loop: `app.sync.executors`."""
