"""Distributions of durations: how many fell into each bucket, and the percentiles that follow from that.

All executors count into the same buckets, so the counts of many executors and minutes can be added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

BOUNDS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0),
)
"""The longest duration of each bucket, in seconds. One more bucket has the durations above the last bound."""
_UNITS: Final = ((0.9995, 0.001, "ms"), (99.5, 1.0, "s"), (math.inf, 60.0, "min"))
BUCKETS: Final = len(BOUNDS) + 1


@dataclass(frozen=True, slots=True)
class Times:
    """The distribution of many durations."""

    counts: tuple[int, ...]
    """How many durations fell into each bucket. Bucket `n` has those up to `fennelq.model.times.BOUNDS[n]` seconds; the
    last bucket has those above an hour."""

    @property
    def count(self) -> int:
        """The number of durations."""
        return sum(self.counts)

    @property
    def p50(self) -> float | None:
        """The median in seconds: half of the durations were not longer. None without durations."""
        return self.percentile(50)

    @property
    def p95(self) -> float | None:
        """19 of 20 durations were not longer than this, in seconds. None without durations."""
        return self.percentile(95)

    def percentile(self, percent: float) -> float | None:
        """So many percent of the durations were not longer than this, in seconds; None without durations.

        It is interpolated within a bucket, so its error is at most the width of the bucket. A percentile in the last
        bucket is 3600.0.
        """
        rank = self.count * percent / 100
        below = 0
        for bucket, total in enumerate(accumulate(self.counts)):
            if total and total >= rank:
                return _within(bucket, (rank - below) / max(1, self.counts[bucket]))
            below = total
        return None


def _within(bucket: int, part: float) -> float:
    """The duration at this part of a bucket, where 0 is its beginning and 1 its end."""
    if bucket == len(BOUNDS):
        return BOUNDS[-1]
    lower = BOUNDS[bucket - 1] if bucket else 0.0
    return lower + (BOUNDS[bucket] - lower) * part


def added(many: Sequence[Sequence[int]]) -> Times:
    """The times of several counts together."""
    return Times(tuple(map(sum, zip(*many, strict=True)))) if many else Times((0,) * BUCKETS)


def shown(seconds: object) -> str | None:
    """A duration for people: `0.3 ms`, `12 ms`, `3.1 s`, `15 min`, `≥ 1 h`; None when it is not a duration."""
    if not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        return None
    if seconds >= BOUNDS[-1]:
        return "≥ 1 h"
    length, unit = next((seconds / size, unit) for below, size, unit in _UNITS if seconds < below)
    return f"{length:.0f} {unit}" if length >= 9.95 else f"{length:.1f} {unit}"


def rounded(seconds: float | None) -> float | None:
    """The value with two digits. The estimate is not more precise than that."""
    return None if seconds is None else float(f"{seconds:.2g}")
