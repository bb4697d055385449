"""close: an executor leaves."""

from __future__ import annotations

import pytest

from fennelq.broker import verbs
from tests.broker.desk import READ, Desk, a_job
from tests.kit.server import Server

pytestmark = pytest.mark.both_servers


def test_its_consumers_are_gone_from_every_lane(desk: Desk) -> None:
    desk.enqueue(a_job("1"), a_job("2", priority="high"), a_job("3", priority="low"))
    desk.finish(desk.take("anna"))
    assert desk.do(verbs.executors.close_consumer, "anna") == 3
    assert [desk.consumers(lane) for lane in ("s:high", "s", "s:low")] == [set()] * 3


def test_the_consumers_of_others_stay(desk: Desk) -> None:
    for name in ("anna", "berta"):
        desk.enqueue(a_job(name))
        desk.finish(desk.take(name))
    desk.do(verbs.executors.close_consumer, "anna")
    assert desk.consumers() == {"berta"}


@pytest.mark.audit(unfinished=True)
def test_a_consumer_that_still_holds_an_entry_stays_and_loses_nothing(desk: Desk) -> None:
    desk.enqueue(a_job("1"), a_job("2", priority="low"))
    first, second = desk.take("anna")
    desk.finish([second])
    assert desk.do(verbs.executors.close_consumer, "anna") == 1
    assert desk.consumers("s") == {"anna"}
    assert desk.consumers("s:low") == set()
    assert desk.finish([first]) == [1]


def test_an_unknown_consumer_may_be_closed(desk: Desk) -> None:
    assert desk.do(verbs.executors.close_consumer, "unknown") == 0
    assert desk.consumers() == set()


def test_a_queue_without_groups_has_no_consumer_to_close(desk: Desk) -> None:
    desk.enqueue(a_job())
    assert desk.do(verbs.executors.close_consumer, "anna") == 0


def test_over_maxmemory_a_consumer_can_be_closed(desk: Desk, server: Server) -> None:
    desk.finish(desk.executing())
    with server.configured(maxmemory="1"):
        desk.do(verbs.executors.close_consumer, "anna")
    assert desk.consumers() == set()


def test_its_name_is_gone_from_the_executors_that_sleep(desk: Desk) -> None:
    for lane in ("", *READ):
        desk.sleep("anna", "berta", lane=lane)
    desk.do(verbs.executors.close_consumer, "anna")
    assert [desk.sleepers(lane) for lane in ("", *READ)] == [{"berta"}] * 4


@pytest.mark.parametrize("lane", ["", *READ])
@pytest.mark.audit(skip="the set has a wrong type on purpose")
def test_a_set_of_a_wrong_type_does_not_keep_its_consumers(desk: Desk, lane: str) -> None:
    desk.finish(desk.executing())
    desk.redis.set(desk.sleepers_key(lane), "what?")
    assert desk.do(verbs.executors.close_consumer, "anna") == 1
    assert desk.consumers() == set()
