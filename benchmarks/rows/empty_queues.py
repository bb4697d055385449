"""Whether queues that are empty slow down one that is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.arena import Arena
from benchmarks.contestant import Crew
from benchmarks.figures import AtLeast, AtMost, Line, Sample
from benchmarks.rows.row import Row

_ALONE = ("default",)


@dataclass(frozen=True)
class Turn:
    """What a drain took: CPU per job, and scripts including the start of the worker."""

    seconds: float
    cpu_us: float
    scripts: int


@dataclass(frozen=True)
class EmptyQueues(Row):
    """The drain of one queue, by a process that serves only this queue, and by one that serves empty queues as well.

    Both are measured twice, in the order a b b a, so that a machine that slows down meanwhile slows down both. The
    number of scripts holds on every machine: a drain needs 63 per 1,000 jobs, and a fetch of all queues each time would
    need some 600 more.
    """

    name = "empty_queues"
    lines = (
        Line("drain beside empty queues / alone", "ratio", "x", AtLeast(0.9), digits=2),
        Line("  scripts more, per 1,000 jobs", "scripts", "", AtMost(10), digits=1),
        Line("  worker + server CPU more by", "dearer", "%", digits=1),
    )
    with_floor = False
    jobs: int = 40_000
    empty: int = 19

    def measure(self, arena: Arena) -> Sample:
        beside = (*_ALONE, *(f"empty{number}" for number in range(self.empty)))
        turns = [self._turn(arena, queues) for queues in (_ALONE, beside, beside, _ALONE)]
        alone, others = _sum(turns[0], turns[3]), _sum(turns[1], turns[2])
        return Sample(
            {
                "ratio": alone.seconds / others.seconds,
                "scripts": (others.scripts - alone.scripts) / (2 * self.jobs) * 1000,
                "dearer": (others.cpu_us / alone.cpu_us - 1) * 100,
                "alone": 2 * self.jobs / alone.seconds,
                "beside": 2 * self.jobs / others.seconds,
            }
        )

    def _turn(self, arena: Arena, queues: Sequence[str]) -> Turn:
        arena.fill(self.jobs)
        scripts = arena.server.scripts
        with arena.worker(Crew(queues=queues)) as worker:
            drained = arena.drain(worker, self.jobs)
            scripts = arena.server.scripts - scripts
        return Turn(drained.seconds, drained.worker_us + drained.server_us, scripts)


def _sum(first: Turn, second: Turn) -> Turn:
    return Turn(first.seconds + second.seconds, first.cpu_us + second.cpu_us, first.scripts + second.scripts)
