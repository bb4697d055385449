"""One run: every row, every repeat, every contestant, interleaved."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.arena import Arena, SampleFailed
from benchmarks.contestant import FENNELQ, FLOOR, Contestant
from benchmarks.figures import Sample, Series
from benchmarks.loops import LoopName
from benchmarks.machine import Neighbours
from benchmarks.rows import Row
from benchmarks.server import Engine


@dataclass(frozen=True)
class Plan:
    rows: Sequence[Row]
    contestants: Sequence[Contestant]
    repeats: int
    engine: Engine
    loop: LoopName


@dataclass
class Measured:
    """All samples of a run, by row and contestant."""

    samples: dict[tuple[str, str], list[Sample]] = field(default_factory=dict[tuple[str, str], list[Sample]])
    failures: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    loops: dict[str, str] = field(default_factory=dict[str, str])
    """The loop the worker of each contestant was seen to run its jobs on."""
    neighbours: dict[tuple[str, str], list[float]] = field(default_factory=dict[tuple[str, str], list[float]])
    """The share of the machine that other programs took during each sample."""
    server: str = ""

    @property
    def most_disturbed(self) -> float:
        return max((share for shares in self.neighbours.values() for share in shares), default=0.0)

    def series(self, row: str, contestant: str, figure: str) -> Series | None:
        values = [
            sample.figures[figure]
            for sample in self.samples.get((row, contestant), ())
            if figure in sample.figures
        ]
        return Series(values) if values else None


def measure(plan: Plan) -> Measured:
    measured = Measured()
    for row in plan.rows:
        for repeat, contestant in _interleaved(plan, row):
            _report(f"{row.name} {repeat + 1}: {contestant.name}")
            _take(plan, row, contestant, measured)
    return measured


def _interleaved(plan: Plan, row: Row) -> Iterator[tuple[int, Contestant]]:
    """Every contestant once per repeat, in turning order: a slow minute of the machine affects all of them."""
    entrants = [contestant for contestant in plan.contestants if _may_enter(row, contestant)]
    for repeat in range(min(plan.repeats, row.most_repeats or plan.repeats)):
        for place in range(len(entrants)):
            yield repeat, entrants[(repeat + place) % len(entrants)]


def _may_enter(row: Row, contestant: Contestant) -> bool:
    if contestant is FENNELQ:
        return True
    return row.with_floor if contestant is FLOOR else row.with_peers


def _take(plan: Plan, row: Row, contestant: Contestant, measured: Measured) -> None:
    place = (row.name, contestant.name)
    if place in measured.failures:
        return
    neighbours = Neighbours()
    try:
        with Arena(contestant, plan.engine, plan.loop) as arena:
            sample = row.measure(arena)
            _note_what_was_seen(arena, measured)
    except SampleFailed as failure:
        measured.failures[place] = str(failure)
        _report(f"{row.name}: {contestant.name} failed: {failure}")
    else:
        measured.samples.setdefault(place, []).append(sample)
        measured.neighbours.setdefault(place, []).append(neighbours.share())


def _note_what_was_seen(arena: Arena, measured: Measured) -> None:
    measured.server = arena.server.version
    if arena.tally.processes:
        measured.loops[arena.contestant.name] = "uvloop" if arena.tally.on_uvloop else "asyncio"


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
