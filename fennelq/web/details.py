"""What a look does not have: the causes of death, the jobs that run, and the schedules. They cost a command or more for
each queue or schedule, so they are read in rounds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from fennelq import clock
from fennelq.broker.talk import Talk, together
from fennelq.broker.trouble import ReplyError
from fennelq.errors import BrokerUnavailable, UnreadableSchedule
from fennelq.manage.dead.groups import merged
from fennelq.manage.dead.letter import Group
from fennelq.manage.limits import LimitInfo, some_limits
from fennelq.manage.overview import DeadGroups, Overview, Running, dead_groups, running_jobs, why_unread
from fennelq.manage.running import first_of
from fennelq.manage.schedules import ScheduleInfo, names_of_schedules, some_schedules
from fennelq.manage.watch import Snapshot
from fennelq.web import words
from fennelq.web.rounds import Rounds

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.manage.queues.info import QueueInfo

T = TypeVar("T")

MOST_RUNNING: Final = 500
"""Running jobs that are listed."""
_DEAD_AT_ONCE: Final = 3
_RUNNING_AT_ONCE: Final = 3
_SCHEDULES_AT_ONCE: Final = 2
"""Each costs some commands, and a page sends at most 20 besides the surveys."""
_LIMITS_AT_ONCE: Final = 4
_PATIENCE: Final = 0.5
"""Seconds for which a page waits for queues that are not read yet."""
_UNREAD: Final = "not read yet, because this process has just begun to look"


class _Missing(NamedTuple):
    """A schedule that was removed while it was read."""


class Details:
    """The details of an app, as far as this process has read them."""

    def __init__(self, app: App) -> None:
        self._app, self._snapshot = app, Snapshot(queues={}, executors={}, rates={}, seconds=0.0)
        self._dead = Rounds(_DEAD_AT_ONCE, self._of_queues(dead_groups))
        self._running = Rounds(_RUNNING_AT_ONCE, self._of_queues(_running))
        self._schedules = Rounds(_SCHEDULES_AT_ONCE, self._find_schedules)
        self._limits = Rounds(_LIMITS_AT_ONCE, self._find_limits)

    @property
    def version(self) -> Hashable:
        """It changes when more was read."""
        return self._dead.version, self._running.version, self._schedules.version

    async def overview(self, snapshot: Snapshot, look: Hashable) -> Overview:
        """The groups of dead jobs and the schedules, of this look."""
        groups, unread = await self.groups(snapshot)
        schedules, missing = await self.schedules(look)
        return Overview(snapshot=snapshot, groups=groups, schedules=schedules, unread={**unread, **missing})

    async def groups(self, snapshot: Snapshot) -> DeadGroups:
        """The dead jobs by cause, the largest group first."""
        self._snapshot = snapshot
        unread = await self._read_dead(snapshot)
        every = self._dead.values.values()
        return DeadGroups(
            merged(group for one in every for group in one.groups),
            {what: why for one in every for what, why in one.unread.items()}
            | _unread("dead jobs", "queue", unread),
        )

    async def group(self, snapshot: Snapshot, fingerprint: str) -> tuple[Group | None, int]:
        """A group, and how many queues are not read yet, in which it may be. It waits a moment for these."""
        self._snapshot, deadline = snapshot, clock.monotonic() + _PATIENCE
        while True:
            unread = await self._read_dead(snapshot)
            every = merged(group for one in self._dead.values.values() for group in one.groups)
            found = next((one for one in every if one.fingerprint == fingerprint), None)
            if found or not unread or clock.monotonic() > deadline:
                return found, unread

    def queues_of_group(self, fingerprint: str) -> Mapping[str, int]:
        """The queues that have dead jobs of a group, and how many: the queue of the newest death first."""
        found = [
            (group.newest, name, group.jobs)
            for name, one in self._dead.values.items()
            for group in one.groups
            if group.fingerprint == fingerprint
        ]
        return {name: jobs for _, name, jobs in sorted(found, reverse=True)}

    async def _read_dead(self, snapshot: Snapshot) -> int:
        having = [info for info in snapshot.queues.values() if info.dead]
        return await self._dead.read(
            {info.name: (info.dead, info.newest_death, info.ended.get("died")) for info in having}
        )

    async def running(self, snapshot: Snapshot, look: Hashable) -> Running:
        """The jobs that run longest."""
        self._snapshot = snapshot
        unread = await self._running.read(
            {info.name: look for info in snapshot.queues.values() if info.running}
        )
        every = self._running.values.values()
        return Running(
            first_of([job for one in every for job in one.jobs], MOST_RUNNING),
            {what: why for one in every for what, why in one.unread.items()}
            | _unread("running jobs", "queue", unread),
        )

    async def schedules(self, look: Hashable) -> tuple[Sequence[ScheduleInfo], dict[str, str]]:
        """All schedules by name, and why some are missing."""
        try:
            names = await self._app.client.converse(names_of_schedules(self._app))
            unread = _unread("", "schedule", await self._schedules.read(dict.fromkeys(names, look)))
        except (ReplyError, BrokerUnavailable) as error:
            return [], {"schedules": why_unread(error)}
        known = self._schedules.values
        every = [known[name] for name in names if name in known]
        wrong = {f"schedule {one.name}": one.reason for one in every if isinstance(one, UnreadableSchedule)}
        return [one for one in every if isinstance(one, ScheduleInfo)], wrong | unread

    async def limits(self, snapshot: Snapshot, look: Hashable) -> tuple[Sequence[LimitInfo], int]:
        """The limits of all queues, and how many queues are not read yet."""
        unread = await self._limits.read(dict.fromkeys(snapshot.queues, look))
        return [one for some in self._limits.values.values() for one in some], unread

    async def close(self) -> None:
        """End the reading."""
        for one in (self._dead, self._running, self._schedules, self._limits):
            await one.close()

    def _of_queues(
        self, find: Callable[[App, Snapshot], Talk[T]]
    ) -> Callable[[Sequence[str]], Awaitable[list[T]]]:
        async def found(names: Sequence[str]) -> list[T]:
            queues = [self._snapshot.queues.get(name) for name in names]
            return await self._app.client.converse(
                together(find(self._app, _only(self._snapshot, info)) for info in queues)
            )

        return found

    async def _find_schedules(
        self, names: Sequence[str]
    ) -> list[ScheduleInfo | UnreadableSchedule | _Missing]:
        found = await self._app.client.converse(some_schedules(self._app, names))
        return [found.get(name, _Missing()) for name in names]

    async def _find_limits(self, queues: Sequence[str]) -> list[list[LimitInfo]]:
        return await self._app.client.converse(some_limits(self._app, queues))


def _running(app: App, snapshot: Snapshot) -> Talk[Running]:
    return running_jobs(app, snapshot, MOST_RUNNING)


def _only(snapshot: Snapshot, info: QueueInfo | None) -> Snapshot:
    """A snapshot with one of its queues."""
    return replace(snapshot, queues={info.name: info} if info else {})


def _unread(what: str, of: str, number: int) -> dict[str, str]:
    """Why the page does not show all of them."""
    where = words.counted(number, of)
    return {f"{what} of {where}" if what else where: _UNREAD} if number else {}
