"""Samples, what is shown of them, and what they are held against."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from statistics import median

from benchmarks.server import Engine


@dataclass(frozen=True)
class Sample:
    """One measurement of one contestant: named figures, and the raw numbers behind them if there are any."""

    figures: dict[str, float]
    raw: dict[str, list[float]] = field(default_factory=dict[str, list[float]])


@dataclass(frozen=True)
class Series:
    """The same figure from every repeat."""

    values: Sequence[float]

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def spread(self) -> tuple[float, float]:
        return min(self.values), max(self.values)


class Bar(ABC):
    """A limit on fennelq's median, with the floor's median of the same run beside it."""

    needs_floor = False

    @abstractmethod
    def met(self, figure: float, floor: float) -> bool: ...

    def on(self, engine: Engine) -> Bar:
        """The bar on this server."""
        return self


@dataclass(frozen=True)
class AtLeast(Bar):
    limit: float

    def met(self, figure: float, floor: float) -> bool:
        return figure >= self.limit

    def __str__(self) -> str:
        return f">= {self.limit:,g}"


@dataclass(frozen=True)
class AtMost(Bar):
    limit: float

    def met(self, figure: float, floor: float) -> bool:
        return figure <= self.limit

    def __str__(self) -> str:
        return f"<= {self.limit:,g}"


@dataclass(frozen=True)
class ByServer(Bar):
    """A limit that depends on the server. `on` returns the one that a run is judged by."""

    valkey: Bar
    redis: Bar

    def on(self, engine: Engine) -> Bar:
        return self.valkey if engine == "valkey" else self.redis

    def met(self, figure: float, floor: float) -> bool:
        return self.valkey.met(figure, floor) and self.redis.met(figure, floor)


@dataclass(frozen=True)
class Within(Bar):
    limit: float

    def met(self, figure: float, floor: float) -> bool:
        return abs(figure) <= self.limit

    def __str__(self) -> str:
        return f"+- {self.limit:,g}"


@dataclass(frozen=True)
class AtLeastOfFloor(Bar):
    share: float
    needs_floor = True

    def met(self, figure: float, floor: float) -> bool:
        return figure >= self.share * floor

    def __str__(self) -> str:
        return f">= {self.share:g} x floor"


@dataclass(frozen=True)
class AtMostOfFloor(Bar):
    share: float
    needs_floor = True

    def met(self, figure: float, floor: float) -> bool:
        return figure <= self.share * floor

    def __str__(self) -> str:
        return f"<= {self.share:g} x floor"


@dataclass(frozen=True)
class Line:
    """One line of the table: a figure of a row, its unit, its bar and the figure to dream of."""

    label: str
    figure: str
    unit: str
    bar: Bar | None = None
    stretch: Bar | None = None
    digits: int = 0

    def on(self, engine: Engine) -> Line:
        """The line with the bar of this server."""
        return replace(self, bar=self.bar.on(engine)) if self.bar else self


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of all are not above."""
    ranked = sorted(values)
    return ranked[max(0, ceil(share * len(ranked)) - 1)]
