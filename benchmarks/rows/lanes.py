"""What serving three priority lanes costs."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.arena import Arena, Drained
from benchmarks.contestant import Crew
from benchmarks.figures import AtMost, Line, Sample
from benchmarks.rows.row import Row


@dataclass(frozen=True)
class Lanes(Row):
    """A worker of one lane and its jobs, then a worker of three with as many jobs spread over them."""

    name = "lanes"
    lines = (
        Line("three lanes instead of one: slower by", "slower", "%", AtMost(10), AtMost(5), digits=1),
        Line("  worker + server CPU more by", "dearer", "%", digits=1),
    )
    with_floor = False
    jobs: int = 45_000

    def measure(self, arena: Arena) -> Sample:
        one = self._drain(arena, ("normal",))
        three = self._drain(arena, ("high", "normal", "low"))
        dearer = (three.worker_us + three.server_us) / (one.worker_us + one.server_us) - 1
        slower = 1 - three.jobs_per_s / one.jobs_per_s
        return Sample(
            {"slower": slower * 100, "dearer": dearer * 100, "one": one.jobs_per_s, "three": three.jobs_per_s}
        )

    def _drain(self, arena: Arena, lanes: tuple[str, ...]) -> Drained:
        arena.fill(self.jobs, lanes=lanes)
        with arena.worker(Crew(lanes=lanes)) as worker:
            return arena.drain(worker, self.jobs)
