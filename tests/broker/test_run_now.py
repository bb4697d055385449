"""run_now: moves jobs that are due later to their lanes."""

from __future__ import annotations

import pytest

from fennelq.broker import verbs
from fennelq.broker.verbs.jobs import Chosen
from fennelq.model.outcome import Outcome, retried, snoozed
from fennelq.model.query import State
from tests.broker.desk import FAILURE, Desk, a_job, about
from tests.broker.limited import in_line, send

pytestmark = [pytest.mark.both_servers, pytest.mark.audit(unfinished=True)]

DAY = 86_400_000


def run(desk: Desk, *keys: str, states: tuple[State, ...] = (), until: int | None = None) -> list[int]:
    return desk.do(verbs.jobs.run_now, keys, Chosen(states, until))


@pytest.mark.parametrize(("priority", "lane"), [("high", "s:high"), ("normal", "s"), ("low", "s:low")])
def test_a_scheduled_job_goes_to_its_lane(desk: Desk, priority: str, lane: str) -> None:
    desk.enqueue(a_job(delay_ms=DAY, priority=priority))
    assert run(desk, "1") == [1]
    assert desk.everywhere() == ["1"]
    assert desk.waiting(lane) == ["1"]
    assert [job.key for job in desk.take()] == ["1"]


@pytest.mark.parametrize("outcome", [retried(86_400, FAILURE), snoozed(86_400)], ids="RZ")
def test_a_job_between_two_runs_runs_again(desk: Desk, outcome: Outcome) -> None:
    desk.finish(desk.executing(), outcome)
    assert run(desk, "1") == [1]
    assert desk.everywhere() == ["1"]
    assert "q" not in desk.record()
    assert [job.fence for job in desk.take()] == [2]


def test_how_long_it_waits_counts_from_now(desk: Desk) -> None:
    desk.enqueue(a_job(delay_ms=DAY))
    run(desk, "1")
    assert int(desk.record()["q"]) == about(desk.now())
    [delivery] = desk.take()
    assert delivery.due_ms == about(desk.now())


def test_a_job_that_was_due_before_has_waited_since_then(desk: Desk) -> None:
    desk.enqueue(a_job(delay_ms=DAY))
    desk.redis.hset(desk.keys.record("1"), "q", 5)
    assert run(desk, "1") == [1]
    assert desk.record()["q"] == "5"


def test_a_job_with_a_limit_goes_to_its_line_while_the_limit_is_reached(desk: Desk) -> None:
    send(desk, "1")
    send(desk, "2", delay_ms=DAY)
    assert run(desk, "2") == [1]
    assert in_line(desk) == ["2"]
    assert desk.everywhere() == ["1", "2"]


def test_jobs_that_wait_for_no_time_are_left_alone(desk: Desk) -> None:
    desk.dead(a_job("dead"))
    desk.executing(a_job("running"))
    desk.enqueue(a_job("waiting"))
    before = {key: desk.record(key) for key in ("dead", "running", "waiting")}
    assert run(desk, "dead", "running", "waiting", "unknown") == [0, 0, 0, -1]
    assert {key: desk.record(key) for key in before} == before


def test_a_job_is_moved_once(desk: Desk) -> None:
    desk.enqueue(a_job(delay_ms=DAY))
    assert run(desk, "1", "1") == [1, 0]
    assert desk.waiting() == ["1"]


@pytest.mark.audit(skip="a set is damaged by hand")
def test_a_job_that_its_set_does_not_have_is_left_alone(desk: Desk) -> None:
    desk.enqueue(a_job(delay_ms=DAY))
    desk.redis.zrem(desk.keys["sched"], "1")
    assert run(desk, "1") == [0]
    assert desk.everywhere() == []


def test_an_operation_moves_only_what_it_asks_for(desk: Desk) -> None:
    desk.finish(desk.executing(a_job("retry")), retried(86_400, FAILURE))
    desk.enqueue(a_job("later", delay_ms=DAY))
    created = int(desk.record("later")["c"])
    assert run(desk, "retry", "later", states=(State.RETRY,), until=created) == [1, 0]
    assert run(desk, "later", states=(State.SCHEDULED,), until=created - 1) == [0]
    assert run(desk, "later", states=(State.SCHEDULED, State.RETRY), until=created) == [1]


@pytest.mark.audit(skip="a record is damaged by hand")
def test_a_job_of_which_it_is_not_known_when_it_was_sent_is_moved_too(desk: Desk) -> None:
    desk.enqueue(a_job(delay_ms=DAY))
    desk.redis.hdel(desk.keys.record("1"), "c")
    assert run(desk, "1", states=(State.SCHEDULED,), until=1) == [1]


def test_a_sleeping_executor_is_woken(desk: Desk) -> None:
    desk.enqueue(a_job(delay_ms=DAY))
    desk.sleep("anna")
    with desk.subscribed("anna") as heard:
        run(desk, "1")
        assert heard() == [("anna", "look s")]
