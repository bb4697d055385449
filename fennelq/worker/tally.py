"""Counts in memory how the runs of each task ended and how long they took, and how long its jobs waited for them.

Counting a job must cost nearly nothing, so a run only adds one to a bucket of its outcome. The duty `meter` takes the
counts once a minute and adds them to those in Redis. If metrics are on, the duty `metrics` reads them once a second.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from fennelq import clock
from fennelq.counting import SharedTotals
from fennelq.model.outcome import UNKNOWN_TASK
from fennelq.model.times import BOUNDS, BUCKETS, Times, added, rounded
from fennelq.model.totals import MOST_TASKS, OTHER, Pair, Row, row_of_runs
from fennelq.worker.bus import JobHandedBack, JobLost, JobsTaken, RunsEnded

MOST_COUNTED: Final = 10_000
"""Pairs of a queue and a task that are counted until they are taken: some 6 MB."""
MOST_KEPT: Final = 2_000
"""Run times of a task by which its long runs are found."""
_RECENT: Final = 600.0
"""Seconds over which an executor reports its own times."""
_BOUNDS_MS: Final = [int(bound * 1000) for bound in BOUNDS]
"""For waits, which are whole milliseconds: to compare two integers is cheaper."""


UNTIMED: Final = BUCKETS
"""The place of the runs without a duration, after the buckets."""
SUM: Final = BUCKETS + 1
"""The place of the sum of all durations: of runs in seconds, of waits in milliseconds. 0 unless sums are kept."""
LOST: Final = "L"
"""In place of an outcome: another executor has the job now."""
RELEASED: Final = "B"
"""In place of an outcome: the executor stops, and has handed the job back."""


_OUTCOMES: Final = ("SN", "R", "ZG", "D", "K", RELEASED, LOST)
"""The kinds of outcomes that `fennelq.model.metrics.OUTCOMES` names."""


class Counted(NamedTuple):
    """The counts of one task in one queue, by bucket."""

    runs: dict[str, list[float]]
    """Kind of outcome → counts."""
    waits: list[float]

    @property
    def run_times(self) -> Sequence[float]:
        """The durations of all runs, by bucket."""
        runs: Sequence[Sequence[float]] = list(self.runs.values()) or [[0] * BUCKETS]
        return [sum(column) for column in zip(*runs, strict=True)][:BUCKETS]

    def ended(self, *kinds: str) -> int:
        """How many runs have ended in one of these ways."""
        return sum(int(sum(self.runs[kind][:SUM])) for kind in kinds if kind in self.runs)

    def row(self) -> Row:
        """The same as a row of totals."""
        seconds = sum(counts[SUM] for counts in list(self.runs.values()))
        return row_of_runs(
            [self.ended(*kinds) for kinds in _OUTCOMES],
            [*self.run_times, seconds],
            [*self.waits[:BUCKETS], self.waits[SUM] / 1000],
        )


Counts = Mapping[str, "Tasks"]
"""Queue → task → counts."""


class TaskRuns(NamedTuple):
    """The run times of one task."""

    recent: Times
    """Of the latest runs."""
    number: int
    """How many runs were counted altogether."""


class _Minute(NamedTuple):
    """The counts of all tasks together, until a moment of the monotonic clock."""

    until: float
    runs: Times
    waits: Times


class Tally:
    """Counts the jobs of one executor."""

    def __init__(self, tasks: Container[str], totals: SharedTotals | None = None) -> None:
        """`totals` keeps what is taken, if metrics are on."""
        self._room, self._totals = _Room(tasks), totals
        self._ahead_ms: float | None = None
        """By how much the server's clock is ahead of the monotonic one; None before the first job."""
        self._queues: dict[str, Tasks] = {}
        self._recent: deque[_Minute] = deque()
        self._kept: dict[str, _Kept] = {}

    def taken(self, fact: JobsTaken) -> None:
        """Count how long jobs have waited: from when they were due until now, when they start for the first time."""
        tasks, now, sums = self._tasks(fact.queue), fact.now_ms, self._totals is not None
        self._ahead_ms = now - clock.monotonic() * 1000
        waits = tasks.waits
        for delivery in fact.deliveries:
            if delivery.fence == 1:
                waited = now - delivery.due_ms
                try:
                    counts = waits[delivery.task]
                except KeyError:
                    counts = tasks.waits_of(delivery.task)
                counts[bisect_left(_BOUNDS_MS, waited)] += 1
                if sums and waited > 0:
                    counts[SUM] += waited

    def ended(self, fact: RunsEnded) -> None:
        """Count how runs ended, and how long they took."""
        tasks, sums = self._tasks(fact.queue), self._totals is not None
        runs = tasks.runs
        for delivery, outcome, seconds in fact.runs:
            kind = outcome.kind
            if kind != UNKNOWN_TASK:
                try:
                    counts = runs[kind][delivery.task]
                except KeyError:
                    counts = tasks.runs_of(delivery.task, kind)
                if seconds is None:
                    counts[UNTIMED] += 1
                    continue
                counts[bisect_left(BOUNDS, seconds)] += 1
                if sums:
                    counts[SUM] += seconds

    def lost(self, fact: JobLost) -> None:
        """Count a run without an outcome: another executor has the job."""
        self._tasks(fact.delivery.queue)[fact.delivery.task].runs[LOST][UNTIMED] += 1

    def handed_back(self, fact: JobHandedBack) -> None:
        """Count a run without an outcome: the executor stops."""
        self._tasks(fact.delivery.queue)[fact.delivery.task].runs[RELEASED][UNTIMED] += 1

    def server_ms(self, moment: float) -> int:
        """The server's clock at a moment of the monotonic clock, as far as it is known; 0 before the first job."""
        return 0 if self._ahead_ms is None else max(0, round(self._ahead_ms + moment * 1000))

    def keep(self, tasks: Iterable[str]) -> None:
        """Keep the run times of these tasks, for `runs_of`."""
        self._kept = {task: _Kept() for task in tasks}

    def runs_of(self, task: str) -> TaskRuns:
        """The run times of a task that is kept, in all queues."""
        kept = self._kept[task]
        counts = [_whole(tasks[task].run_times) for tasks in self._queues.values() if task in tasks]
        return TaskRuns(added([kept.counts, *counts]), kept.number + sum(map(sum, counts)))

    def counting(self) -> Iterable[tuple[Pair, Row]]:
        """What was counted since the last `take`, as rows of totals. Another thread may call it: it reads copies of
        the dicts, which this executor may extend meanwhile."""
        return [
            ((queue, task), counted.row())
            for queue, tasks in list(self._queues.items())
            for task, counted in list(tasks.items())
        ]

    def take(self) -> Counts:
        """What was counted since the last call."""
        self._recent.append(self._minute())
        for task, kept in self._kept.items():
            for tasks in self._queues.values():
                if task in tasks:
                    kept.add(_whole(tasks[task].run_times))
        taken = self._queues
        if self._totals is None:
            self._queues = {}
        else:
            # In one step for a thread that reads the totals: it must find each count once.
            with self._totals.lock:
                self._totals.keep(self.counting())
                self._queues = {}
        self._room.empty()
        return taken

    def take_uncounted(self) -> int:
        """How many durations found no room since the last call."""
        return self._room.take_uncounted()

    def facts(self) -> dict[str, object]:
        """The times of the last ten minutes, for people; empty without any."""
        self._forget_old()
        minutes = [*self._recent, self._minute()]
        every = {
            "run_times": added([minute.runs.counts for minute in minutes]),
            "wait_times": added([minute.waits.counts for minute in minutes]),
        }
        return {
            name: {"count": times.count, "p50": rounded(times.p50), "p95": rounded(times.p95)}
            for name, times in every.items()
            if times.count
        }

    def _tasks(self, queue: str) -> Tasks:
        tasks = self._queues.get(queue)
        if tasks is None:
            tasks = Tasks(self._room)
            if self._room.left:
                self._queues[queue] = tasks
        return tasks

    def _minute(self) -> _Minute:
        """What was counted since the counts were last taken."""
        every = [counted for tasks in self._queues.values() for counted in tasks.values()]
        runs = added([_whole(one.run_times) for one in every])
        waits = added([_whole(one.waits[:BUCKETS]) for one in every])
        return _Minute(clock.monotonic(), runs, waits)

    def _forget_old(self) -> None:
        while self._recent and self._recent[0].until < clock.monotonic() - _RECENT:
            self._recent.popleft()


