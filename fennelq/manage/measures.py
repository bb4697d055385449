"""The metrics of what is in Redis: the page of `fennelq exporter`.

However many scrapes there are, Redis is looked at once per interval: the watch does so for queues and executors, and
schedules and groups of dead jobs are read once for each of its snapshots.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from fennelq import __version__, clock, log
from fennelq.broker.keys import LANES, queue_keys
from fennelq.broker.trouble import classify, lacks_permission
from fennelq.errors import BrokerUnavailable, FennelqError
from fennelq.executors import takes_from
from fennelq.manage.executors.info import ExecutorInfo
from fennelq.manage.history.asking import behind
from fennelq.manage.queues.info import QueueInfo
from fennelq.manage.schedules import ScheduleInfo
from fennelq.manage.watch import Snapshot, Watch
from fennelq.model import metrics
from fennelq.model.exposition import Page

if TYPE_CHECKING:
    from fennelq.app import App

_logger = log.get("fennelq.exporter")

PATIENCE: Final = 0.8
"""Seconds that a scrape waits for Redis, so that a page says within a second that Redis is away."""
_QUIET_FOR: Final = 60.0
_ENDED: Final = {"success": "succeeded", "dead": "died", "cancelled": "cancelled"}


class Seen(NamedTuple):
    """What a look has found."""

    snapshot: Snapshot
    schedules: Sequence[ScheduleInfo] | None
    """None when the user of Redis may not read them."""
    groups: int | None
    """The number of groups of dead jobs; None when the user of Redis may not read some queue."""
    behind: int | None
    """The number of reports of ended jobs that wait for a recorder; None when those of a queue cannot be read."""


class Measures:
    """Makes the page of an app: `async with Watch(app) as watch, Measures(app, watch) as measures`."""

    def __init__(self, app: App, watch: Watch) -> None:
        self._app, self._watch = app, watch
        self._seen: Seen | None = None
        self._looking: asyncio.Task[Seen] | None = None
        self._logged: dict[str, float] = {}

    async def __aenter__(self) -> Self:
        """Makes pages until the end of the block."""
        return self

    async def __aexit__(self, *raised: object) -> None:
        """End the look that is under way."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])

    async def page(self) -> Page:
        """The metrics; without Redis only that it is away. It answers within a second in either case."""
        page = Page()
        seen = await self._look_soon()
        page.add(metrics.UP, int(seen is not None))
        if seen is not None:
            self._warn_of_unreadable(seen)
            show(page, seen)
        page.add(metrics.BUILD, 1, __version__)
        return page

    async def up(self) -> bool:
        """Whether Redis replies, by the look that a page of this moment would show. It answers within a second too."""
        return await self._look_soon() is not None

    async def _look_soon(self) -> Seen | None:
        # A look that takes longer goes on, and the next scrape waits for the same one.
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), name="exporter")
        done, _ = await asyncio.wait([self._looking], timeout=PATIENCE)
        if not done:
            self._warn("the look takes too long", f"Redis at {self._app.address.shown} has not replied yet")
            return None
        try:
            return self._looking.result()
        except (FennelqError, OSError) as error:
            self._warn("the look has failed", str(error))
            return None
        except Exception as error:
            self._warn("the look has failed", f"{classify(error).value}: {error}")
            return None

    async def _look(self) -> Seen:
        snapshot = await self._watch.fresh()
        if self._seen is None or self._seen.snapshot is not snapshot:
            groups, behind = await self._groups(snapshot), await self._behind(snapshot)
            self._seen = Seen(snapshot, await self._schedules(), groups, behind)
        return self._seen

    async def _schedules(self) -> Sequence[ScheduleInfo] | None:
        try:
            return await self._app.schedules.list()
        except BrokerUnavailable as error:
            if not lacks_permission(error):
                raise
            return None

    async def _groups(self, snapshot: Snapshot) -> int | None:
        if not any(info.dead for info in snapshot.queues.values()):
            return None if any(info.unknown for info in snapshot.queues.values()) else 0
        try:
            return len(await self._app.dlq.groups())
        except BrokerUnavailable as error:
            if not lacks_permission(error):
                raise
            return None

    async def _behind(self, snapshot: Snapshot) -> int | None:
        keys = [queue_keys(self._app.namespace, name) for name in snapshot.queues]
        return await self._app.client.converse(behind(keys)) if keys else 0

    def _warn_of_unreadable(self, seen: Seen) -> None:
        for name, info in seen.snapshot.queues.items():
            if info.damage:
                self._warn(f"queue {name}", info.damage)
        if seen.schedules is None:
            self._warn("schedules", "the user of Redis may not read them")

    def _warn(self, what: str, why: str) -> None:
        """Log it, at most once a minute."""
        now = clock.monotonic()
        if self._logged.get(what, -_QUIET_FOR) + _QUIET_FOR <= now:
            self._logged[what] = now
            _logger.warning("not_exported", what=what, why=why)


def show(page: Page, seen: Seen) -> None:
    """Add what a look has found to a page. A queue whose jobs cannot be counted is left out."""
    queues = [info for info in seen.snapshot.queues.values() if not info.damage]
    for info in queues:
        _show_jobs(page, info)
        _show_ages(page, info, info.at or datetime.now().astimezone())
        paused = info.paused is not None and info.paused.consuming
        page.add(metrics.PAUSED, int(paused), info.name)
        if seen.snapshot.executors_known:
            page.add(metrics.SERVED, _serving(seen.snapshot.executors, info.name), info.name)
        page.add_each(metrics.QUEUE_ENDED, [_counted(info, _ENDED[one]) for one in metrics.ENDED], info.name)
        page.add_each(metrics.QUEUE_EVENTS, [_counted(info, one) for one in metrics.EVENTS], info.name)
    for schedule in seen.schedules or ():
        _show_schedule(page, schedule)
    if seen.groups is not None:
        page.add(metrics.DEAD_GROUPS, seen.groups)
    if seen.behind is not None:
        page.add(metrics.HISTORY_BEHIND, seen.behind)
    page.add(metrics.SURVEY_TIME, seen.snapshot.seconds)


def _show_jobs(page: Page, info: QueueInfo) -> None:
    blocked = 0  # no job of this version waits for other jobs
    jobs = (info.waiting, info.in_lines, blocked, info.running, info.scheduled, info.retry, info.dead)
    page.add_each(metrics.QUEUE_JOBS, jobs, info.name)
    for priority in dict.fromkeys((*LANES, *info.lanes)):  # jobs in quarantine have no priority
        page.add(metrics.QUEUE_WAITING, info.lanes.get(priority, 0), info.name, priority)


def _show_ages(page: Page, info: QueueInfo, now: datetime) -> None:
    page.add(metrics.OLDEST_WAITING, _seconds(info.waiting_since, now), info.name)
    page.add(metrics.OVERDUE, _seconds(info.next_due, now), info.name)


def _show_schedule(page: Page, info: ScheduleInfo) -> None:
    for metric, moment in ((metrics.NEXT_RUN, info.next_run), (metrics.LAST_RUN, info.last_run)):
        if moment is not None:
            page.add(metric, moment.timestamp(), info.name)
    page.add(metrics.SCHEDULE_ERRORS, info.error_count, info.name)


def _seconds(since: datetime | None, now: datetime) -> float:
    return 0.0 if since is None else max(0.0, (now - since).total_seconds())


def _counted(info: QueueInfo, name: str) -> int:
    # A person may have written a negative number.
    return max(0, info.ended.get(name, 0))


def _serving(executors: Mapping[str, ExecutorInfo], queue: str) -> int:
    return sum(one.alive and takes_from(one.facts, queue) for one in executors.values())
