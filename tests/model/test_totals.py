"""Totals: what a process has counted, and how an executor sends it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from fennelq.model import totals
from fennelq.model.exposition import Page
from fennelq.model.times import BUCKETS
from fennelq.model.totals import (
    RUN_NUMBERS,
    Bounds,
    Message,
    Row,
    Totals,
    Unreadable,
    from_line,
    row_of_runs,
    show_rows,
    sum_of,
    to_line,
)

WELCOME, RESIZE = ("mail", "shop:welcome"), ("mail", "shop:resize")


def row(successes: float = 1, seconds: float = 0.5) -> Row:
    """Runs of half a second that succeed."""
    runs = [0.0] * BUCKETS
    runs[8] = successes
    return row_of_runs([successes, 0, 0, 0, 0, 0, 0], [*runs, successes * seconds], [*runs, 0])


def test_what_is_kept_and_what_is_being_counted_are_added() -> None:
    found = Totals()
    found.keep([(WELCOME, row(2)), (RESIZE, row(1))])
    found.keep([(WELCOME, row(3))])
    assert found.rows([(WELCOME, row(4))]) == {WELCOME: row(9), RESIZE: row(1)}
    assert found.rows() == {WELCOME: row(5), RESIZE: row(1)}


def test_only_rows_that_have_changed_are_sent_again() -> None:
    found = Totals()
    assert found.changes([(WELCOME, row(2)), (RESIZE, row(1))]) == {WELCOME: row(2), RESIZE: row(1)}
    assert found.changes([(WELCOME, row(3)), (RESIZE, row(1))]) == {WELCOME: row(3)}
    found.keep([(WELCOME, row(4)), (RESIZE, row(1))])
    assert found.changes() == {WELCOME: row(4)}
    assert found.changes() == {}
    assert found.changes([(RESIZE, row(1))]) == {RESIZE: row(2)}


def test_a_row_that_goes_on_counting_is_copied() -> None:
    found, counting = Totals(), row(2)
    before = found.changes([(WELCOME, counting)])
    counting[0] += 1
    assert before != found.changes([(WELCOME, counting)]) != {}


def test_600_tasks_are_500_and_other_and_no_count_falls_when_more_come() -> None:
    bounds = Bounds()
    pairs = {("mail", f"shop:task_{n}"): row() for n in range(600)}
    first = sum_of([pairs], bounds)
    assert first == {("mail", f"shop:task_{n}"): row() for n in range(500)} | {("mail", "other"): row(100)}
    more = {("aaa", "shop:task_599"): row(), ("mail", "shop:task_3"): row(), ("mail", "other"): row()}
    assert sum_of([more, pairs], bounds) == first | {
        ("aaa", "other"): row(),
        ("mail", "shop:task_3"): row(2),
        ("mail", "other"): row(101),
    }


def test_beyond_the_most_rows_queue_and_task_are_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(totals, "MOST_ROWS", 2)
    rows = {(f"q{n}", "shop:welcome"): row() for n in range(5)}
    assert sum_of([rows], Bounds()) == {
        ("q0", "shop:welcome"): row(),
        ("q1", "shop:welcome"): row(),
        ("other", "other"): row(3),
    }


def test_by_queue_the_tasks_are_not_told_apart() -> None:
    found = Totals(by_task=False)
    found.keep([(WELCOME, row()), (RESIZE, row(2))])
    assert found.rows() == {("mail", ""): row(3)}
    page = Page()
    show_rows(page, found.rows(), {})
    assert 'fennelq_runs_total{queue="mail",outcome="success"} 3' in page.text()
    assert "task=" not in page.text()


def test_a_row_is_shown_as_outcomes_and_two_histograms() -> None:
    page = Page()
    show_rows(page, {WELCOME: row(3)}, {WELCOME: [4, 3, 2, 1]})
    for line in (
        'fennelq_runs_total{queue="mail",task="shop:welcome",outcome="success"} 3',
        'fennelq_runs_total{queue="mail",task="shop:welcome",outcome="lost"} 0',
        'fennelq_run_duration_seconds_bucket{queue="mail",task="shop:welcome",le="0.25"} 0',
        'fennelq_run_duration_seconds_bucket{queue="mail",task="shop:welcome",le="0.5"} 3',
        'fennelq_run_duration_seconds_sum{queue="mail",task="shop:welcome"} 1.5',
        'fennelq_wait_duration_seconds_sum{queue="mail",task="shop:welcome"} 0',
        'fennelq_sent_total{queue="mail",task="shop:welcome",outcome="created"} 4',
        'fennelq_sent_total{queue="mail",task="shop:welcome",outcome="unavailable"} 1',
    ):
        assert line in page.text().splitlines()


def test_a_message_arrives_as_it_was_sent() -> None:
    message = Message({WELCOME: row(3)}, {RESIZE: [1, 0, 0, 2]}, {"leases_lost": 1}, {"slots": 32})
    assert from_line(to_line(message)) == message
    assert to_line(message).endswith(b"\n")


GOOD: dict[str, Any] = {"v": 1, "runs": [], "sent": [], "counters": {}, "gauges": {}}


WRONG: list[Any] = [
    b"",
    b"\xff\x00",
    b"[]",
    b"{}",
    GOOD | {"v": 2},
    GOOD | {"runs": {}},
    GOOD | {"runs": [["mail", "shop:welcome"]]},
    GOOD | {"runs": [["mail", 7, [0] * RUN_NUMBERS]]},
    GOOD | {"runs": [["mail", "shop:welcome", [0] * (RUN_NUMBERS - 1)]]},
    GOOD | {"runs": [["mail", "shop:welcome", [-1] * RUN_NUMBERS]]},
    GOOD | {"runs": [["mail", "shop:welcome", ["1"] * RUN_NUMBERS]]},
    GOOD | {"sent": [["mail", "shop:welcome", [True, 0, 0, 0]]]},
    GOOD | {"sent": [["mail", "shop:welcome", [2.0**60, 0, 0, 0]]]},
    GOOD | {"counters": []},
    GOOD | {"counters": {"leases_lost": None}},
    GOOD | {"gauges": {str(n): 1 for n in range(51)}},
]


@pytest.mark.parametrize("wrong", WRONG)
def test_what_no_executor_has_sent_is_refused(wrong: object) -> None:
    with pytest.raises(Unreadable):
        from_line(wrong if isinstance(wrong, bytes) else orjson.dumps(wrong))
