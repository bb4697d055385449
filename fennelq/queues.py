"""The queues of an app: what waits in them, and how to empty one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from fennelq.broker.trouble import ReplyError
from fennelq.broker.verbs import admin, census, inspect, presence
from fennelq.broker.verbs.census import Reading
from fennelq.errors import BrokerUnavailable
from fennelq.executors import Executors
from fennelq.model.job import JobInfo
from fennelq.model.options import valid_name

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.broker.keys import QueueKeys
    from fennelq.client import Client

_PURGED_AT_ONCE = 100

Progress = Callable[[int], None]
"""Told how many are done, now and then."""
Place = Literal["waiting", "scheduled", "retry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInfo:
    """How much is where in a queue, at one moment."""

    name: str
    waiting: int
    """Ready to run and not yet taken by an executor."""
    running: int
    """Taken by an executor and not yet ended."""
    scheduled: int
    """Sent with a delay or for a moment, or snoozed."""
    retry: int
    """Failed, and waiting for the next try."""
    dead: int
    lanes: Mapping[str, int]
    """What waits, by the lane it waits in."""
    ended: Mapping[str, int]
    """How often jobs have ended so far: succeeded, died, were cancelled, retried, replayed …"""
    damage: str = ""
    """Which of its keys are not of their type, and what to do; such a queue is not served, and nothing is counted."""
    waiting_because: Sequence[str] = ()
    """Why jobs wait here that no worker can run, or that some of the workers cannot run, and what to do: a sentence for
    each reason."""


class _Lane(NamedTuple):
    name: str
    length: int
    reading: Reading

    @property
    def waiting(self) -> int:
        return max(0, self.length - self.reading.pending)


_COUNTERS = {
    "S": "succeeded",
    "N": "succeeded",
    "D": "died",
    "K": "cancelled",
    "R": "retried",
    "Z": "snoozed",
    "U": "not_runnable",
}
_LANE_NAMES = {"s:high": "high", "s": "normal", "s:low": "low", "iso": "quarantine"}


class Queues:
    """The queues of an app: those of its tasks, and every one that is known in Redis."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def names(self) -> list[str]:
        """Their names, sorted."""
        return sorted(await queues_of(self._app))

    async def info(self, queue: str) -> QueueInfo:
        """How much is where in one queue."""
        return await self._info(queue, await executors_of(self._app))

    async def _info(self, queue: str, executors: Executors | None) -> QueueInfo:
        client = self._app.client
        keys = client.keys(valid_name("queue", queue))
        if damage := "; ".join(filter(None, await asyncio.gather(*map(client.ask, census.damage(keys))))):
            return _damaged(queue, damage)
        lanes, stats = await asyncio.gather(_lanes(client, keys), client.ask(inspect.stats(keys)))
        scheduled, retry, dead = await asyncio.gather(
            *(client.ask(inspect.length(keys, name)) for name in ("sched", "retry", "dlq"))
        )
        waiting = {lane.name: lane.waiting for lane in lanes if lane.length}
        return QueueInfo(
            name=queue,
            waiting=sum(waiting.values()),
            running=sum(lane.reading.pending for lane in lanes),
            scheduled=scheduled,
            retry=retry,
            dead=dead,
            lanes={_LANE_NAMES[lane]: number for lane, number in waiting.items()},
            ended=_named(stats),
            waiting_because=_because(queue, waiting, scheduled + retry, executors),
        )

    async def list(self) -> list[QueueInfo]:
        """How much is where in every queue, by name."""
        names, executors = await asyncio.gather(self.names(), executors_of(self._app))
        return await asyncio.gather(*(self._info(name, executors) for name in names))

    async def peek(self, queue: str, limit: int = 10, place: Place = "waiting") -> Jobs:
        """The jobs that come next, first the one that comes first; nothing is taken."""
        client = self._app.client
        keys = client.keys(valid_name("queue", queue))
        if place == "waiting":
            found = await _waiting(client, keys, limit)
        else:
            due = census.due(keys, "sched" if place == "scheduled" else "retry", limit)
            found = [job.key for job in await client.ask(due)]
        jobs = await asyncio.gather(*(client.info(f"{queue}:{key}") for key in found))
        return [job for job in jobs if job is not None]

    async def purge(self, queue: str, progress: Progress | None = None) -> int:
        """Cancel what waits, is scheduled or waits for its next try; answers how many.

        Jobs that run go on. It ends with as many as waited in the beginning, even if more are sent meanwhile.
        """
        client = self._app.client
        keys = client.keys(valid_name("queue", queue))
        before = await self.info(queue)
        purged, most = 0, before.waiting + before.scheduled + before.retry
        while purged < most:
            page = await client.run(admin.purge(keys, self._app.lifetimes, _PURGED_AT_ONCE))
            if not page:
                break
            purged += page
            if progress:
                progress(purged)
        return purged


Jobs = list[JobInfo]


async def queues_of(app: App) -> set[str]:
    """The queues of the app's tasks, its default one, and every one it has ever used."""
    known = await app.client.ask(presence.known_queues(app.namespace))
    return {app.settings.default_queue, *(task.queue for task in app.tasks.values()), *known}


async def executors_of(app: App) -> Executors | None:
    """What the executors of the app tell about themselves; None where the user of Redis may not ask."""
    client = app.client
    try:
        now, told = await asyncio.gather(
            client.ask(census.now()), client.ask(presence.known_executors(app.namespace))
        )
    except BrokerUnavailable as error:
        if isinstance(error.__cause__, ReplyError) and error.__cause__.word == "NOPERM":
            return None
        raise
    return Executors(told, now)


def _because(queue: str, waiting: Mapping[str, int], later: int, executors: Executors | None) -> list[str]:
    """Why no worker can run the jobs of a queue, or some of them."""
    if executors is None:
        return []
    lanes: list[str | None] = [lane for lane, number in waiting.items() if number]
    if later and not lanes:
        lanes = [None]
    reasons = [executors.unserved(queue, lane) for lane in lanes]
    old = executors.too_old_for(queue) if lanes else []
    return [*dict.fromkeys(filter(None, reasons)), *old]


async def _lanes(client: Client, keys: QueueKeys) -> list[_Lane]:
    """Every lane. One that is empty need not exist, and is not asked further."""
    names = inspect.lanes()
    lengths = await asyncio.gather(*(client.ask(inspect.length(keys, lane)) for lane in names))
    readings = await asyncio.gather(
        *(_reading(client, keys, *lane) for lane in zip(names, lengths, strict=True))
    )
    return [_Lane(*lane) for lane in zip(names, lengths, readings, strict=True)]


async def _reading(client: Client, keys: QueueKeys, lane: str, length: int) -> Reading:
    return await client.ask(census.reading(keys, lane)) if length else Reading("0-0", 0)


async def _waiting(client: Client, keys: QueueKeys, limit: int) -> list[str]:
    """The keys of the next jobs, lane by lane in the order in which they are read."""
    found: list[str] = []
    for lane in await _lanes(client, keys):
        if lane.waiting and len(found) < limit:
            page = inspect.waiting(keys, lane.name, lane.reading.last, limit - len(found))
            found += [entry.key for entry in await client.ask(page)]
    return found


def _damaged(queue: str, damage: str) -> QueueInfo:
    return QueueInfo(
        name=queue, waiting=0, running=0, scheduled=0, retry=0, dead=0, lanes={}, ended={}, damage=damage
    )


def _named(stats: Mapping[str, int]) -> dict[str, int]:
    named: dict[str, int] = {}
    for letter, count in stats.items():
        name = _COUNTERS.get(letter, letter)
        named[name] = named.get(name, 0) + count
    return named
