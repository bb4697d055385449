"""The watch: looks at all queues and executors for everything in this process that shows them, such as the pages of a
dashboard, their live updates and a scrape of metrics.

However many readers there are, it looks once per interval, and each of them gets the same snapshot. It looks as long
as a reader follows it, and for some seconds after the last one asked. The interval grows with the time that a look
takes, so that looking keeps the server busy for at most a fiftieth of the time, whatever the number of queues.
"""

from __future__ import annotations

import asyncio
from asyncio import sleep
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from fennelq import clock
from fennelq.broker.talk import Talk
from fennelq.manage.executors.executors import executor_infos
from fennelq.manage.executors.info import ExecutorInfo
from fennelq.manage.queues.info import QueueInfo
from fennelq.manage.queues.queues import infos_of
from fennelq.waiting.reasons import executors_of

if TYPE_CHECKING:
    from fennelq.app import App

LINGER: Final = 10.0
"""Seconds for which it goes on after the last reader has asked: a page that is loaded again finds a recent snapshot,
and rates."""
SHORTEST: Final = 1.0
"""Seconds between two looks, at least."""
LONGEST: Final = 60.0
"""Seconds between two looks, at most: a look that takes longer than a second has mostly waited for Redis."""
LATE: Final = 0.5
"""Seconds that a look may take before the snapshot before it counts as old, at least."""
SHARE: Final = 50
"""A look is followed by a pause that is so many times as long."""

Rates = Mapping[str, float]
"""Counter of a queue → how often per second it was counted between the snapshot before and this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What one look has found."""

    queues: Mapping[str, QueueInfo]
    """By name, sorted."""
    executors: Mapping[str, ExecutorInfo]
    """By name, sorted; also those that have ended within the last hour."""
    rates: Mapping[str, Rates]
    """By queue. A queue has no rates in the first snapshot, and while it cannot be counted."""
    seconds: float
    """How long the look took."""
    taken: float = field(default=0.0, compare=False)
    """When the look ended, by the monotonic clock of this process."""
    executors_known: bool = True
    """False when the user of Redis may not read the facts of the executors; then there are none here."""

    @property
    def at(self) -> datetime | None:
        """The moment of the last queue that was looked at, by the server's clock; None when none could be counted."""
        return max((info.at for info in self.queues.values() if info.at), default=None)

    @property
    def interval(self) -> float:
        """Seconds until the next look."""
        return min(LONGEST, max(SHORTEST, SHARE * self.seconds))

    @property
    def overdue(self) -> bool:
        """Whether a newer one should be there by now: the look after it takes too long."""
        return clock.monotonic() - self.taken > self.interval + max(LATE, 3 * self.seconds)


class Look(NamedTuple):
    """What a look has found, as Redis has it."""

    queues: list[QueueInfo]
    executors: list[ExecutorInfo]
    executors_known: bool = True


