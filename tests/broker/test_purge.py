"""purge: cancels the jobs that wait in a queue, a page at a time."""

from __future__ import annotations

import pytest

from fennelq.broker import verbs
from fennelq.broker.keys import GROUP
from fennelq.model.outcome import retried
from tests.broker.desk import FAILURE, LIFETIMES, Desk, a_job, about, some_jobs
from tests.broker.limited import in_line, send
from tests.kit.server import Server

pytestmark = pytest.mark.both_servers

DAY = 86_400_000


def purged(desk: Desk, *keys: str) -> None:
    for key in keys:
        record = desk.record(key)
        assert (record["s"], record["y"]) == ("K", "purged")
        assert desk.result(key) == ['{"cancelled":"purged"}']
        assert desk.record_ttl(key) == about(LIFETIMES.failure_ms)
        assert desk.result_ttl(key) == about(LIFETIMES.failure_ms)


def test_whatever_waits_is_cancelled_wherever_it_waits(desk: Desk) -> None:
    desk.finish(desk.executing(a_job("retry")), retried(86_400, FAILURE))
    desk.enqueue(a_job("high", priority="high"), a_job("normal"), a_job("low", priority="low"))
    desk.enqueue(a_job("later", delay_ms=DAY))
    assert desk.do(verbs.queues.purge, LIFETIMES, 100) == 5
    assert desk.do(verbs.queues.purge, LIFETIMES, 100) == 0
    assert desk.everywhere() == []
    purged(desk, "retry", "high", "normal", "low", "later")
    assert desk.stats() == {"R": 1, "K": 5}


def test_a_queue_that_was_never_served_is_purged(desk: Desk) -> None:
    desk.enqueue(*some_jobs(3))
    assert desk.do(verbs.queues.purge, LIFETIMES, 100) == 3
    purged(desk, "1", "2", "3")


def test_an_empty_queue_has_nothing_to_purge(desk: Desk) -> None:
    assert desk.do(verbs.queues.purge, LIFETIMES, 100) == 0
    assert desk.everything() == {}


@pytest.mark.audit(unfinished=True)
def test_jobs_that_run_are_left_alone(desk: Desk) -> None:
    running = desk.executing(*some_jobs(2))
    desk.enqueue(a_job("3"))
    assert desk.do(verbs.queues.purge, LIFETIMES, 100) == 1
    assert desk.finish(running) == [1, 1]
    purged(desk, "3")


@pytest.mark.audit(unfinished=True)
def test_jobs_that_run_are_left_alone_when_the_group_is_lost(desk: Desk) -> None:
    running = desk.executing(*some_jobs(3))
    desk.enqueue(a_job("4"), a_job("5"))
    desk.redis.xgroup_destroy(desk.keys["s"], GROUP)
    assert [desk.do(verbs.queues.purge, LIFETIMES, 1) for _ in range(3)] == [1, 1, 0]
    purged(desk, "4", "5")
    assert desk.finish(running) == [1, 1, 1]


def test_a_stray_entry_of_a_job_that_runs_is_removed_when_the_group_is_lost(desk: Desk) -> None:
    (run,) = desk.executing(a_job())
    desk.redis.xadd(desk.keys["s"], {"j": "1"})
    desk.redis.xgroup_destroy(desk.keys["s"], GROUP)
    assert desk.do(verbs.queues.purge, LIFETIMES, 100) == 0
    assert [entry for entry, _ in desk.entries("s")] == [run.entry]
    assert desk.finish([run]) == [1]


@pytest.mark.parametrize("group", ["a", "z"])
@pytest.mark.parametrize("begins", ["0", "$"])
@pytest.mark.audit(unfinished=True)
def test_another_group_of_a_lane_does_not_matter(desk: Desk, group: str, begins: str) -> None:
    running = desk.executing(*some_jobs(2))
    desk.enqueue(a_job("3"))
    desk.redis.xgroup_create(desk.keys["s"], group, begins)
    assert desk.do(verbs.queues.purge, LIFETIMES, 100) == 1
    assert desk.waiting() == ["1", "2"]
    assert desk.finish(running) == [1, 1]
    purged(desk, "3")
    desk.redis.xgroup_destroy(desk.keys["s"], group)


def test_a_lane_with_no_group_but_another_one_is_purged(desk: Desk) -> None:
    desk.enqueue(*some_jobs(3))
    desk.redis.xgroup_create(desk.keys["s"], "a", "$")
    assert desk.do(verbs.queues.purge, LIFETIMES, 100) == 3
    purged(desk, "1", "2", "3")
    desk.redis.xgroup_destroy(desk.keys["s"], "a")


