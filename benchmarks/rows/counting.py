"""What counting costs: nanoseconds per job for an executor, and how much slower it drains with metrics on."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Final

from benchmarks.arena import Arena
from benchmarks.contestant import ONE_PROCESS
from benchmarks.figures import AtLeast, AtMost, Line, Sample
from benchmarks.rows.row import Row
from fennelq.broker.verbs.runs import Settled
from fennelq.counting import SharedTotals
from fennelq.model.job import Delivery
from fennelq.model.outcome import succeeded
from fennelq.worker.bus import JobsTaken, RunsEnded
from fennelq.worker.tally import Tally

_BATCH: Final = 32
_NOW_MS: Final = 1_700_000_000_000
_METERED: Final = "127.0.0.1:0"


@dataclass(frozen=True)
class Counting(Row):
    """One process, in turns with and without metrics. An executor counts for the run times in Redis anyway; `off` is
    that, and `on` is everything."""

    name = "counting"
    lines = (
        Line("counting a job, metrics on", "on_ns", "ns", AtMost(400)),
        Line("  metrics off: for the run times in Redis", "off_ns", "ns"),
        Line("  counting a job that is sent, metrics on", "sent_ns", "ns"),
        Line("drain with metrics / without", "drain", "%", AtLeast(98), digits=1),
        Line("  worker CPU per job, with / without", "cpu", "x", digits=3),
    )
    with_floor = False
    jobs: int = 40_000
    turns: int = 5
    rounds: int = 40

    def measure(self, arena: Arena) -> Sample:
        on, off = self._nanoseconds(SharedTotals()), self._nanoseconds(None)
        rates: dict[bool, list[float]] = {True: [], False: []}
        cpu: dict[bool, list[float]] = {True: [], False: []}
        for turn in range(self.turns):
            for metered in (True, False) if turn % 2 else (False, True):
                rate, used = self._drain(arena, metered=metered)
                rates[metered].append(rate)
                cpu[metered].append(used)
        figures = {
            "on_ns": on,
            "off_ns": off,
            "sent_ns": _sending(self.rounds),
            "drain": 100 * median(rates[True]) / median(rates[False]),
            "cpu": median(cpu[True]) / median(cpu[False]),
        }
        raw = {"with": rates[True], "without": rates[False], "cpu with": cpu[True], "cpu without": cpu[False]}
        return Sample(figures, raw)

    def _drain(self, arena: Arena, *, metered: bool) -> tuple[float, float]:
        jobs = arena.contestant.jobs(self.jobs)
        arena.fill(jobs)
        with arena.worker(ONE_PROCESS, ["--health-port", _METERED] if metered else []) as worker:
            drained = arena.drain(worker, jobs)
        return drained.jobs_per_s, drained.worker_us

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
