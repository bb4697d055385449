"""The bound of a queue: `enqueue` creates no job while so many wait."""

from __future__ import annotations

from typing import Any

import pytest

from fennelq.broker import verbs
from fennelq.model.wire import AnyWireJob
from tests.broker.desk import Desk, a_job, some_jobs

pytestmark = [pytest.mark.both_servers, pytest.mark.audit(unfinished=True)]

ONE = "c1:account/1"


def offer(desk: Desk, *jobs: AnyWireJob, most: int = 2) -> list[Any]:
    return desk.do(verbs.jobs.enqueue, jobs, most)


def test_jobs_for_which_there_is_no_room_are_not_created(desk: Desk) -> None:
    """The others of the call are; the answer says how many wait."""
    assert offer(desk, *some_jobs(5), most=3) == [1, 1, 1, [3], [3]]
    assert desk.waiting() == ["1", "2", "3"]
    assert desk.record("4") == {}
    assert offer(desk, a_job("6"), most=1) == [[3]]


def test_a_job_that_runs_does_not_count_and_one_in_a_line_does(desk: Desk) -> None:
    assert offer(desk, *(a_job(key, gates=ONE) for key in "123")) == [1, 1, [2]]
    assert desk.in_lines() == ["2"]
    (running,) = desk.take()
    assert offer(desk, a_job("4", priority="high"), a_job("1"), a_job("5"), most=3) == [1, 0, 1]
    assert offer(desk, a_job("6"), most=3) == [[3]]
    desk.finish([running])
    assert (desk.waiting(), desk.in_lines()) == (["5", "2"], [])
    assert offer(desk, a_job("6"), most=3) == [[3]]


def test_other_groups_of_a_lane_do_not_matter(desk: Desk) -> None:
    offer(desk, *some_jobs(2))
    desk.redis.xgroup_create(desk.keys["s"], "audit", "0")
    desk.redis.xreadgroup("audit", "me", {desk.keys["s"]: ">"})
    assert offer(desk, a_job("3")) == [[2]]
    desk.take(free=1)
    assert offer(desk, a_job("3"), a_job("4")) == [1, [2]]
    desk.redis.xgroup_destroy(desk.keys["s"], "audit")


def test_a_record_is_as_in_a_queue_without_a_bound_while_there_is_room(desk: Desk) -> None:
    offer(desk, *some_jobs(2), most=3)
    assert desk.record("2").keys() == {"t", "a", "c", "p"}


def test_a_repeat_and_a_job_whose_key_is_taken_are_not_refused(desk: Desk) -> None:
    offer(desk, a_job("1", idempotency="app:welcome:a"), a_job("2"))
    again = (a_job("1"), a_job("3", idempotency="app:welcome:a"), a_job("4", idempotency="app:welcome:b"))
    assert offer(desk, *again) == [0, b"1", [2]]
    assert desk.holder("app:welcome:b") is None


def test_a_job_for_later_is_not_refused_and_comes_when_it_is_due(desk: Desk) -> None:
    offer(desk, *some_jobs(2))
    assert offer(desk, a_job("3", at_ms=1)) == [1]
    assert desk.do(verbs.queues.promote, 10) == (1, -1)
    assert desk.waiting() == ["1", "2", "3"]


def test_a_job_that_is_replayed_handed_over_or_handed_back_is_not_refused(desk: Desk) -> None:
    (entry,) = desk.dead(a_job("dead"))
    offer(desk, *some_jobs(2))
    running = desk.take()
    offer(desk, a_job("3"), a_job("4"))
    assert desk.do(verbs.dead.replay, [entry]) == [1]
    assert desk.enqueue(a_job("5", kept_at_least=60_000)) == [1]
    assert desk.release(running) == 2
    assert desk.waiting() == ["3", "4", "dead", "5", "1", "2"]


@pytest.mark.audit(skip="the keys were damaged on purpose")
@pytest.mark.parametrize("name", ["s:low", "stats", "lines"])
def test_a_damaged_key_counts_as_empty(desk: Desk, name: str) -> None:
    desk.redis.set(desk.keys[name], "not mine")
    assert offer(desk, *some_jobs(3)) == [1, 1, [2]]


@pytest.mark.audit(skip="a line was deleted on purpose")
def test_jobs_in_lines_that_were_deleted_do_not_count(desk: Desk) -> None:
    offer(desk, *(a_job(key, gates=ONE) for key in "12"))
    for key in desk.keys_of_limits():
        desk.redis.delete(key)
    assert desk.stats()["parked"] == 1
    assert offer(desk, a_job("3")) == [1]


def test_a_queue_without_a_bound_is_not_counted(desk: Desk) -> None:
    desk.enqueue(*some_jobs(2))

    def more() -> None:
        desk.enqueue(a_job(str(desk.now())))

    assert desk.commands_of(more).keys().isdisjoint({"xlen", "xinfo", "hget"})
