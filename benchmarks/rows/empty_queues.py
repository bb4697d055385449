"""Whether queues that are empty slow down one that is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.arena import Arena, Drained
from benchmarks.contestant import Crew
from benchmarks.figures import AtLeast, AtMost, Line, Sample
from benchmarks.rows.row import Row

_ALONE = ("default",)


@dataclass(frozen=True)
class EmptyQueues(Row):
    """The drain of one queue, by a process that serves only this queue, and by one that serves empty queues as well.

    Both are measured twice, in the order a b b a, so that a machine that slows down meanwhile slows down both.
    """

    name = "empty_queues"
    lines = (
        Line("drain beside empty queues / alone", "ratio", "x", AtLeast(0.9), digits=2),
        Line("  worker + server CPU more by", "dearer", "%", AtMost(10), digits=1),
    )
    with_floor = False
    jobs: int = 40_000
    empty: int = 19

    def measure(self, arena: Arena) -> Sample:
        beside = (*_ALONE, *(f"empty{number}" for number in range(self.empty)))
        turns = [(queues, self._drain(arena, queues)) for queues in (_ALONE, beside, beside, _ALONE)]
        alone = [drained for queues, drained in turns if queues is _ALONE]
        others = [drained for queues, drained in turns if queues is beside]
        return Sample(
            {
                "ratio": _seconds(alone) / _seconds(others),
                "dearer": (_cpu(others) / _cpu(alone) - 1) * 100,
                "alone": 2 * self.jobs / _seconds(alone),
                "beside": 2 * self.jobs / _seconds(others),
            }
        )

    def _drain(self, arena: Arena, queues: Sequence[str]) -> Drained:
        arena.fill(self.jobs)
        with arena.worker(Crew(queues=queues)) as worker:
            return arena.drain(worker, self.jobs)


def _seconds(drains: Sequence[Drained]) -> float:
    return sum(drained.seconds for drained in drains)


def _cpu(drains: Sequence[Drained]) -> float:
    return sum(drained.worker_us + drained.server_us for drained in drains)
