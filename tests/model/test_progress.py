"""Progress: what a task may report, and what of it counts as news."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pytest

from fennelq import Progress, UsageError
from fennelq.model.progress import LONGEST_NOTE, Newest, Reported, checked, from_wire, shown, to_wire


class Count:
    """A number of another library, such as numpy's."""

    def __index__(self) -> int:
        return 7


class Share(float):
    """The same for parts."""


@pytest.mark.parametrize(
    ("given", "progress"),
    [
        ((3,), Progress(3)),
        ((0, 0), Progress(0, 0)),
        ((10, 10, "rows"), Progress(10, 10, "rows")),
        ((0.25, 1), Progress(0.25, 1)),
        ((Count(), Count()), Progress(7, 7)),
        ((Share(0.5), None, "n" * LONGEST_NOTE), Progress(0.5, None, "n" * LONGEST_NOTE)),
        ((2**62, 2**62, "é 日本 \n"), Progress(2**62, 2**62, "é 日本 \n")),
    ],
)
def test_progress_arrives_as_it_was_reported(given: tuple[Any, ...], progress: Progress) -> None:
    found = checked(*given)
    assert found == progress
    assert (type(found.done), type(found.total)) in {
        (int, int),
        (int, type(None)),
        (float, int),
        (float, type(None)),
    }
    assert from_wire(to_wire(4, 2, found)) == Reported((4, 2), progress)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ((-1,), "done is -1"),
        ((-0.5, 1), r"done is -0\.5"),
        ((1, -1), "total is -1"),
        ((11, 10), "done is 11, which is more than the total 10"),
        ((math.nan,), "done is nan"),
        ((1, math.nan), "total is nan"),
        ((math.inf,), "done is inf"),
        ((1, math.inf), "total is inf"),
        ((2**63,), "must be a number from 0"),
        ((1, 2, "n" * 201), "201 characters, and may have 200"),
        ((1, 2, "\ud800"), "cannot be written as UTF-8"),
    ],
)
def test_progress_that_makes_no_sense_is_a_value_error(given: tuple[Any, ...], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        checked(*given)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (("3",), "done is a number, not a str object"),
        ((None,), "done is a number, not None"),
        ((Decimal(3), 10), "done is a number, not a Decimal object"),
        ((3, "10"), "total is a number, not a str object"),
        ((3, 10, None), "note of progress is a string, not None"),
        ((3, 10, b"rows"), "note of progress is a string, not a bytes object"),
    ],
)
def test_a_value_of_the_wrong_kind_is_a_usage_error(given: tuple[Any, ...], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        checked(*given)


@pytest.mark.parametrize(
    ("progress", "fraction"),
    [(Progress(3), None), (Progress(0, 4), 0.0), (Progress(3, 4), 0.75), (Progress(0, 0), 1.0)],
)
def test_the_fraction_is_known_with_a_total(progress: Progress, fraction: float | None) -> None:
    assert progress.fraction == fraction


@pytest.mark.parametrize(
    "text",
    [
        None,
        b"",
        b"nonsense",
        b"{}",
        b"[]",
        b"[1,2]",
        b'[1,1,"x",2,""]',
        b'[1,1,-1,2,""]',
        b"17",
        b'[1,null,1,2,""]',
    ],
)
def test_what_this_version_cannot_read_is_no_progress(text: bytes | None) -> None:
    assert from_wire(text) is None
    assert shown((text or b"").decode()) is None


def test_what_a_later_version_adds_is_not_looked_at() -> None:
    assert shown('[1,1,1,2,"",{"later":true}]') == Progress(1, 2)


def reported(start: int, number: int, done: int) -> Reported:
    return Reported((start, number), Progress(done))


def test_a_reader_gets_what_is_newer_and_says_something_else() -> None:
    newest = Newest()
    reports = [
        (None, None),
        (reported(1, 1, 3), 3),
        (reported(1, 1, 3), None),
        (reported(1, 3, 5), 5),
        (reported(1, 2, 4), None),
        (reported(1, 4, 5), None),
        (reported(2, 1, 1), 1),
        (reported(1, 9, 9), None),
    ]
    for report, done in reports:
        assert newest.news_in(report) == (None if done is None else Progress(done))
