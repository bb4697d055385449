"""What is known of a queue at one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from fennelq import clock
from fennelq.broker.keys import LANES, QUARANTINE
from fennelq.broker.verbs.survey import Survey
from fennelq.executors import Executors
from fennelq.manage.queues.pausing import with_ignoring
from fennelq.model.bounds import Bound, WhenFull
from fennelq.model.pause import QueuePause
from fennelq.waiting.reasons import because_of_pause

_COUNTERS: Final = {
    "S": "succeeded",
    "N": "succeeded",
    "D": "died",
    "K": "cancelled",
    "R": "retried",
    "Z": "snoozed",
    "U": "not_runnable",
}
_LANE_NAMES: Final = {lane: priority for priority, lane in LANES.items()} | {QUARANTINE: "quarantine"}


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
    in_lines: int = 0
    """Waiting in lines, because a limit does not let them start yet. They do not count as `waiting`."""
    lines: int = 0
    """The number of these lines: jobs with the same limits, and the same values of their keys, wait in one."""
    lanes: Mapping[str, int]
    """The numbers of waiting jobs by lane."""
    ended: Mapping[str, int]
    """Counters of this queue so far: jobs that succeeded, died, were cancelled, retried, replayed …"""
    at: datetime | None = field(default=None, compare=False)
    """The moment of these numbers, by the server's clock; None when there are none. A comparison of two infos ignores
    it."""
    waiting_since: datetime | None = None
    """Since when the job that has waited longest is ready to run; None when none waits."""
    next_due: datetime | None = None
    """When the next job is due that is scheduled or waits for its next try; None when there is none. It is in the past
    when no executor of the queue runs."""
    newest_death: datetime | None = None
    """When the newest of the dead jobs has died; None when none is dead."""
    damage: str = ""
    """Which of its keys have a wrong type, and how to repair them. Workers do not serve such a queue, and its jobs are
    not counted."""
    unknown: bool = False
    """True when its jobs are not counted because the user of Redis may not read them; then `damage` has the reason."""
    waiting_because: Sequence[str] = ()
    """Sentences that explain why no worker, or only some workers, can run jobs that wait here, and how to correct
    it."""
    paused: QueuePause | None = None
    """What people have paused in this queue, who, when and why; None when nothing is paused."""
    max_waiting: int | None = None
    """How many jobs may wait, ready or in lines, as this code declares it; None when that is unbounded."""
    when_full: WhenFull | None = None
    """What a call does when so many wait."""

    @property
    def fullness(self) -> float | None:
        """The part of `max_waiting` that is used, 1.0 when it is full; None without a bound."""
        return None if self.max_waiting is None else (self.waiting + self.in_lines) / self.max_waiting


def info_of(queue: str, survey: Survey, bound: Bound | None, executors: Executors | None) -> QueueInfo:
    """A queue as a survey has found it."""
    if survey.damage:
        return damaged(queue, survey.damage)
    lanes = survey.lanes.values()
    waiting = {name: lane.waiting for name, lane in survey.lanes.items() if lane.length}
    later = survey.scheduled + survey.retry + survey.in_lines
    pause = survey.paused
    return QueueInfo(
        name=queue,
        waiting=sum(waiting.values()),
        running=sum(lane.running for lane in lanes),
        scheduled=survey.scheduled,
        retry=survey.retry,
        dead=survey.dead,
        in_lines=survey.in_lines,
        lines=survey.lines,
        lanes={_LANE_NAMES[lane]: number for lane, number in waiting.items()},
        ended=_named(survey.counters),
        at=clock.from_ms(survey.now_ms),
        waiting_since=_moment(
            min((lane.since_ms for lane in lanes if lane.since_ms is not None), default=None)
        ),
        next_due=_moment(survey.due_ms),
        newest_death=_moment(survey.died_ms),
        waiting_because=_because(queue, waiting, later, executors, pause),
        paused=pause and with_ignoring(pause, queue, executors),
        max_waiting=bound and bound.max_waiting,
        when_full=bound and bound.when_full,
    )


def damaged(queue: str, damage: str, *, unknown: bool = False) -> QueueInfo:
    """A queue whose jobs cannot be counted."""
    return QueueInfo(
        name=queue,
        waiting=0,
        running=0,
        scheduled=0,
        retry=0,
        dead=0,
        lanes={},
        ended={},
        damage=damage,
        unknown=unknown,
    )


def unstarted(queue: QueueInfo) -> int:
    """How many jobs of a queue a purge cancels."""
    return queue.waiting + queue.in_lines + queue.scheduled + queue.retry


def _because(
    queue: str,
    waiting: Mapping[str, int],
    later: int,
    executors: Executors | None,
    pause: QueuePause | None,
) -> list[str]:
    """Why no worker can run the jobs of a queue, or some of them."""
    lanes: list[str | None] = [lane for lane, number in waiting.items() if number]
    if later and not lanes:
        lanes = [None]
    if lanes and (paused := because_of_pause(queue, pause)):
        return [paused]
    if executors is None:
        return []
    reasons = [executors.unserved(queue, lane) for lane in lanes]
    old = executors.too_old_for(queue) if lanes else []
    return [*dict.fromkeys(filter(None, reasons)), *old]


def _named(counters: Mapping[str, int]) -> dict[str, int]:
    named: dict[str, int] = {}
    for letter, count in counters.items():
        name = _COUNTERS.get(letter, letter)
        named[name] = named.get(name, 0) + count
    return named


def _moment(ms: int | None) -> datetime | None:
    """None also for a moment that no calendar has, which a person may have written."""
    try:
        return None if ms is None else clock.from_ms(ms)
    except (ValueError, OverflowError, OSError):
        return None
