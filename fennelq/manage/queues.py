"""The queues of an app: counts and lists their jobs, and empties a queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from fennelq.broker import verbs
from fennelq.broker.dispatch import pages
from fennelq.broker.keys import LANES, QUARANTINE, QueueKeys, queue_keys
from fennelq.broker.talk import Talk, ask, ask_all, together
from fennelq.broker.trouble import lacks_permission
from fennelq.broker.verbs.queues import Reading
from fennelq.errors import BrokerUnavailable
from fennelq.executors import Executors
from fennelq.manage.choices import check_choice
from fennelq.manage.offered import Awaiting, Blocking, Family, Operation
from fennelq.model.checks import valid_name
from fennelq.model.job import JobInfo
from fennelq.reasons import executors_of
from fennelq.result import record_of

if TYPE_CHECKING:
    from fennelq.app import App

_PURGED_AT_ONCE = 100
QUEUES_AT_ONCE = 50
"""Queues per round trip. A queue takes up to 20 commands; more at once would make other clients of the server wait."""

OnProgress = Callable[[int], None]
"""Called from time to time with the number of finished items."""
Place = Literal["waiting", "scheduled", "retry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInfo:
    """The numbers of jobs in a queue, by state, at one moment."""

    name: str
    waiting: int
    """Ready to run and not yet taken by an executor."""
    running: int
    """Taken by an executor and not yet ended."""
    scheduled: int
    """Waiting for a delay or for a moment, or snoozed."""
    retry: int
    """Failed, and waiting for the next try."""
    dead: int
    lanes: Mapping[str, int]
    """The numbers of waiting jobs by lane."""
    ended: Mapping[str, int]
    """Counters of this queue so far: jobs that succeeded, died, were cancelled, retried, replayed …"""
    damage: str = ""
    """Which of its keys have a wrong type, and how to repair them. Workers do not serve such a queue, and its jobs are
    not counted."""
    waiting_because: Sequence[str] = ()
    """Sentences that explain why no worker, or only some workers, can run jobs that wait here, and how to correct
    it."""


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
_LANE_NAMES = {lane: priority for priority, lane in LANES.items()} | {QUARANTINE: "quarantine"}


# Defined here, because inside the class `list` is a method.
Names = list[str]
Infos = list[QueueInfo]
JobInfos = list[JobInfo]


class QueueTalks(Family):
    """The operations on queues."""

    _attribute = "queues"

    @Operation
    def names(self) -> Talk[Names]:
        """The names of all queues, sorted."""
        return sorted((yield from queues_of(self._app)))

    @Operation
    def info(self, queue: str) -> Talk[QueueInfo]:
        """The numbers of jobs in one queue, by state."""
        return (yield from self._info(queue, (yield from executors_of(self._app.namespace))))

    @Operation
    def list(self) -> Talk[Infos]:
        """The numbers of jobs in every queue, by state; sorted by name."""
        names = sorted((yield from queues_of(self._app)))
        executors = yield from executors_of(self._app.namespace)
        infos: Infos = []
        for page in pages(names, QUEUES_AT_ONCE):
            infos += yield from together(self._unless_denied(name, executors) for name in page)
        return infos

    @Operation
    def peek(self, queue: str, limit: int = 10, place: Place = "waiting") -> Talk[JobInfos]:
        """The next jobs of a queue, in the order in which workers will take them. They stay in the queue."""
        check_choice("place", place, Place)
        keys = self._keys(queue)
        if place == "waiting":
            found = yield from _waiting(keys, limit)
        else:
            due = verbs.queues.due(keys, "sched" if place == "scheduled" else "retry", limit)
            found = [job.key for job in (yield from ask(due))]
        jobs = yield from together(record_of(self._app, f"{queue}:{key}") for key in found)
        return [job for job in jobs if job is not None]

    @Operation
    def purge(self, queue: str, progress: OnProgress | None = None) -> Talk[int]:
        """Cancel the jobs that wait, are scheduled, or wait for their next try; returns how many.

        Running jobs go on. It cancels at most as many jobs as waited at the beginning, even if more are sent meanwhile.
        """
        keys = self._keys(queue)
        before = yield from self._info(queue, None)
        purged, most = 0, before.waiting + before.scheduled + before.retry
        while purged < most:
            page = yield from ask(verbs.queues.purge(keys, self._app.lifetimes, _PURGED_AT_ONCE))
            if not page:
                break
            purged += page
            if progress:
                progress(purged)
        return purged

    def _unless_denied(self, queue: str, executors: Executors | None) -> Talk[QueueInfo]:
        """The numbers of one queue of several. For a queue that the user of Redis may not read, they are replaced by
        the error, so that the others are shown."""
        try:
            return (yield from self._info(queue, executors))
        except BrokerUnavailable as error:
            if not lacks_permission(error):
                raise
            return _damaged(queue, f"Redis {error.reason}")

    def _info(self, queue: str, executors: Executors | None) -> Talk[QueueInfo]:
        keys = self._keys(queue)
        if damage := "; ".join(filter(None, (yield from ask_all(verbs.queues.damage(keys))))):
            return _damaged(queue, damage)
        lanes = yield from _lanes(keys)
        waiting = {lane.name: lane.waiting for lane in lanes if lane.length}
        stats = yield from ask(verbs.queues.stats(keys))
        lengths = (verbs.queues.length(keys, name) for name in ("sched", "retry", "dlq"))
        scheduled, retry, dead = yield from ask_all(lengths)
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

    def _keys(self, queue: str) -> QueueKeys:
        return queue_keys(self._app.namespace, valid_name("queue", queue))


class Queues(QueueTalks, Awaiting):
    """The queues of an app: those of its tasks, and all that are known in Redis."""


class BlockingQueues(QueueTalks, Blocking):
    """The queues of an app, for code without an event loop: `app.sync.queues`."""


def queues_of(app: App) -> Talk[set[str]]:
    """The queues of the app's tasks, its default queue, and all queues that it has ever used."""
    known = yield from ask(verbs.queues.known_queues(app.namespace))
    return {app.settings.default_queue, *(task.queue for task in app.tasks.values()), *known}


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


def _lanes(keys: QueueKeys) -> Talk[list[_Lane]]:
    """Every lane. An empty lane need not exist in Redis, so it is not read further."""
    names = verbs.queues.lanes()
    lengths = yield from ask_all(verbs.queues.length(keys, lane) for lane in names)
    used = [lane for lane, length in zip(names, lengths, strict=True) if length]
    readings = dict(
        zip(used, (yield from ask_all(verbs.queues.reading(keys, lane) for lane in used)), strict=True)
    )
    return [
        _Lane(lane, length, readings.get(lane, Reading("0-0", 0)))
        for lane, length in zip(names, lengths, strict=True)
    ]


def _waiting(keys: QueueKeys, limit: int) -> Talk[list[str]]:
    """The keys of the next jobs, lane by lane in the order in which they are read."""
    found: list[str] = []
    for lane in (yield from _lanes(keys)):
        if lane.waiting and len(found) < limit:
            page = verbs.queues.waiting(keys, lane.name, lane.reading.last, limit - len(found))
            found += [entry.key for entry in (yield from ask(page))]
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
