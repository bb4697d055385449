"""Drawings: their SVG is in the templates, and here are the numbers in it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final, NamedTuple

from fennelq.web import words
from fennelq.web.series import Counts, last_minute

_STEPS: Final = (1, 2, 2.5, 5, 10)
WIDTH: Final = 760
_LEFT, _TOP, _BOTTOM = 38, 12, 154
_SPARK: Final = 16
"""Pixels between the highest and the lowest point of a small line."""
_MARKS: Final = 5
"""Moments below a chart."""


class Grid(NamedTuple):
    """A horizontal line of a chart."""

    y: str
    label: str


class Chart(NamedTuple):
    """The runs of some time as bars. Each path has the bars of one outcome."""

    unit: str
    """`per second` or `per minute`."""
    ok: str
    retry: str
    dead: str
    grid: list[Grid]
    label: str
    """The chart in words."""
    marks: list[datetime]


def spark(values: Sequence[float]) -> str:
    """The path of a small line, one point every three pixels; empty when there is nothing to see."""
    top = max(values, default=0)
    if len(values) < 2 or not top:
        return ""
    heights = [2 + _SPARK - round(_SPARK * value / top) for value in values]
    return f"M0 {heights[0]}{''.join(_moves(heights))}"


def _moves(heights: Iterable[int]) -> Iterable[str]:
    """Short relative lines: there is a small line in each of fifty rows of a page."""
    flat = 0
    for before, after in pairwise(heights):
        if before == after:
            flat += 3
            continue
        if flat:
            yield f"h{flat}"
        flat = 0
        yield f"l3{after - before:+}".replace("+", " ")
    if flat:
        yield f"h{flat}"


def chart(counts: Sequence[Counts], at: float, minutes: int) -> Chart:
    """The runs in slots of so many minutes, which end before the moment `at`."""
    most = max((sum(one) for one in counts), default=0)
    seconds = 1 if most >= minutes * 60 else 60
    each = minutes * 60 / seconds
    grid = scale(most / each)
    top = grid[-1]
    paths = {"ok": "", "retry": "", "dead": ""}
    step = (WIDTH - _LEFT) / max(1, len(counts))
    for place, one in enumerate(counts):
        x, below = round(_LEFT + place * step, 1), 0.0
        for kind, count in one._asdict().items():
            if count:
                low, high = _y(below, top), _y(below + count / each, top)
                paths[kind] += (
                    f"M{x:g} {low:g}v{min(-0.5, high - low):.1f}h{step - max(0.6, step / 6):.1f}V{low:g}"
                )
            below += count / each
    end = last_minute(at) * 60
    begin = end - len(counts) * minutes * 60
    return Chart(
        unit="per second" if seconds == 1 else "per minute",
        **paths,
        grid=[Grid(f"{_y(value, top):g}", _short(value)) for value in grid],
        label=_in_words(counts, minutes),
        marks=[
            datetime.fromtimestamp(begin + (end - begin) * place / (_MARKS - 1), UTC)
            for place in range(_MARKS)
        ],
    )


def scale(top: float) -> list[float]:
    """Three or four round numbers from 0 to at least `top`."""
    if top <= 0:
        return [0, 1]
    rough = top / 3
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * one for one in _STEPS if size * one >= rough * 0.9999)
    return [step * place for place in range(math.ceil(round(top / step, 6)) + 1)]


def part(value: float | None, of: float | None, width: int) -> int:
    """So many of `width` pixels; at least two when there is something to see."""
    if not value or not of:
        return 0
    return max(2, min(width, round(width * value / of)))


def _y(value: float, top: float) -> float:
    return round(_BOTTOM - (_BOTTOM - _TOP) * value / top, 1)


def _short(value: float) -> str:
    for size, name in ((1_000_000, "M"), (10_000, "k")):
        if value >= size:
            return f"{value / (1000 if name == 'k' else size):g} {name}"
    return f"{value:,g}" if value < 1000 else f"{value:,.0f}"


def _in_words(counts: Sequence[Counts], minutes: int) -> str:
    ok, retry, dead = (sum(one[place] for one in counts) for place in range(3))
    whole = words.duration(len(counts) * minutes * 60)
    return f"The runs of the last {whole}: {ok:,} succeeded, {retry:,} failed and are retried, {dead:,} died"
