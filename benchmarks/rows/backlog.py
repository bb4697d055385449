"""What a job costs when little is queued and when very much is."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.arena import Arena, Drained
from benchmarks.figures import Line, Sample, Within
from benchmarks.rows.row import Row
from benchmarks.worker import Worker


@dataclass(frozen=True)
class Backlog(Row):
    """What a job costs when little is queued and when very much is.

    The small backlog is drained in rounds by one worker, the first round not counted; of the large one, the
    first jobs are measured and the rest is left.
    """

    name = "backlog"
    lines = (
        Line("CPU per job, backlog 1,000 -> large", "drift", "%", Within(15), digits=1),
        Line("  at 1,000", "small_us", "us", digits=1),
        Line("  at the large one", "large_us", "us", digits=1),
    )
    most_repeats = 2
    small: int = 1_000
    rounds: int = 15
    large: int = 1_000_000
    measured: int = 30_000

    def measure(self, arena: Arena) -> Sample:
        small_us = self._small(arena)
        arena.fill(self.large)
        with arena.worker() as worker:
            large = arena.drain(worker, self.measured, to_the_end=False)
        large_us = large.worker_us + large.server_us
        return Sample({"small_us": small_us, "large_us": large_us, "drift": (large_us / small_us - 1) * 100})

    def _small(self, arena: Arena) -> float:
        arena.fill(self.small)
        with arena.worker() as worker:
            arena.drain(worker, self.small)
            rounds = [self._round(arena, worker) for _ in range(self.rounds)]
        return sum(drained.worker_us + drained.server_us for drained in rounds) / self.rounds

    def _round(self, arena: Arena, worker: Worker) -> Drained:
        arena.tally.close_gate()
        arena.fill(self.small)
        return arena.drain(worker, self.small)
