"""resume: the pause of a queue ends, and the executors that have met it are woken."""

from __future__ import annotations

import pytest

from fennelq.broker import verbs
from tests.broker.desk import READ, Desk, a_job, some_jobs
from tests.kit.server import Server

pytestmark = [pytest.mark.both_servers, pytest.mark.audit(unfinished=True)]


def test_every_executor_that_met_the_pause_is_woken_once(desk: Desk) -> None:
    with desk.subscribed("anna", "berta", "clara") as heard:
        desk.sleep("anna")
        desk.sleep("clara", lane="s:high")
        desk.pause("consume")
        desk.fetch("berta", sleeps=True)
        resumed = desk.resume()
        assert sorted(heard()) == [("anna", "look s"), ("berta", "look s"), ("clara", "look s")]
    assert resumed.before is not None
    assert (resumed.before.what, resumed.more) == ("consuming", False)
    assert desk.everything() == {}


def test_the_jobs_that_waited_start_in_their_order_and_were_not_touched(desk: Desk) -> None:
    desk.pause("consume")
    desk.enqueue(*some_jobs(3), a_job("urgent", priority="high"))
    entries = {lane: desk.entries(lane) for lane in READ}
    for _ in range(3):
        desk.fetch("anna", sleeps=True)
    assert {lane: desk.entries(lane) for lane in READ} == entries
    desk.resume()
    deliveries = desk.take()
    assert [delivery.key for delivery in deliveries] == ["urgent", "1", "2", "3"]
    assert {delivery.deliveries for delivery in deliveries} == {1}
    assert "released" not in desk.stats()


def test_an_executor_sleeps_as_before_and_is_woken_by_the_next_job(desk: Desk) -> None:
    desk.pause("consume")
    desk.fetch("anna", sleeps=True)
    desk.resume()
    with desk.subscribed("anna") as heard:
        assert desk.fetch("anna", sleeps=True).drained
        assert (desk.sleepers(), desk.halted()) == ({"anna"}, set())
        desk.enqueue(a_job())
        assert heard() == [("anna", "look s")]


def test_many_executors_are_woken_a_page_per_call(desk: Desk) -> None:
    names = [f"e{number}" for number in range(250)]
    with desk.subscribed(*names) as heard:
        desk.sleep(*names)
        desk.pause("consume")
        pages = [desk.resume(), desk.do(verbs.queues.resume, ()), desk.do(verbs.queues.resume, ())]
        assert sorted(heard()) == sorted((name, "look s") for name in names)
    assert [page.more for page in pages] == [True, True, False]
    assert [page.before is not None for page in pages] == [True, False, False]


def test_the_next_page_does_not_end_a_pause_that_began_in_the_meantime(desk: Desk) -> None:
    names = [f"e{number}" for number in range(150)]
    with desk.subscribed(*names) as heard:
        desk.sleep(*names)
        desk.pause("consume", why="first")
        assert desk.resume().more
        heard()
        desk.pause("consume", why="second")
        page = desk.do(verbs.queues.resume, ())
        assert heard() == []
    assert not page.more
    assert page.before is not None
    assert (page.before.why, desk.do(verbs.queues.paused)) == ("second", page.before)
    assert len(desk.halted()) == 50


def test_the_name_of_an_executor_that_has_ended_keeps_none_from_being_woken(desk: Desk) -> None:
    with desk.subscribed("anna") as heard:
        desk.sleep("anna", *(f"killed-{number}" for number in range(90)))
        desk.pause("consume")
        assert not desk.resume().more
        assert heard() == [("anna", "look s")]
    assert desk.halted() == set()


def test_only_one_side_is_resumed(desk: Desk) -> None:
    before = desk.pause(who="anna", why="down")
    desk.fetch("anna", sleeps=True)
    with desk.subscribed("anna") as heard:
        assert desk.resume("enqueue").before == before
        assert heard() == []
        left = desk.do(verbs.queues.paused)
        assert left is not None
        assert (left.what, left.who, left.since, left.why) == ("consuming", "anna", before.since, "down")
        assert desk.enqueue(a_job()) == [1]
        assert desk.fetch("anna", sleeps=True).deliveries == []
        assert desk.resume("consume").before == left
        assert heard() == [("anna", "look s")]
    assert len(desk.take()) == 1
    assert desk.redis.exists(desk.keys["paused"]) == 0


def test_a_side_that_is_not_paused_may_be_resumed(desk: Desk) -> None:
    pause = desk.pause("enqueue")
    assert desk.resume("consume").before == pause
    assert desk.do(verbs.queues.paused) == pause


def test_a_queue_that_is_not_paused_may_be_resumed(desk: Desk) -> None:
    desk.enqueue(a_job())
    desk.sleep("anna")
    before = desk.everything()
    assert desk.resume() == (None, False)
    assert desk.everything() == before


@pytest.mark.audit(skip="the value was written by hand")
def test_a_value_that_describes_no_pause_is_removed(desk: Desk) -> None:
    desk.redis.set(desk.keys["paused"], "everything")
    assert desk.resume() == (None, False)
    assert desk.everything() == {}


@pytest.mark.audit(skip="the set has a wrong type on purpose")
def test_a_set_of_a_wrong_type_does_not_keep_a_queue_from_being_resumed(desk: Desk) -> None:
    desk.pause()
    desk.redis.set(desk.keys["halted"], "what?")
    assert not desk.resume().more
    assert desk.enqueue(a_job()) == [1]
    assert len(desk.take()) == 1


def test_a_user_who_may_not_publish_resumes_and_wakes_none(desk: Desk, server: Server) -> None:
    with desk.subscribed("anna") as heard:
        desk.sleep("anna")
        desk.pause()
        with desk.as_user(server, channels=False):
            assert not desk.resume().more
        assert heard() == []
    assert desk.enqueue(a_job()) == [1]
    assert len(desk.fetch("anna", sleeps=True).deliveries) == 1
