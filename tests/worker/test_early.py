"""Requests to stop a run that the executor does not hold yet are kept for a while."""

from __future__ import annotations

import pytest

from fennelq.worker.running.early import EarlyRequests


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of this process, which stands until a test moves it."""
    moment = [1000.0]
    monkeypatch.setattr("fennelq.clock.monotonic", lambda: moment[0])
    return moment


def token(number: int) -> tuple[str, str, str]:
    return ("mail", "s", f"{number}-0")


def test_a_request_is_taken_once() -> None:
    early = EarlyRequests()
    early.add(token(1), "why")
    early.add(token(2), "other")
    assert early.take(token(3)) is None
    assert (early.take(token(1)), early.take(token(1))) == ("why", None)
    assert (early.take(token(2)), early.by_token) == ("other", {})


def test_a_request_is_kept_for_ten_seconds(now: list[float]) -> None:
    early = EarlyRequests()
    early.add(token(1), "first")
    now[0] += 5
    early.add(token(2), "second")
    now[0] += 4.9
    assert early.take(token(1)) == "first"
    early.add(token(1), "again")
    now[0] += 5.1
    assert early.take(token(2)) is None
    assert early.take(token(1)) == "again"
    early.add(token(4), "never taken")
    now[0] += 10
    assert (early.take(token(5)), early.by_token) == (None, {})


def test_a_request_that_is_repeated_is_kept_for_longer(now: list[float]) -> None:
    early = EarlyRequests()
    early.add(token(1), "why")
    early.add(token(2), "other")
    now[0] += 6
    early.add(token(1), "why")
    now[0] += 6
    assert [early.take(token(1)), early.take(token(2))] == ["why", None]


def test_at_most_a_thousand_are_kept_and_the_oldest_is_dropped() -> None:
    early = EarlyRequests()
    for number in range(1500):
        early.add(token(number), f"{number}")
    assert len(early.by_token) == 1000
    assert [early.take(token(number)) for number in (499, 500, 1499)] == [None, "500", "1499"]
