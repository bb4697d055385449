"""What an executor costs while there is nothing to do."""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.arena import Arena
from benchmarks.contestant import Crew
from benchmarks.figures import AtMost, Line, Sample
from benchmarks.rows.row import Row

_OWN_READS = 1
"""The question that ends the measurement is a read from a client too."""


@dataclass(frozen=True)
class Idle(Row):
    """Round trips are the server's own count of reads from sockets: a pipeline or a script call is one."""

    name = "idle"
    lines = (
        Line("idle executor, round trips", "trips_per_s", "1/s", AtMost(2.5), AtMost(1.5), digits=2),
        Line("  per further queue", "further_per_s", "1/s", AtMost(0.3), digits=2),
        Line("  CPU of the worker's processes", "cpu_percent", "%", AtMost(0.3), digits=2),
    )
    most_repeats = 2
    seconds: float = 10.0
    settle: float = 3.0
    further: int = 4

    def measure(self, arena: Arena) -> Sample:
        trips, cpu = self._rest(arena, Crew())
        if not arena.contestant.has_queues:
            return Sample({"trips_per_s": trips, "cpu_percent": cpu})
        more, _ = self._rest(
            arena, Crew(queues=("default", *(f"further{number}" for number in range(self.further))))
        )
        return Sample(
            {"trips_per_s": trips, "cpu_percent": cpu, "further_per_s": (more - trips) / self.further}
        )

    def _rest(self, arena: Arena, crew: Crew) -> tuple[float, float]:
        with arena.worker(crew) as worker:
            arena.warm(worker)
            time.sleep(self.settle)
            reads, cpu, began = arena.server.reads, worker.cpu_seconds, time.monotonic()
            time.sleep(self.seconds)
            seconds = time.monotonic() - began
            cpu_percent = (worker.cpu_seconds - cpu) / seconds * 100
            return (arena.server.reads - reads - _OWN_READS) / seconds, cpu_percent
