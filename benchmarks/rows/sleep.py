"""Jobs that wait for something else: the executor's bookkeeping must not show."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.arena import Arena
from benchmarks.contestant import Crew
from benchmarks.figures import AtLeastOfFloor, Line, Sample
from benchmarks.rows.drain import figures_of
from benchmarks.rows.row import Row


@dataclass(frozen=True)
class Sleep(Row):
    """Jobs that wait: the executor's bookkeeping must not show."""

    name = "sleep"
    lines = (
        Line("sleep(0.1) x 2000, c=100", "jobs_per_s", "jobs/s", AtLeastOfFloor(0.98), AtLeastOfFloor(1.0)),
    )
    jobs: int = 2_000
    concurrency: int = 100

    def measure(self, arena: Arena) -> Sample:
        arena.fill(self.jobs, task="nap", argument=0.1)
        with arena.worker(Crew(concurrency=self.concurrency)) as worker:
            return Sample(figures_of(arena.drain(worker, self.jobs)))
