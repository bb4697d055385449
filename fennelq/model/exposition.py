"""The text format of Prometheus, version 0.0.4: the page that a scrape gets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

from fennelq.model.metrics import Metric
from fennelq.model.times import BOUNDS

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_LIMITS: Final = tuple(f'le="{bound:g}"' for bound in BOUNDS)
_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_ESCAPES_OF_HELP: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})

Label = str | None
"""The value of a label. None leaves the label out."""


class Page:
    """A page of metrics. All samples of a metric stand together, after its help and its type."""

    def __init__(self) -> None:
        self._lines: dict[Metric, list[str]] = {}

    def add(self, metric: Metric, value: float, *labels: Label) -> None:
        """Add a sample, with the values of the metric's labels."""
        self._of(metric).append(f"{metric.name}{_in_braces(_pairs(metric, labels))} {_number(value)}")

    def add_each(self, metric: Metric, values: Iterable[float], *labels: Label) -> None:
        """Add a sample for each value of the last label."""
        for last, value in zip(metric.values, values, strict=True):
            self.add(metric, value, *labels, last)

    def add_histogram(self, metric: Metric, counts: Sequence[float], seconds: float, *labels: Label) -> None:
        """Add a histogram: how many durations each bucket has, and the sum of all durations."""
        lines, pairs = self._of(metric), _pairs(metric, labels)
        *upper, every = accumulate(map(int, counts))
        begin = f"{metric.name}_bucket{{{','.join([*pairs, ''])}"
        lines += [f"{begin}{limit}}} {number}" for limit, number in zip(_LIMITS, upper, strict=True)]
        lines.append(f'{begin}le="+Inf"}} {every}')
        lines.append(f"{metric.name}_sum{_in_braces(pairs)} {_number(seconds)}")
        lines.append(f"{metric.name}_count{_in_braces(pairs)} {every}")

    def text(self) -> str:
        """The page as text."""
        return "".join(f"{line}\n" for lines in self._lines.values() for line in lines)

    def encoded(self) -> bytes:
        """The page as bytes. A surrogate, which UTF-8 does not have, is escaped."""
        return self.text().encode("utf-8", "backslashreplace")

    def _of(self, metric: Metric) -> list[str]:
        lines = self._lines.get(metric)
        if lines is None:
            described = f"# HELP {metric.name} {metric.help.translate(_ESCAPES_OF_HELP)}"
            lines = self._lines[metric] = [described, f"# TYPE {metric.name} {metric.kind}"]
        return lines


def _pairs(metric: Metric, values: Sequence[Label]) -> list[str]:
    return [
        f'{name}="{value.translate(_ESCAPES)}"'
        for name, value in zip(metric.labels, values, strict=True)
        if value is not None
    ]


def _in_braces(pairs: Sequence[str]) -> str:
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _number(value: float) -> str:
    return repr(value) if isinstance(value, int) else f"{value:.15g}"
