"""Asking whether another executor has swept a queue, so that this one need not."""

from __future__ import annotations

import pytest

from fennelq.broker import verbs
from fennelq.broker.trouble import ReplyError
from tests.broker.desk import LEASE_MS, LIFETIMES, Desk, a_job

pytestmark = pytest.mark.both_servers

LONGEST = 60_000


def is_swept(desk: Desk) -> bool:
    before = desk.everything()
    swept = desk.do(verbs.runs.swept, LONGEST)
    assert desk.everything() == before
    return swept


def mark(desk: Desk, value: str, ttl: int) -> None:
    desk.redis.set(desk.keys["swept"], value, px=ttl)


def test_a_queue_that_no_executor_has_swept_in_this_interval_is_due(desk: Desk) -> None:
    assert not is_swept(desk)


def test_a_queue_that_an_executor_has_swept_is_not_due(desk: Desk) -> None:
    desk.do(
        verbs.runs.recover,
        LIFETIMES,
        lease_ms=LEASE_MS,
        interval_ms=LONGEST,
        max_deliveries=4,
        beaten_ms=desk.now(),
    )
    assert is_swept(desk)


def test_the_mark_of_a_version_before_lines_counts_for_nothing(desk: Desk) -> None:
    mark(desk, "1", LONGEST)
    assert not is_swept(desk)


def test_a_mark_that_stays_longer_than_any_interval_counts_for_nothing(desk: Desk) -> None:
    mark(desk, "2", 10 * LONGEST)
    assert not is_swept(desk)
    mark(desk, "2", LONGEST)
    assert is_swept(desk)


def test_a_queue_with_jobs_in_quarantine_is_due(desk: Desk) -> None:
    (delivery,) = desk.executing(a_job())
    desk.redelivered(delivery.key, 2)
    desk.take()
    desk.silence()
    desk.recover()
    mark(desk, "2", LONGEST)
    assert not is_swept(desk)


@pytest.mark.audit(skip="a key is of a wrong type")
def test_a_mark_of_a_wrong_type_is_an_error(desk: Desk) -> None:
    desk.redis.hset(desk.keys["swept"], "x", "y")
    with pytest.raises(ReplyError, match="WRONGTYPE"):
        desk.do(verbs.runs.swept, LONGEST)
