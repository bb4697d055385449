"""What large arguments cost."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.arena import Arena
from benchmarks.figures import AtMostOfFloor, Line, Sample
from benchmarks.rows.row import Row


@dataclass(frozen=True)
class Payload(Row):
    """What a megabyte of arguments costs: the CPU a 100 KB job needs more than a 1 KB one, per MB more."""

    name = "payload"
    lines = (
        Line("1 KB -> 100 KB payload, CPU per MB", "us_per_mb", "us", AtMostOfFloor(1.5)),
        Line("  CPU per job of 1 KB", "small_us", "us", digits=1),
        Line("  CPU per job of 100 KB", "large_us", "us", digits=1),
    )
    small_jobs: int = 20_000
    large_jobs: int = 2_000

    def measure(self, arena: Arena) -> Sample:
        small, large = self._cost(arena, self.small_jobs, 1_000), self._cost(arena, self.large_jobs, 100_000)
        return Sample({"small_us": small, "large_us": large, "us_per_mb": (large - small) / 0.099})

    def _cost(self, arena: Arena, jobs: int, size: int) -> float:
        arena.fill(jobs, task="swallow", size=size)
        with arena.worker() as worker:
            drained = arena.drain(worker, jobs)
        return drained.worker_us + drained.server_us
