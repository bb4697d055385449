"""promote: moves due jobs from the sorted sets to their lanes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from fennelq.broker import verbs
from fennelq.broker.trouble import ReplyError
from fennelq.model.outcome import Outcome, not_known, retried, snoozed
from tests.broker.desk import DEAD, FAILURE, Desk, a_job, about, some_jobs
from tests.kit.clock import ServerClock
from tests.kit.server import Server
from tests.kit.waiting import eventually

pytestmark = pytest.mark.both_servers

DAY = 86_400_000


def test_a_due_job_goes_to_its_lane_as_a_new_entry(desk: Desk) -> None:
    desk.enqueue(a_job(at_ms=1))
    assert desk.do(verbs.queues.promote, 100) == (1, -1)
    ((entry, fields),) = desk.entries("s")
    record = desk.record()
    assert fields == {"i": "1"}
    assert (record["s"], record["p"]) == ("Q", f"s/{entry}")
    assert desk.due() == {}
    assert desk.stats() == {}


def test_a_job_that_is_not_due_stays(desk: Desk) -> None:
    desk.enqueue(a_job(delay_ms=DAY))
    before = desk.everything()
    promoted, wait = desk.do(verbs.queues.promote, 100)
    assert promoted == 0
    assert wait == about(DAY)
    assert desk.everything() == before


def test_a_job_becomes_due_by_the_servers_clock(desk: Desk) -> None:
    desk.enqueue(a_job(delay_ms=20))
    due = desk.due()["1"]
    eventually(lambda: desk.do(verbs.queues.promote, 100)[0] == 1)
    assert desk.now() >= due


def test_a_job_is_promoted_in_the_millisecond_in_which_it_is_due(
    desk: Desk, server_clock: ServerClock
) -> None:
    server_clock.stop_at(1_795_000_000_000)
    desk.enqueue(a_job(delay_ms=2))
    assert desk.do(verbs.queues.promote, 100) == (0, 2)
    server_clock.pass_by(1)
    assert desk.do(verbs.queues.promote, 100) == (0, 1)
    server_clock.pass_by(1)
    assert desk.do(verbs.queues.promote, 100) == (1, -1)


@pytest.mark.audit(unfinished=True)
def test_a_delivery_says_when_the_job_was_due_and_not_when_it_was_promoted(
    desk: Desk, server_clock: ServerClock
) -> None:
    start = 1_795_000_000_000
    server_clock.stop_at(start)
    desk.enqueue(a_job("1", delay_ms=2000), a_job("2"), a_job("3", delay_ms=2000, options=b'{"timeout":3}'))
    server_clock.pass_by(5000)
    desk.do(verbs.queues.promote, 100)
    server_clock.pass_by(1000)
    catch = desk.fetch()
    assert catch.now_ms == start + 6000
    assert {job.key: (job.enqueued_ms, job.due_ms, job.options) for job in catch.deliveries} == {
        "1": (start, start + 2000, b""),
        "2": (start, start, b""),
        "3": (start, start + 2000, b'{"timeout":3}'),
    }


def test_a_job_that_no_worker_could_read_was_due_when_it_was_due_first(
    desk: Desk, server_clock: ServerClock
) -> None:
    start = 1_795_000_000_000
    server_clock.stop_at(start)
    desk.enqueue(a_job(delay_ms=2000))
    desk.redis.hset(desk.keys.record("1"), "v", "99")
    server_clock.pass_by(2000)
    desk.do(verbs.queues.promote, 100)
    assert desk.take() == []
    server_clock.pass_by(DAY)
    assert desk.do(verbs.queues.promote, 100)[0] == 1
    assert desk.record()["q"] == str(start + 2000)


@pytest.mark.audit(unfinished=True)
@pytest.mark.parametrize("score", [1.5, float("-inf")])
def test_a_due_time_that_a_person_has_written_does_not_stop_a_fetch(desk: Desk, score: float) -> None:
    desk.enqueue(a_job(delay_ms=DAY))
    desk.redis.zadd(desk.keys["sched"], {"1": score})
    desk.do(verbs.queues.promote, 100)
    (delivery,) = desk.take()
    assert delivery.due_ms == delivery.enqueued_ms


def test_a_look_at_sets_without_a_due_job_asks_the_server_for_little(desk: Desk) -> None:
    assert desk.commands_of(lambda: desk.do(verbs.queues.promote, 100)) == {"exists": 1}
    desk.enqueue(a_job(delay_ms=DAY))
    assert desk.commands_of(lambda: desk.do(verbs.queues.promote, 100)) == {"exists": 1, "zrange": 3}


def test_a_job_goes_to_the_lane_of_its_priority(desk: Desk) -> None:
    desk.enqueue(a_job("1", at_ms=1, priority="low"), a_job("2", at_ms=1, priority="high"))
    desk.do(verbs.queues.promote, 100)
    assert (desk.waiting("s:low"), desk.waiting("s:high"), desk.waiting()) == (["1"], ["2"], [])


@pytest.mark.audit(unfinished=True)
def test_a_retry_is_promoted_with_its_tries_kept(desk: Desk) -> None:
    desk.finish(desk.executing(), retried(0, FAILURE))
    assert desk.do(verbs.queues.promote, 100) == (1, -1)
    assert desk.due("retry") == {}
    (delivery,) = desk.take()
    assert (delivery.tries, delivery.deliveries) == (1, 1)
    assert "q" not in desk.record()


@pytest.mark.audit(unfinished=True)
def test_a_snoozed_job_is_promoted_without_a_try(desk: Desk) -> None:
    desk.finish(desk.executing(), snoozed(0))
    eventually(lambda: desk.do(verbs.queues.promote, 100)[0] == 1)
    (delivery,) = desk.take()
    assert delivery.tries == 0


@pytest.mark.parametrize("priority", ["high", "normal", "low"])
@pytest.mark.parametrize("outcome", [retried(9, FAILURE), snoozed(9), not_known(FAILURE, 0, 9)], ids="RZU")
def test_a_job_that_ran_finds_back_to_its_own_lane(desk: Desk, outcome: Outcome, priority: str) -> None:
    (first,) = desk.executing(a_job(priority=priority))
    desk.finish([first], outcome)
    for name in ("sched", "retry"):
        desk.redis.zadd(desk.keys[name], {"1": 1}, xx=True)
    desk.do(verbs.queues.promote, 100)
    (second,) = desk.take()
    assert second.lane == first.lane
    desk.finish([second])


def test_jobs_are_promoted_in_the_order_they_are_due(desk: Desk) -> None:
    desk.enqueue(*(a_job(key, at_ms=int(key)) for key in "31524"))
    desk.do(verbs.queues.promote, 100)
    assert desk.waiting() == ["1", "2", "3", "4", "5"]


def test_a_million_due_jobs_are_promoted_in_pages(desk: Desk) -> None:
    desk.enqueue(*some_jobs(7, at_ms=1))
    assert [desk.do(verbs.queues.promote, 3) for _ in range(4)] == [(3, 0), (3, 0), (1, -1), (0, -1)]


def test_it_returns_the_next_due_time_of_both_sets(desk: Desk) -> None:
    desk.finish(desk.executing(a_job("1")), retried(2 * 86_400, FAILURE))
    assert desk.do(verbs.queues.promote, 100) == (0, about(2 * DAY))
    desk.enqueue(a_job("2", delay_ms=DAY))
    assert desk.do(verbs.queues.promote, 100) == (0, about(DAY))
    desk.enqueue(a_job("3", delay_ms=3 * DAY))
    assert desk.do(verbs.queues.promote, 100) == (0, about(DAY))
    desk.cancel("2")
    assert desk.do(verbs.queues.promote, 100) == (0, about(2 * DAY))


def test_a_member_whose_record_is_gone_is_dropped_and_counted(desk: Desk) -> None:
    desk.enqueue(*some_jobs(2, at_ms=1))
    desk.redis.delete(desk.keys.record("1"))
    assert desk.do(verbs.queues.promote, 100) == (1, -1)
    assert desk.everywhere() == ["2"]
    assert desk.stats() == {"dropped": 1}


@pytest.mark.audit(lost={"mail:1"})
def test_a_member_whose_record_has_a_wrong_type_is_dropped(desk: Desk) -> None:
    desk.enqueue(*some_jobs(2, at_ms=1))
    desk.redis.delete(desk.keys.record("1"))
    desk.redis.set(desk.keys.record("1"), "what?")
    assert desk.do(verbs.queues.promote, 100) == (1, -1)
    assert desk.everywhere() == ["2"]


@pytest.mark.parametrize("where", ["sched", "retry"])
def test_a_member_whose_job_is_elsewhere_is_dropped_and_the_job_is_not(desk: Desk, where: str) -> None:
    other = "retry" if where == "sched" else "sched"
    if other == "retry":
        desk.finish(desk.executing(), retried(86_400, FAILURE))
    else:
        desk.enqueue(a_job(delay_ms=DAY))
    desk.redis.zadd(desk.keys[where], {"1": 1})
    assert desk.do(verbs.queues.promote, 100)[0] == 0
    assert desk.due(where) == {}
    assert list(desk.due(other)) == ["1"]
    assert desk.stats()["dropped"] == 1


def test_a_dead_job_is_not_revived(desk: Desk) -> None:
    desk.dead(outcome=DEAD)
    desk.redis.zadd(desk.keys["retry"], {"1": 1})
    assert desk.do(verbs.queues.promote, 100) == (0, -1)
    assert desk.record()["s"] == "D"


def test_many_promoters_promote_each_job_once(desk: Desk) -> None:
    for page in range(10):
        desk.enqueue(*(a_job(f"{page}-{key}", at_ms=1) for key in range(100)))
    with ThreadPoolExecutor(8) as pool:
        pages = [pool.submit(desk.do, verbs.queues.promote, 20) for _ in range(80)]
        promoted = sum(page.result()[0] for page in pages)
    assert promoted == 1000
    assert len(set(desk.waiting())) == len(desk.waiting()) == 1000


def test_over_maxmemory_jobs_are_promoted(desk: Desk, server: Server) -> None:
    desk.enqueue(*some_jobs(3, at_ms=1))
    with server.configured(maxmemory="1"):
        assert desk.do(verbs.queues.promote, 100) == (3, -1)
    assert desk.waiting() == ["1", "2", "3"]


@pytest.mark.audit(skip="a key is damaged on purpose")
@pytest.mark.parametrize("broken", ["sched", "retry", "turn"])
def test_a_set_of_a_wrong_type_is_an_error_also_while_nothing_else_is_due(desk: Desk, broken: str) -> None:
    desk.redis.set(desk.keys[broken], "what?")
    with pytest.raises(ReplyError, match="WRONGTYPE"):
        desk.do(verbs.queues.promote, 100)
    assert desk.fetch().due_ms == 0, "a promotion follows, and its error names the key"
    desk.redis.delete(desk.keys[broken])
    assert desk.fetch().due_ms == -1


@pytest.mark.audit(skip="a key has a wrong type on purpose")
def test_alarms_of_a_wrong_type_are_an_error_and_due_jobs_are_promoted_before(desk: Desk) -> None:
    desk.redis.set(desk.keys["turn"], "what?")
    desk.enqueue(a_job(at_ms=1))
    desk.sleep("berta")
    with desk.subscribed("berta") as heard:
        with pytest.raises(ReplyError, match=r"WRONGTYPE .*:turn\)"):
            desk.do(verbs.queues.promote, 100)
        assert desk.waiting() == ["1"]
        assert heard() == [("berta", "look s")]