def test_a_job_that_was_read_and_did_not_start_is_left_to_its_executor(desk: Desk) -> None:
    desk.enqueue(*some_jobs(2))
    read = desk.read()
    assert desk.do(verbs.queues.purge, LIFETIMES, 100) == 1
    assert desk.release(read) == 1
    assert desk.finish(desk.take()) == [1]
    purged(desk, "2")


def test_the_dead_are_left_alone(desk: Desk) -> None:
    desk.dead()
    assert desk.do(verbs.queues.purge, LIFETIMES, 100) == 0
    assert desk.waiting("dlq") == ["1"]


def test_a_page_has_at_most_the_given_number_of_each_kind(desk: Desk) -> None:
    desk.enqueue(*some_jobs(25), *(a_job(f"later-{key}", delay_ms=DAY) for key in range(25)))
    assert [desk.do(verbs.queues.purge, LIFETIMES, 10) for _ in range(4)] == [20, 20, 10, 0]


def test_waiting_clients_are_notified(desk: Desk) -> None:
    desk.enqueue(a_job())
    with desk.listening("me") as heard:
        desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES)
        desk.do(verbs.queues.purge, LIFETIMES, 100)
        assert heard() == ("me", b'mail:1\n{"cancelled":"purged"}')


@pytest.mark.parametrize("delay", [0, DAY])
def test_entries_that_belong_to_no_job_go_and_are_not_the_end(desk: Desk, delay: int) -> None:
    desk.enqueue(*some_jobs(20, delay_ms=delay))
    desk.redis.delete(*(desk.keys.record(str(key)) for key in range(1, 21)))
    desk.enqueue(a_job("last", delay_ms=2 * delay))
    assert desk.do(verbs.queues.purge, LIFETIMES, 5) == 1
    assert desk.do(verbs.queues.purge, LIFETIMES, 5) == 0
    assert desk.everywhere() == []
    purged(desk, "last")


def test_an_entry_that_was_not_written_by_an_arrow_goes(desk: Desk) -> None:
    desk.stray("s", what="this")
    assert desk.do(verbs.queues.purge, LIFETIMES, 100) == 0
    assert desk.entries("s") == []


def test_an_entry_of_a_job_that_is_elsewhere_goes_and_the_job_does_not(desk: Desk) -> None:
    desk.dead()
    desk.redis.xadd(desk.keys["s"], {"i": "1", "n": "1"})
    desk.redis.zadd(desk.keys["sched"], {"1": 1})
    assert desk.do(verbs.queues.purge, LIFETIMES, 100) == 0
    assert desk.everywhere() == ["1"]
    assert desk.record()["s"] == "D"


@pytest.mark.audit(skip="a record is of a wrong type")
def test_an_entry_whose_record_cannot_be_read_goes_and_the_other_jobs_are_cancelled(desk: Desk) -> None:
    desk.enqueue(*some_jobs(2), a_job("later", delay_ms=DAY))
    desk.redis.set(desk.keys.record("1"), "what?")
    assert desk.do(verbs.queues.purge, LIFETIMES, 100) == 2
    assert desk.everywhere() == []
    purged(desk, "2", "later")


@pytest.mark.audit(skip="records of jobs in a line are changed by hand")
def test_what_a_line_has_of_jobs_that_are_elsewhere_goes_and_these_jobs_stay(desk: Desk) -> None:
    send(desk, "1", "2", "3", "4", "5")
    desk.redis.delete(desk.keys.record("2"))
    desk.redis.set(desk.keys.record("3"), "what?")
    desk.redis.hset(desk.keys.record("4"), mapping={"s": "D", "p": "dlq/1-1"})
    assert [desk.do(verbs.queues.purge, LIFETIMES, 100) for _ in range(3)] == [1, 1, 0]
    purged(desk, "1", "5")
    assert (desk.record("2"), desk.record("4")["s"], in_line(desk)) == ({}, "D", [])


def test_over_maxmemory_a_queue_can_be_purged(desk: Desk, server: Server) -> None:
    desk.enqueue(*some_jobs(3), a_job("later", delay_ms=DAY))
    with server.configured(maxmemory="1"):
        assert desk.do(verbs.queues.purge, LIFETIMES, 100) == 4
    assert desk.everywhere() == []
