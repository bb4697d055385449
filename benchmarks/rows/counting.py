"""What counting costs: nanoseconds per job for an executor, and how much more CPU time its drains take with metrics."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from benchmarks.arena import Arena
from benchmarks.figures import AtMost, Line, Sample
from benchmarks.rows.row import Row
from fennelq.broker.verbs.runs import Settled
from fennelq.counting import SharedTotals
from fennelq.model.job import Delivery
from fennelq.model.outcome import succeeded
from fennelq.worker.bus import JobsTaken, RunsEnded
from fennelq.worker.tally import Tally

_BATCH: Final = 32
_NOW_MS: Final = 1_700_000_000_000


@dataclass(frozen=True)
class Counting(Row):
    """An executor counts for the run times in Redis anyway; `off` is that, and `on` is everything.

    Then one process drains in turns with and without metrics (`benchmarks.metered`). Each pair gives a ratio, and the
    median of all pairs is compared with the bar. The CPU time decides, because how long a drain takes depends more on
    where the kernel puts the processes than on metrics."""

    name = "counting"
    lines = (
        Line("counting a job, metrics on", "on_ns", "ns", AtMost(400)),
        Line("  metrics off: for the run times in Redis", "off_ns", "ns"),
        Line("  counting a job that is sent, metrics on", "sent_ns", "ns"),
        Line("drains: worker CPU per job, with metrics / without", "cpu", "x", AtMost(1.02), digits=3),
        Line("  jobs/s, with / without", "drain", "%", digits=1),
    )
    with_floor = False
    jobs: int = 8_000
    pairs: int = 24
    rounds: int = 40

    def measure(self, arena: Arena) -> Sample:
        on, off = self._nanoseconds(SharedTotals()), self._nanoseconds(None)
        found = arena.metered(self.pairs, self.jobs)
        figures = {
            "on_ns": on,
            "off_ns": off,
            "sent_ns": _sending(self.rounds),
            "drain": 100 * _median_of_pairs(found["rate with"], found["rate without"]),
            "cpu": _median_of_pairs(found["cpu with"], found["cpu without"]),
        }
        return Sample(figures, found)

    def _nanoseconds(self, totals: SharedTotals | None) -> float:
        """CPU time per job that waits, runs and ends: the lowest of some rounds."""
        tally = Tally({"bench:noop", "bench:nap"}, totals)
        jobs = [_delivery(number) for number in range(_BATCH)]
        taken = JobsTaken("default", jobs, _NOW_MS)
        done = succeeded(b"1", 1000)
        ended = RunsEnded("default", [Settled(job, done, 0.0003 * (n % 9)) for n, job in enumerate(jobs)])

        def count() -> None:
            tally.taken(taken)
            tally.ended(ended)

        return _lowest(count, _BATCH, self.rounds)


def _median_of_pairs(one: Sequence[float], other: Sequence[float]) -> float:
    return median(a / b for a, b in zip(one, other, strict=True))


def _sending(rounds: int) -> float:
    from fennelq import App
    from fennelq.counting import Counting as Counts

    counts, job = Counts("task"), App("bench").describe("bench:noop")
    return _lowest(lambda: counts.note_sent(job, 1), 1, rounds)


def _lowest(count: Callable[[], None], jobs: int, rounds: int) -> float:
    calls = 20_000 // jobs
    gc.disable()
    try:
        found: list[float] = []
        for _ in range(rounds):
            begin = time.process_time_ns()
            for _ in range(calls):
                count()
            found.append((time.process_time_ns() - begin) / calls / jobs)
        return min(found)
    finally:
        gc.enable()


def _delivery(number: int) -> Delivery:
    task = "bench:nap" if number % 4 == 0 else "bench:noop"
    return Delivery(
        "default", "s", f"1-{number}", str(number), task, b"", b"", 0, 1, 1, _NOW_MS, _NOW_MS - number
    )
