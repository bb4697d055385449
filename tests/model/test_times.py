"""Distributions of durations: what their percentiles are, and how they are shown."""

from __future__ import annotations

import pytest

from fennelq.model.times import BOUNDS, BUCKETS, Times, added, rounded, shown


def times(**counts: int) -> Times:
    """Buckets by number: `times(b3=10)`."""
    return Times(tuple(counts.get(f"b{bucket}", 0) for bucket in range(BUCKETS)))


def test_the_buckets_are_those_of_every_version() -> None:
    """Executors of different versions count into the same buckets: another bound needs other names of fields."""
    milliseconds = (1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000)
    longer = (10, 30, 60, 300, 900, 3600)
    assert [*BOUNDS] == [*(bound / 1000 for bound in milliseconds), *longer]


@pytest.mark.parametrize(
    ("counted", "percent", "expected"),
    [
        (times(), 50, None),
        (times(b0=10), 50, 0.0005),
        (times(b0=10), 100, 0.001),
        (times(b3=10), 50, 0.0075),
        (times(b3=50, b6=50), 50, 0.01),
        (times(b3=50, b6=50), 95, 0.095),
        (times(b3=95, b9=5), 95, 0.01),
        (times(b3=94, b9=6), 95, pytest.approx(0.5 + 0.5 / 6)),
        (times(b1=1), 0, 0.001),
        (times(b18=1), 50, 3600.0),
        (times(b0=1, b18=99), 99, 3600.0),
    ],
)
def test_a_percentile_is_interpolated_within_its_bucket(
    counted: Times, percent: float, expected: float | None
) -> None:
    assert counted.percentile(percent) == expected


def test_the_counts_of_many_executors_are_added() -> None:
    together = added([times(b3=4).counts, times(b3=1, b5=5).counts])
    assert together == times(b3=5, b5=5)
    assert (together.count, together.p50) == (10, 0.01)
    assert together.p95 == pytest.approx(0.0475)
    assert added([]) == times()


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0.0 ms"),
        (0.00034, "0.3 ms"),
        (0.0123, "12 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (9.94, "9.9 s"),
        (9.95, "10 s"),
        (75, "75 s"),
        (99.5, "1.7 min"),
        (3599.0, "60 min"),
        (3600.0, "≥ 1 h"),
        (None, None),
        (-1.0, None),
        (float("nan"), None),
        (float("inf"), None),
        ("nonsense", None),
    ],
)
def test_a_duration_is_shown_with_two_digits(seconds: object, words: str | None) -> None:
    assert shown(seconds) == words


def test_two_digits_are_reported() -> None:
    assert [rounded(seconds) for seconds in (0.0012345, 123.4, 0.0, None)] == [0.0012, 120.0, 0.0, None]
