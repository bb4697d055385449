"""What is known of an app, looked up once for all who read it at a time.

The watch counts queues and executors. Everything else that several pages show, such as groups of dead jobs, is looked
up at most once per look of the watch, and only when a page asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

from fennelq import clock
from fennelq.errors import BrokerUnavailable, ConfigurationError
from fennelq.manage.overview import DeadGroups, Overview
from fennelq.manage.server import ServerInfo, server
from fennelq.manage.watch import Snapshot, Watch, look_at
from fennelq.web.details import Details
from fennelq.web.series import Series
from fennelq.worker.processes.preflight import check

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.manage.dead.letter import Group
    from fennelq.manage.executors.info import ExecutorInfo
    from fennelq.manage.limits import LimitInfo
    from fennelq.manage.operation_record import OperationInfo
    from fennelq.manage.queues.info import QueueInfo
    from fennelq.manage.running import RunningJob
    from fennelq.manage.schedules import ScheduleInfo
    from fennelq.manage.times import TaskTimes
    from fennelq.model.job import JobInfo

T = TypeVar("T")

PATIENCE: Final = 0.8
"""Seconds that a page waits for Redis. Then it shows what was known before."""
_WHILE_AWAY: Final = 0.2
"""The same while Redis is away: the next page should not wait as long as the one before it."""
_OLD: Final = 3
"""A look that is so many intervals old shows that Redis does not answer."""
_SERVER_FOR: Final = 30.0
_TIMES_FOR: Final = 20.0
_CHECKED_FOR: Final = 30.0


class Away(Exception):
    """Redis does not answer."""

    def __init__(self, since: datetime, why: str) -> None:
        super().__init__(why)
        self.since, self.why = since, why


class Kept:
    """What changes slowly, or costs a command per queue: it is looked up once for several looks."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, asyncio.Task[Any]]] = {}

    async def get(self, what: str, seconds: float, find: Callable[[], Awaitable[T]]) -> T:
        """The value, at most so many seconds old."""
        at, task = self._known.get(what, (0.0, None))
        if task is None or clock.monotonic() - at >= seconds or (task.done() and _failed(task)):
            task = asyncio.create_task(_awaited(find), name=f"look up {what}")
            task.add_done_callback(_retrieve)
            self._known[what] = clock.monotonic(), task
        value: T = await asyncio.shield(task)
        return value


class Look:
    """What one look of the watch has found, and what pages have looked up since."""

    def __init__(self, app: App, snapshot: Snapshot, kept: Kept, series: Series, details: Details) -> None:
        self.app, self.snapshot, self._kept, self.series = app, snapshot, kept, series
        self._details = details
        self._began = clock.monotonic()
        self._known: dict[str, asyncio.Task[Any]] = {}
        self.pages: dict[tuple[object, ...], str] = {}
        """The pages that were rendered from it and nothing else."""

    @property
    def queues(self) -> Mapping[str, QueueInfo]:
        """The queues by name."""
        return self.snapshot.queues

    @property
    def executors(self) -> Mapping[str, ExecutorInfo]:
        """The executors by name."""
        return self.snapshot.executors

    @property
    def age(self) -> float:
        """Seconds since the look."""
        return clock.monotonic() - self._began

    @property
    def at(self) -> datetime:
        """The moment of the look, by the server's clock."""
        return self.snapshot.at or datetime.now(UTC)

    @property
    def now(self) -> datetime:
        """This moment, by the server's clock."""
        return self.at + timedelta(seconds=self.age)

    async def overview(self) -> Overview:
        """The groups of dead jobs, the schedules, and what needs attention."""
        return await self._once("overview", lambda: self._details.overview(self.snapshot, self._began))

    async def groups(self) -> DeadGroups:
        """The groups of dead jobs, the largest first, as far as they are read."""
        return await self._once("groups", lambda: self._details.groups(self.snapshot))

    async def group(self, fingerprint: str) -> tuple[Group | None, int]:
        """A group, and how many queues are not read yet, in which it may be."""
        return await self._details.group(self.snapshot, fingerprint)

    def queues_of_group(self, fingerprint: str) -> Mapping[str, int]:
        """The queues that have dead jobs of a group, and how many: the queue of the newest death first."""
        return self._details.queues_of_group(fingerprint)

    async def schedules(self) -> tuple[Sequence[ScheduleInfo], Mapping[str, str]]:
        """All schedules by name, and why some are missing."""
        return await self._once("schedules", lambda: self._details.schedules(self._began))

    async def running(self) -> Sequence[RunningJob]:
        """The jobs that run longest."""
        found = await self._once("running", lambda: self._details.running(self.snapshot, self._began))
        return found.jobs

    async def next_jobs(self, info: QueueInfo, limit: int) -> NextJobs:
        """The jobs of a queue that run longest, and those that are next in each of its places."""
        return await self._once(f"next {limit} of {info.name}", lambda: _next_jobs(self.app, info, limit))

    async def problem_of_redis(self) -> tuple[bool, str]:
        """Whether a worker could use this Redis, and which server it is, or why not."""
        return await self._kept.get("redis", _CHECKED_FOR, lambda: asyncio.to_thread(_checked, self.app))

    async def operations(self) -> Sequence[OperationInfo]:
        """The operations of the last days."""
        return await self._once("operations", lambda: self.app.operations.list(50))

    async def times(self) -> Sequence[TaskTimes]:
        """The run and wait times of all tasks, of all queues at once; pages use `series` instead."""
        return await self._kept.get("times", _TIMES_FOR, self.app.times.list)

    async def limits(self) -> tuple[Sequence[LimitInfo], int]:
        """The limits of all queues, and how many queues are not read yet."""
        return await self._once("limits", lambda: self._details.limits(self.snapshot, self._began))

    async def _once(self, what: str, find: Callable[[], Awaitable[T]]) -> T:
        if what not in self._known:
            self._known[what] = asyncio.create_task(_awaited(find), name=f"look up {what}")
            self._known[what].add_done_callback(_retrieve)
        # It is shared: a reader that is cancelled must not cancel it for the others.
        return cast("T", await asyncio.shield(self._known[what]))

    async def end(self) -> None:
        """Cancel the lookups that are under way."""
        for task in self._known.values():
            task.cancel()
        await asyncio.gather(*self._known.values(), return_exceptions=True)


