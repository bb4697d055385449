"""How many runs end, how long they take, and how long their jobs wait: from the counts of all executors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, TypeVar

from fennelq import clock
from fennelq.broker import verbs
from fennelq.broker.dispatch import pages
from fennelq.broker.keys import QueueKeys, queue_keys
from fennelq.broker.talk import Talk, ask, together
from fennelq.broker.trouble import ReplyError, lacks_permission
from fennelq.broker.verb import Step
from fennelq.broker.verbs.times import HOUR_MS, MINUTE_MS, RUN, WAIT, WINDOW_MS, Window
from fennelq.errors import BrokerUnavailable, ConfigurationError
from fennelq.manage.offered import Awaiting, Blocking, Family, Operation
from fennelq.manage.queues.queues import queues_of
from fennelq.model.checks import valid_name
from fennelq.model.times import Times, added
from fennelq.model.units import Seconds, seconds

A = TypeVar("A")

_KEYS_AT_ONCE = 100
_NAMES: Final = {"S": "success", "R": "retry", "Z": "snooze", "D": "dead", "K": "cancelled"}
RECENT = 1200.0
"""Seconds: the ten minutes that are under way, and those before them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTimes:
    """The run and wait times of a task."""

    task: str
    """`other` stands for all tasks beyond the first 500 of an executor."""
    run: Times
    """How long its runs took: those that succeeded, and those that failed, were snoozed or cancelled. Runs that were
    given up or handed back are not counted."""
    wait: Times
    """How long its jobs waited, from when they were due until an executor took them for the first time."""
    ended: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many runs ended as `success`, `retry`, `snooze`, `dead` or `cancelled`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMinute:
    """The runs that ended within one minute."""

    at: datetime
    """The beginning of the minute."""
    ended: Mapping[str, int]
    """How many runs ended as `success`, `retry`, `snooze`, `dead` or `cancelled`."""


# Defined here, because inside the class `list` is a method.
Found = list[TaskTimes]
Minutes = list[RunMinute]
NO_TIMES: Final = Window({}, {})
NO_MINUTES: Final[dict[int, dict[str, int]]] = {}


class RunTimesTalks(Family):
    """The operations on run and wait times."""

    _attribute = "times"

    @Operation
    def list(self, *, queue: str | None = None, within: Seconds = RECENT) -> Talk[Found]:
        """The times of each task in one queue, or in all queues together; the most frequent task first.

        Executors report once a minute and when they stop. Redis adds up the times of ten minutes, so `within`, which is
        the age of the oldest ones in seconds, is rounded up to ten minutes. Times are kept for `metrics_ttl`.
        """
        queues = sorted((yield from queues_of(self._app))) if queue is None else [valid_name("queue", queue)]
        now_ms = yield from ask(verbs.server.now())
        moments = [now_ms - WINDOW_MS * window for window in range(self._windows(within))]
        asked = [(name, moment) for name in queues for moment in moments]
        found: list[Window] = []
        for page in pages(asked, _KEYS_AT_ONCE):
            found += yield from together(self._window(name, moment) for name, moment in page)
        return by_task(found)

    @Operation
    def hour(self, *, queue: str | None = None, at: datetime | None = None) -> Talk[Minutes]:
        """The runs of one queue, or of all queues together, in each minute of an hour: the current hour, or that of
        `at`. Minutes that have not begun are left out.

        Executors report once a minute and when they stop, so the last minutes are not complete. An hour is kept for
        `metrics_ttl` after its last report.
        """
        queues = sorted((yield from queues_of(self._app))) if queue is None else [valid_name("queue", queue)]
        now_ms = yield from ask(verbs.server.now())
        moment = now_ms if at is None else _ms_of(at)
        found: list[dict[int, dict[str, int]]] = []
        for page in pages(queues, _KEYS_AT_ONCE):
            found += yield from together(self._hour(name, moment) for name in page)
        begin = moment // HOUR_MS * HOUR_MS
        return [
            RunMinute(
                at=clock.from_ms(begin + place * MINUTE_MS), ended=_sum(one.get(place, {}) for one in found)
            )
            for place in range(60)
            if begin + place * MINUTE_MS <= now_ms
        ]

    def _windows(self, within: Seconds) -> int:
        """How many windows to read. Older ones are not kept."""
        kept = max(RECENT, self._app.settings.metrics_ttl + WINDOW_MS / 1000)
        return max(1, math.ceil(min(seconds(within), kept) * 1000 / WINDOW_MS))

    def _window(self, queue: str, moment_ms: int) -> Talk[Window]:
        return (yield from unless_unreadable(verbs.times.times(self._keys(queue), moment_ms), NO_TIMES))

    def _hour(self, queue: str, moment_ms: int) -> Talk[dict[int, dict[str, int]]]:
        return (yield from unless_unreadable(verbs.times.hour(self._keys(queue), moment_ms), NO_MINUTES))

    def _keys(self, queue: str) -> QueueKeys:
        return queue_keys(self._app.namespace, queue)


def unless_unreadable(step: Step[A], instead: A) -> Talk[A]:
    """What a key has; `instead` when it has a wrong type, of which the workers warn, or when the user of Redis may not
    read it."""
    try:
        return (yield from ask(step))
    except (BrokerUnavailable, ReplyError) as error:
        if not (lacks_permission(error) or _has_wrong_type(error)):
            raise
        return instead


class RunTimes(RunTimesTalks, Awaiting):
    """How long the runs of each task take, and how long its jobs wait, over all executors: `app.times`."""


class BlockingRunTimes(RunTimesTalks, Blocking):
    """How long the runs of each task take, and how long its jobs wait: `app.sync.times`."""


def _ms_of(at: datetime) -> int:
    if at.tzinfo is None:
        raise ConfigurationError("app.times.hour takes a datetime with a time zone: datetime.now(UTC)")
    return round(at.timestamp() * 1000)


def _has_wrong_type(error: BaseException) -> bool:
    return isinstance(error, ReplyError) and error.word == "WRONGTYPE"


def by_task(found: Sequence[Window]) -> Found:
    """The times of each task in all of these ten minutes together; the most frequent task first."""
    counts: dict[tuple[str, str], list[list[int]]] = {}
    ends: dict[str, list[Mapping[str, int]]] = {}
    for one in found:
        for what, buckets in one.durations.items():
            counts.setdefault(what, []).append(buckets)
        for task, ended in one.ends.items():
            ends.setdefault(task, []).append(ended)
    times = [
        TaskTimes(
            task=task,
            run=added(counts.get((task, RUN), [])),
            wait=added(counts.get((task, WAIT), [])),
            ended=_sum(ends.get(task, ())),
        )
        for task in sorted({task for task, _ in counts} | ends.keys())
    ]
    return sorted(times, key=lambda one: -max(one.run.count, one.wait.count))


def _sum(ends: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Outcome → runs, without outcomes that do not occur."""
    total = dict.fromkeys(_NAMES, 0)
    for one in ends:
        for letter, count in one.items():
            total[letter] += count
    return {_NAMES[letter]: count for letter, count in total.items() if count}
