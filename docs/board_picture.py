"""Draws some panels of the board as an SVG, from the answers of a Prometheus to the board's own queries.

    python docs/board_picture.py http://127.0.0.1:9090 60 > docs/guides/metrics-board.svg

The second argument is the number of seconds up to now that are drawn.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final, NamedTuple

BOARD: Final = Path(__file__).parent / "operate" / "fennelq-board.json"
PANELS: Final = (
    "Runs per second, by outcome",
    "Jobs, by state",
    "Sent per second, by outcome",
    "Wait time",
    "Run time",
    "Loop lag",
)
WIDTH, HEIGHT, GAP, LEFT, LEGEND = 300, 190, 16, 44, 34
COLOURS: Final = ("#2f7ed8", "#8bbc21", "#f28f43", "#c42525", "#77a1e5", "#a6c96a", "#492970")
UNITS: Final = {"s": "s", "ops": "/s"}


class Series(NamedTuple):
    """A line."""

    name: str
    points: Sequence[tuple[float, float]]


def main(server: str, seconds: float) -> None:
    """Print the picture."""
    panels = {panel["title"]: panel for panel in json.loads(BOARD.read_text("utf-8"))["panels"]}
    end = time.time()
    drawn = [
        f'<g transform="translate({GAP + place % 3 * (WIDTH + GAP)},{GAP + place // 3 * (HEIGHT + GAP)})">'
        f"{drawing(panels[title], server, end - seconds, end)}</g>"
        for place, title in enumerate(PANELS)
    ]
    width, height = 3 * (WIDTH + GAP) + GAP, 2 * (HEIGHT + GAP) + GAP
    print(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">'
        f'<rect width="{width}" height="{height}" fill="#f4f5f5"/>{"".join(drawn)}</svg>'
    )


def drawing(panel: Any, server: str, begin: float, end: float) -> str:
    """One panel."""
    lines = [line for target in panel["targets"] for line in answer(server, target, begin, end)]
    top = max((value for line in lines for _, value in line.points), default=0) or 1
    unit = UNITS.get(panel["fieldConfig"]["defaults"]["unit"], "")
    plot_height = HEIGHT - LEGEND - 40

    def at(moment: float, value: float) -> str:
        x = LEFT + (moment - begin) / (end - begin) * (WIDTH - LEFT - 10)
        return f"{x:.1f},{30 + plot_height * (1 - value / top):.1f}"

    parts = [
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="3" fill="#fff" stroke="#d8d9da"/>',
        f'<text x="10" y="18" font-size="12" font-weight="bold" fill="#24292e">{escape(panel["title"])}</text>',
    ]
    for part in (0, 0.5, 1):
        y = 30 + plot_height * (1 - part)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - 10}" stroke="#e5e6e7"/>')
        parts.append(
            f'<text x="{LEFT - 4}" y="{y + 3:.1f}" font-size="9" text-anchor="end" fill="#52585e">'
            f"{top * part:.3g}{unit}</text>"
        )
    for number, line in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(at(*point) for point in line.points)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.3"/>')
        x, y = 10 + number % 4 * 72, HEIGHT - LEGEND + 14 + number // 4 * 13
        parts.append(f'<rect x="{x}" y="{y - 7}" width="8" height="3" fill="{colour}"/>')
        parts.append(
            f'<text x="{x + 11}" y="{y - 3}" font-size="9" fill="#52585e">{escape(line.name)}</text>'
        )
    return "".join(parts)


def answer(server: str, target: Any, begin: float, end: float) -> Iterator[Series]:
    """The lines of a query; those that are 0 all the time are left out."""
    query = target["expr"].replace("$__rate_interval", "5s").replace("$queue", ".*")
    words = urllib.parse.urlencode({"query": query, "start": begin, "end": end, "step": 1})
    with urllib.request.urlopen(f"{server}/api/v1/query_range?{words}") as reply:
        found = json.load(reply)["data"]["result"]
    for one in found:
        points = [(float(at), float(value)) for at, value in one["values"] if value != "NaN"]
        name = target["legendFormat"]
        for label, value in one["metric"].items():
            name = name.replace(f"{{{{{label}}}}}", value)
        if any(value for _, value in points):
            yield Series(name, points)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
