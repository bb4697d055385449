"""What a job weighs in Redis."""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.arena import Arena
from benchmarks.figures import AtMost, Line, Sample
from benchmarks.rows.row import Row

_QUIET_SECONDS = 0.5
"""Time for the server to free closed clients' buffers and to finish rehashing."""


@dataclass(frozen=True)
class Memory(Row):
    """Growth of used_memory per job, with no client or worker connected.

    A first few jobs are worked off and not counted: they bring the scripts and the permanent keys.
    """

    name = "memory"
    lines = (
        Line("memory per queued small job", "queued_bytes", "B", AtMost(270), AtMost(220)),
        Line("memory per finished small job", "finished_bytes", "B", AtMost(600), AtMost(350)),
    )
    most_repeats = 1
    jobs: int = 25_000
    first: int = 100

    def measure(self, arena: Arena) -> Sample:
        self._work_off(arena, self.first)
        before = self._used(arena)
        arena.fill(self.jobs)
        queued = self._used(arena)
        with arena.worker() as worker:
            arena.drain(worker, self.jobs)
        finished = self._used(arena)
        return Sample(
            {"queued_bytes": (queued - before) / self.jobs, "finished_bytes": (finished - before) / self.jobs}
        )

    def _work_off(self, arena: Arena, jobs: int) -> None:
        arena.fill(jobs)
        with arena.worker() as worker:
            arena.drain(worker, jobs)

    def _used(self, arena: Arena) -> int:
        time.sleep(_QUIET_SECONDS)
        return arena.server.used_memory