class _Kept:
    """The run times of one task, the latest ones most of all: the counts are halved whenever there are MOST_KEPT."""

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.number = 0

    def add(self, runs: list[int]) -> None:
        self.counts = [old + new for old, new in zip(self.counts, runs, strict=True)]
        self.number += sum(runs)
        while sum(self.counts) > MOST_KEPT:
            self.counts = [count // 2 for count in self.counts]


class Tasks(dict[str, Counted]):
    """Task → counts, in one queue. A task that is not counted by itself has no entry."""

    def __init__(self, room: _Room) -> None:
        super().__init__()
        self._room = room
        self.waits: dict[str, list[float]] = {}
        """Task → the counts to which its waits are added. It saves two lookups per job, and may lack a task."""
        self.runs: dict[str, dict[str, list[float]]] = {}
        """Kind of outcome → task → the counts to which its runs are added. It may lack a task as well."""

    def __missing__(self, task: str) -> Counted:
        name = self._room.name_of(task)
        if name != task:
            return self[name]
        return self.setdefault(task, _nothing()) if self._room.admits() else self._room.uncounted

    def waits_of(self, task: str) -> list[float]:
        """The counts to which the waits of a task are added."""
        found = self[task]
        if self._room.keeps(task, found):
            self.waits[task] = found.waits
        return found.waits

    def runs_of(self, task: str, kind: str) -> list[float]:
        """The counts to which the runs of a task with this outcome are added."""
        found = self[task]
        if self._room.keeps(task, found):
            self.runs.setdefault(kind, {})[task] = found.runs[kind]
        return found.runs[kind]


class _Room:
    """Bounds what is counted."""

    def __init__(self, tasks: Container[str]) -> None:
        self._tasks, self._names = tasks, {OTHER}
        self.left = MOST_COUNTED
        """How many more pairs of a queue and a task are counted."""
        self.uncounted = _nothing()
        """What found no room."""

    def name_of(self, task: str) -> str:
        """The name under which a task is counted. Names of other tasks come from jobs that any client has sent, so
        their number is not bounded."""
        if task not in self._names:
            if len(self._names) > MOST_TASKS or task not in self._tasks:
                return OTHER
            self._names.add(task)
        return task

    def keeps(self, task: str, counted: Counted) -> bool:
        """Whether these counts stay those of this task, and it is a task of the app. The number of others is not
        bounded."""
        return counted is not self.uncounted and task in self._tasks

    def admits(self) -> bool:
        """Take room for one more pair, if there is some."""
        admitted = self.left > 0
        self.left -= admitted
        return admitted

    def empty(self) -> None:
        """Everything that was counted has been taken."""
        self.left = MOST_COUNTED

    def take_uncounted(self) -> int:
        """The number of durations that found no room since the last call."""
        found, self.uncounted = self.uncounted, _nothing()
        return int(sum(found.run_times) + sum(found.waits[:BUCKETS]))


class _ByOutcome(dict[str, list[float]]):
    """Kind of outcome → counts."""

    def __missing__(self, kind: str) -> list[float]:
        return self.setdefault(kind, _zeros())


def _zeros() -> list[float]:
    return [0] * (SUM + 1)


def _nothing() -> Counted:
    return Counted(_ByOutcome(), _zeros())


def _whole(counts: Iterable[float]) -> list[int]:
    """The counts of buckets, which are whole numbers: only their sum of durations is not."""
    return [int(count) for count in counts]