class Watch:
    """Looks at an app on behalf of all readers on one event loop: `async with Watch(app) as watch`."""

    def __init__(self, app: App, *, linger: float | None = None) -> None:
        """`linger` is for how many seconds it goes on after the last reader has asked: 10 by default."""
        self._app, self._linger = app, LINGER if linger is None else linger
        self._latest: Snapshot | None = None
        """None before the first look, after a look that has failed, and while nothing looks."""
        self._turn: asyncio.Future[Snapshot] | None = None
        """The end of the look that is under way, or comes next."""
        self._looking: asyncio.Task[None] | None = None
        self._followers = self._waiting = 0
        """Readers that follow it; and those that wait for the end of a look."""
        self._asked_at = 0.0

    async def snapshot(self) -> Snapshot:
        """The latest snapshot. It waits for the first one, and raises its error when the look fails."""
        self._asked_at = clock.monotonic()
        turn = self._next_turn()
        return await self._end_of(turn) if self._latest is None else self._latest

    async def fresh(self) -> Snapshot:
        """As `snapshot`, but while a look takes too long, because Redis does not reply, it waits for the end of that
        look."""
        self._asked_at = clock.monotonic()
        turn, latest = self._next_turn(), self._latest
        return await self._end_of(turn) if latest is None or latest.overdue else latest

    async def follow(self) -> AsyncGenerator[Snapshot]:
        """Yields the latest snapshot, and then each new one; a slow reader misses some. It raises the error of a look
        that fails."""
        self._followers += 1
        try:
            snapshot = await self.snapshot()
            while True:
                yield snapshot
                snapshot = await self._other_than(snapshot)
        finally:
            self._followers -= 1
            self._asked_at = clock.monotonic()

    async def __aenter__(self) -> Self:
        """The watch. It looks when its first reader asks."""
        return self

    async def __aexit__(self, *raised: object) -> None:
        """End the looking. Readers that still wait are cancelled."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        if self._turn is not None:
            self._turn.cancel()
        self._looking = self._turn = self._latest = None

    async def _other_than(self, seen: Snapshot) -> Snapshot:
        turn = self._next_turn()
        latest = self._latest
        return latest if latest is not None and latest is not seen else await self._end_of(turn)

    async def _end_of(self, turn: asyncio.Future[Snapshot]) -> Snapshot:
        self._waiting += 1
        try:
            # The end of a look is shared: a reader that is cancelled must not cancel it for the others.
            return await asyncio.shield(turn)
        finally:
            self._waiting -= 1

    def _next_turn(self) -> asyncio.Future[Snapshot]:
        """The end of the next look; starts looking when nothing looks."""
        if self._turn is None:
            self._turn = asyncio.get_running_loop().create_future()
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_while_asked(), name="watch")
        return self._turn

    async def _look_while_asked(self) -> None:
        while self._followers or self._waiting or clock.monotonic() - self._asked_at < self._linger:
            pause = await self._look()
            await sleep(pause)
        self._latest = self._looking = None

    async def _look(self) -> float:
        """One look, for all readers that wait. Returns the pause after it."""
        began = clock.monotonic()
        try:
            seen = await self._app.client.converse(look_at(self._app))
            self._latest = _snapshot(self._latest, seen, clock.monotonic() - began)
        except Exception as error:
            self._latest = None
            self._end_turn(error)
            return SHORTEST
        self._end_turn(self._latest)
        return self._latest.interval

    def _end_turn(self, end: Snapshot | Exception) -> None:
        turn, self._turn = self._turn, None
        if turn is None:
            return
        if isinstance(end, Exception):
            turn.set_exception(end)
            turn.exception()  # without a reader, asyncio would log that this was never retrieved
        else:
            turn.set_result(end)


def look_at(app: App) -> Talk[Look]:
    """One look at every queue and every executor."""
    executors = yield from executors_of(app.namespace)
    return Look((yield from infos_of(app, executors)), executor_infos(executors), executors is not None)


def _snapshot(before: Snapshot | None, seen: Look, seconds: float) -> Snapshot:
    queues = {info.name: info for info in seen.queues}
    known: Mapping[str, QueueInfo] = before.queues if before else {}
    rates = {name: rates_of(known[name], info) for name, info in queues.items() if name in known}
    return Snapshot(
        queues=queues,
        executors={executor.name: executor for executor in seen.executors},
        executors_known=seen.executors_known,
        rates={name: found for name, found in rates.items() if found is not None},
        seconds=seconds,
        taken=clock.monotonic(),
    )


def rates_of(before: QueueInfo, after: QueueInfo) -> Rates | None:
    """How often per second each counter was counted between two moments; None when that is not known. A counter that is
    lower than before has begun anew, because the keys of the queue were deleted."""
    if before.at is None or after.at is None or after.at <= before.at:
        return None
    seconds = (after.at - before.at).total_seconds()
    counted = {name: count - before.ended.get(name, 0) for name, count in after.ended.items()}
    return {name: (more if more >= 0 else after.ended[name]) / seconds for name, more in counted.items()}
