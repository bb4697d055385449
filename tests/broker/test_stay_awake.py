"""stay_awake: an executor is not woken any more."""

from __future__ import annotations

import pytest

from fennelq.broker import verbs
from tests.broker.desk import READ, Desk, a_job
from tests.kit.server import Server

pytestmark = pytest.mark.both_servers


def stay_awake(desk: Desk, executor: str = "anna") -> int:
    return desk.do(verbs.executors.stay_awake, executor)


def test_its_name_is_gone_from_every_set(desk: Desk) -> None:
    for lane in ("", *READ):
        desk.sleep("anna", "berta", lane=lane)
    assert stay_awake(desk) == 1
    assert [desk.sleepers(lane) for lane in ("", *READ)] == [{"berta"}] * 4


def test_the_last_one_leaves_no_key(desk: Desk) -> None:
    desk.fetch("anna", sleeps=True)
    desk.fetch("anna", sleeps=True, lanes=["s", "s:low"])
    assert stay_awake(desk) == 1
    assert desk.everything() == {}


def test_an_executor_that_does_not_sleep_may_stay_awake(desk: Desk) -> None:
    desk.sleep("berta")
    before = desk.everything()
    assert stay_awake(desk) == 1
    assert desk.everything() == before


def test_a_job_wakes_another_executor_then(desk: Desk) -> None:
    with desk.subscribed("anna", "berta") as heard:
        desk.sleep("anna", "berta")
        stay_awake(desk, "anna")
        desk.enqueue(a_job())
        assert heard() == [("berta", "look s")]


def test_it_keeps_its_consumers_and_its_jobs(desk: Desk) -> None:
    held = desk.executing()
    stay_awake(desk)
    assert desk.consumers() == {"anna"}
    assert desk.finish(held) == [1]


@pytest.mark.parametrize("lane", ["", *READ])
@pytest.mark.audit(skip="the set has a wrong type on purpose")
def test_a_set_of_a_wrong_type_does_not_keep_its_name_in_the_others(desk: Desk, lane: str) -> None:
    for one in ("", *READ):
        desk.sleep("anna", lane=one)
    desk.redis.delete(desk.sleepers_key(lane))
    desk.redis.set(desk.sleepers_key(lane), "what?")
    assert stay_awake(desk) == 1
    assert [desk.sleepers(one) for one in ("", *READ) if one != lane] == [set()] * 3


def test_over_maxmemory_a_name_is_removed(desk: Desk, server: Server) -> None:
    desk.sleep("anna")
    with server.configured(maxmemory="1"):
        stay_awake(desk)
    assert desk.sleepers() == set()