class NextJobs(NamedTuple):
    """The first jobs of a queue."""

    running: Sequence[RunningJob]
    places: Sequence[tuple[str, Sequence[JobInfo], int]]
    """The name of a place, its first jobs, and how many are there."""


class Looks:
    """The looks at an app. `last` is the latest one, also while Redis is away."""

    def __init__(self, app: App) -> None:
        self.app, self.last = app, cast("Look | None", None)
        self.away: Away | None = None
        self._watch, self._kept, self._series = Watch(app), Kept(), Series(app)
        self._details = Details(app)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.server: ServerInfo | None = None
        """The facts about the server, at most half a minute old; None before they are known."""
        self._server_at = -_SERVER_FOR
        self._has_changed = False

    @property
    def watch(self) -> Watch:
        """The watch on this event loop."""
        loop = asyncio.get_running_loop()
        if (
            self._loop is not loop
        ):  # the application that mounts this one may run it on another loop after a restart
            self._watch, self._loop, self.last = Watch(self.app), loop, None
            self._kept, self._series, self._details = Kept(), Series(self.app), Details(self.app)
        return self._watch

    async def now(self) -> Look:
        """The latest look. Raises Away when Redis does not answer."""
        watch = self.watch
        try:
            async with asyncio.timeout(_WHILE_AWAY if self.away else PATIENCE):
                look = self.seen(await self._after_change() if self._has_changed else await watch.snapshot())
                await self._look_at_server()
        except (BrokerUnavailable, TimeoutError) as error:
            raise self.lost(error) from error
        if look.age > _OLD * look.snapshot.interval + PATIENCE:  # the next look does not end
            self.lost(TimeoutError())
        return look

    async def _look_at_server(self) -> None:
        if clock.monotonic() - self._server_at >= _SERVER_FOR:
            self._server_at = clock.monotonic()
            self.server = await self.app.client.converse(server())

    def changed(self) -> None:
        """A page has changed something: the next page must show it, so it cannot have the latest look of the watch."""
        self._has_changed = True

    async def _after_change(self) -> Snapshot:
        """A look besides those of the watch."""
        self._has_changed, began = False, clock.monotonic()
        found = await self.app.client.converse(look_at(self.app))
        self._kept = Kept()
        return Snapshot(
            queues={info.name: info for info in found.queues},
            executors={executor.name: executor for executor in found.executors},
            rates=self.last.snapshot.rates if self.last else {},
            seconds=clock.monotonic() - began,
            executors_known=found.executors_known,
        )

    def seen(self, snapshot: Snapshot) -> Look:
        """The look with this snapshot, or a later one. A new one shows that Redis answers."""
        if self.last is None or _is_newer(snapshot, self.last.snapshot):
            self.away = None
            self.last = Look(self.app, snapshot, self._kept, self._series, self._details)
        return self.last

    def lost(self, error: BaseException) -> Away:
        """Redis does not answer, for this reason."""
        why = str(error) if isinstance(error, BrokerUnavailable) else "it does not answer in time"
        if self.away is None:
            self.away = Away(self._answered_last, why)
        return self.away

    @property
    def _answered_last(self) -> datetime:
        """When Redis has answered last; now, when it was not asked lately."""
        look = self.last
        return look.at if look and look.age <= _OLD * look.snapshot.interval + PATIENCE else datetime.now(UTC)

    async def close(self) -> None:
        """End the looking."""
        await self._watch.__aexit__()
        await self._series.close()
        await self._details.close()
        if self.last is not None:
            await self.last.end()


async def _next_jobs(app: App, info: QueueInfo, limit: int) -> NextJobs:
    queues, name = app.queues, info.name
    running = await queues.running(name, limit=limit) if info.running else []
    waiting = await queues.peek(name, limit) if info.waiting else []
    later = await queues.peek(name, limit, "scheduled") if info.scheduled else []
    retry = await queues.peek(name, limit, "retry") if info.retry else []
    places = [
        ("Next to start", waiting, info.waiting),
        ("Next due", later, info.scheduled),
        ("Next retries", retry, info.retry),
    ]
    return NextJobs(running, places)


def _checked(app: App) -> tuple[bool, str]:
    try:
        return True, check(app)
    except (ConfigurationError, BrokerUnavailable) as error:
        return False, str(error)


def _is_newer(one: Snapshot, other: Snapshot) -> bool:
    return one is not other and (one.at is None or other.at is None or one.at > other.at)


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.cancelled() or task.exception() is not None


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Without a reader, asyncio would log that the error was never retrieved."""
    if not task.cancelled():
        task.exception()


async def _awaited(find: Callable[[], Awaitable[T]]) -> T:
    return await find()
