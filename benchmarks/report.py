"""The table a run prints, and its verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.contestant import FENNELQ, FLOOR
from benchmarks.figures import Bar, Line, Series
from benchmarks.rows import Row
from benchmarks.session import Measured, Plan

HEADINGS = ("row", "unit", "fennelq", "floor", "ratio", "bar", "verdict", "stretch")


@dataclass(frozen=True)
class Judged:
    """One line of the table, with what both sides reached."""

    row: str
    line: Line
    competed: bool
    """Whether fennelq took part in the run; without it there is nothing to judge."""
    fennelq: Series | None
    floor: Series | None

    @property
    def ratio(self) -> float | None:
        if not self.fennelq or not self.floor or not self.floor.median:
            return None
        return self.fennelq.median / self.floor.median

    @property
    def verdict(self) -> str:
        """``pass``, ``FAIL``, or ``missing`` when a figure the bar needs was not measured; empty: no bar."""
        return self._held_against(self.line.bar, ("pass", "FAIL", "missing")) if self.competed else ""

    @property
    def stretch(self) -> str:
        return self._held_against(self.line.stretch, ("reached", "not yet", ""))

    def _held_against(self, bar: Bar | None, words: tuple[str, str, str]) -> str:
        met, missed, unknown = words
        if bar is None:
            return ""
        if self.fennelq is None or (bar.needs_floor and self.floor is None):
            return unknown
        floor = self.floor.median if self.floor else 0.0
        return met if bar.met(self.fennelq.median, floor) else missed

    def cells(self) -> tuple[str, ...]:
        line, stretch = self.line, self.line.stretch
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        dream = f"{stretch} {self.stretch}".strip() if stretch else ""
        figures = (_shown(self.fennelq, line.digits), _shown(self.floor, line.digits))
        return (line.label, line.unit, *figures, ratio, str(line.bar or ""), self.verdict, dream)


def judge(plan: Plan, measured: Measured) -> Sequence[Judged]:
    return [_judged(plan, measured, row, line) for row in plan.rows for line in row.lines]


def _judged(plan: Plan, measured: Measured, row: Row, line: Line) -> Judged:
    ours, floor = (measured.series(row.name, side.name, line.figure) for side in (FENNELQ, FLOOR))
    return Judged(row.name, line.on(plan.engine), FENNELQ in plan.contestants, ours, floor)


def failed(judged: Sequence[Judged]) -> Sequence[Judged]:
    """The lines that keep a run from passing: a bar missed, or not measured."""
    return [line for line in judged if line.verdict in ("FAIL", "missing")]


def table_of(judged: Sequence[Judged]) -> str:
    return _aligned([HEADINGS, *(line.cells() for line in judged)], left={0, 1, 5, 6, 7})


def peers_table_of(plan: Plan, measured: Measured) -> str:
    """All contestants side by side in the rows that are open to peers."""
    names = [contestant.name for contestant in plan.contestants]
    rows = [row for row in plan.rows if row.with_peers]
    lines = [_peer_cells(row, line, names, measured) for row in rows for line in row.lines]
    return _aligned([("row", "unit", *names, "fennelq / best peer"), *lines], left={0, 1})


def _peer_cells(row: Row, line: Line, names: Sequence[str], measured: Measured) -> tuple[str, ...]:
    series = {name: measured.series(row.name, name, line.figure) for name in names}
    shown = (_shown(series[name], line.digits, spread=False) for name in names)
    return (line.label, line.unit, *shown, _against_best_peer(line, series))


def _against_best_peer(line: Line, series: dict[str, Series | None]) -> str:
    own = series.get(FENNELQ.name)
    peers = [one.median for name, one in series.items() if one and name not in (FENNELQ.name, FLOOR.name)]
    if not own or not peers:
        return ""
    return f"{own.median / (max(peers) if line.unit == 'jobs/s' else min(peers)):.2f}"


def _shown(series: Series | None, digits: int, spread: bool = True) -> str:
    if series is None:
        return "-"
    low, high = series.spread
    around = f" ({low:,.{digits}f}..{high:,.{digits}f})" if spread and len(series.values) > 1 else ""
    return f"{series.median:,.{digits}f}{around}"


def _aligned(rows: Sequence[Sequence[str]], left: set[int]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(_padded(row, widths, left)).rstrip() for row in _underlined(rows, widths))


def _underlined(rows: Sequence[Sequence[str]], widths: Sequence[int]) -> Iterator[Sequence[str]]:
    yield rows[0]
    yield ["-" * width for width in widths]
    yield from rows[1:]


def _padded(row: Sequence[str], widths: Sequence[int], left: set[int]) -> Iterator[str]:
    for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
        yield cell.ljust(width) if column in left else cell.rjust(width)
