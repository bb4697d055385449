"""Long work that this process does: a replay, or a purge of dead jobs. Its progress is on the page of operations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from fennelq.errors import FennelqError
from fennelq.manage.queues.queues import OnProgress
from fennelq.web.visit import Visit

Ended = tuple[int, str]
"""How many jobs, and the outcome in words."""


@dataclass
class Doing:
    """Work that is under way, or has ended."""

    what: str
    target: str
    who: str
    total: int
    done: int = 0
    outcome: str = ""
    state: str = "running"
    begun: datetime = field(default_factory=lambda: datetime.now(UTC))

    def progress(self, done: int) -> None:
        """So many jobs are done."""
        self.done = done

    def end(self, done: int, outcome: str, state: str = "done") -> None:
        """The work is over."""
        self.done, self.outcome, self.state = done, outcome, state


def begin(
    visit: Visit,
    what: str,
    target: str,
    total: int,
    work: Callable[[OnProgress], Awaitable[Any]],
    outcome: Callable[[Any], Ended],
) -> Doing:
    """Do this work, whatever becomes of the request, and record it."""
    doing = Doing(what, target, visit.who, total)
    visit.site.doing.appendleft(doing)
    visit.site.begin(_recorded(visit, doing, work, outcome), f"{what} {target}")
    return doing


async def _recorded(
    visit: Visit,
    doing: Doing,
    work: Callable[[OnProgress], Awaitable[Any]],
    outcome: Callable[[Any], Ended],
) -> None:
    async with visit.site.recorded(visit, doing.what, target=doing.target, planned=doing.total) as record:
        try:
            doing.end(*outcome(await work(doing.progress)))
            record.ended(doing.done, doing.outcome)
        except FennelqError as error:
            doing.end(doing.done, str(error), "failed")
            record.ended(doing.done, f"{type(error).__name__}: {error}", state="failed")
