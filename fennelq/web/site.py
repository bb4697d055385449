"""What the pages of one app share."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fennelq import log
from fennelq.manage.audit import AwaitedOperation
from fennelq.web.looks import Looks

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.manage.executors.profile import ExecutorProfile
    from fennelq.web.visit import Visit

_logger = log.get("fennelq.web")

_REMEMBERED: Final = 50
_PROFILES: Final = 5
_LARGEST: Final = 200_000
"""Characters of a page that is remembered."""


class Remembered(NamedTuple):
    """A page as it was shown last."""

    main: str
    at: datetime


class Memory:
    """The pages that were shown last: while Redis is away, they are shown again."""

    def __init__(self) -> None:
        self._pages: OrderedDict[tuple[str, frozenset[str]], Remembered] = OrderedDict()

    def keep(self, address: str, may: frozenset[str], main: str, at: datetime) -> None:
        """Remember a page."""
        if len(main) > _LARGEST:
            return
        self._pages[address, may] = Remembered(main, at)
        self._pages.move_to_end((address, may))
        while len(self._pages) > _REMEMBERED:
            self._pages.popitem(last=False)

    def of(self, address: str, may: frozenset[str]) -> Remembered | None:
        """The page as a user with these rights has seen it last."""
        return self._pages.get((address, may))


class Profiles:
    """The profiles that this process has asked for last, by executor."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, ExecutorProfile] = OrderedDict()

    def keep(self, executor: str, profile: ExecutorProfile) -> None:
        """Keep it, instead of the one before."""
        self._known.pop(executor, None)
        self._known[executor] = profile
        while len(self._known) > _PROFILES:
            self._known.popitem(last=False)

    def of(self, executor: str) -> ExecutorProfile | None:
        """The latest one of an executor."""
        return self._known.get(executor)


class Switch(NamedTuple):
    """An app that can be shown instead."""

    name: str
    to: str
    """The way from the first page of this one to its first page."""


@dataclass
class Site:
    """An app, and what its pages have in common."""

    app: App
    looks: Looks
    switches: Callable[[], Sequence[Switch]] = tuple
    """The apps between which a user can switch."""
    memory: Memory = field(default_factory=Memory)
    profiles: Profiles = field(default_factory=Profiles)
    tasks: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]])
    """Work that goes on after its page was closed."""

    def begin(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Do this, whatever becomes of the request that asked for it."""
        task = asyncio.create_task(work, name=name)
        self.tasks.add(task)
        task.add_done_callback(self._end)

    def recorded(
        self, visit: Visit, what: str, *, target: str = "", filter: str = "", planned: int | None = None
    ) -> AwaitedOperation:
        """Around work that changes something: a line of the record of operations before it, and one after it."""
        return self.app.audit.operation(
            what, target=target, filter=filter, planned=planned, who=visit.who, via=visit.via
        )

    async def close(self) -> None:
        """End the looking and the work that is under way."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.looks.close()

    def _end(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.error("work_failed", work=task.get_name(), error=repr(error))
