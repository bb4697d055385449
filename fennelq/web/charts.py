"""The charts of runs that several pages show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from fennelq.web.drawing import Chart, chart
from fennelq.web.looks import Look
from fennelq.web.visit import Visit, link

_SPANS: Final[Mapping[str, tuple[str, int, int, int]]] = {
    "": ("1 h", 2, 60, 1),
    "6": ("6 h", 7, 72, 5),
    "24": ("24 h", 25, 96, 15),
}
"""Hours in the query → label, hours to read, slots, minutes of a slot."""


class Span(NamedTuple):
    """A link to the chart of another time."""

    label: str
    to: str
    is_shown: bool


class Drawn(NamedTuple):
    """A chart, and the links around it."""

    chart: Chart
    spans: list[Span]
    unread: int
    """The queues that are missing in it until they are read."""


async def chart_of(visit: Visit, look: Look, queues: Sequence[str]) -> Drawn:
    """The runs of these queues together, within the time that the query asks for."""
    wanted = visit.query.get("hours", "")
    _, hours, slots, minutes = _SPANS.get(wanted, _SPANS[""])
    unread = await look.series.read(look, queues, hours)
    at = look.at.timestamp()
    counts = look.series.runs(queues, at, slots, minutes)
    here = visit.path.strip("/").split("/") if visit.path != "/" else []
    spans = [
        Span(label, link(*here, hours=span) or "./", span == (wanted if wanted in _SPANS else ""))
        for span, (label, *_) in _SPANS.items()
    ]
    return Drawn(chart(counts, at, minutes), spans, unread)
