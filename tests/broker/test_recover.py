"""recover: takes jobs from executors that have been silent for longer than a lease."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import orjson
import pytest

from tests.broker.desk import DEAD, LEASE_MS, LIFETIMES, Desk, a_job, about, some_jobs
from tests.kit.server import Server

pytestmark = [pytest.mark.both_servers, pytest.mark.audit(unfinished=True)]

DAY = 86_400_000


def crash(desk: Desk, times: int, key: str = "1") -> None:
    """The job's executor dies that often."""
    for _ in range(times):
        assert [delivery.key for delivery in desk.fetch(lanes=["s", "iso"]).deliveries] == [key]
        desk.recover()


# What it does to a job


def test_a_job_of_a_silent_executor_is_queued_again_under_a_new_token(desk: Desk) -> None:
    (delivery,) = desk.executing()
    sweep = desk.recover()
    assert (sweep.swept, sweep.more, sweep.requeued, sweep.dead, sweep.vanished) == (True, False, 1, 0, 0)
    ((entry, fields),) = desk.entries("s")
    assert entry != delivery.entry
    assert fields == {"i": "1", "n": "2"}
    assert (desk.record()["s"], desk.record()["p"]) == ("Q", f"s/{entry}")
    assert desk.pending() == {}
    assert desk.stats() == {"recovered": 1}


def test_what_the_silent_executor_still_does_is_refused(desk: Desk) -> None:
    zombie = desk.executing()
    desk.recover()
    before = desk.everything()
    assert desk.finish(zombie) == [0]
    assert desk.release(zombie) == 0
    assert desk.everything() == before
    assert desk.finish(desk.take("berta")) == [1]
    assert desk.finish(zombie, DEAD) == [0]


def test_a_job_whose_lease_is_fresh_is_left_alone(desk: Desk) -> None:
    old, fresh = desk.executing(*some_jobs(2))
    desk.silence(old)
    assert desk.recover(silent=False).requeued == 1
    assert desk.finish([old, fresh]) == [0, 1]


def test_a_job_that_a_blocked_read_took_to_its_grave_comes_back(desk: Desk) -> None:
    desk.enqueue(a_job())
    desk.block()
    assert desk.recover().requeued == 1
    assert [delivery.key for delivery in desk.take("berta")] == ["1"]


def test_a_job_that_nobody_has_taken_stays(desk: Desk) -> None:
    desk.enqueue(a_job())
    desk.recover()
    assert [fields["n"] for _, fields in desk.entries("s")] == ["1"]


def test_a_job_comes_back_in_the_lane_of_its_priority(desk: Desk) -> None:
    desk.executing(a_job("1", priority="high"), a_job("2"), a_job("3", priority="low"))
    assert desk.recover().requeued == 3
    assert [desk.waiting(lane) for lane in ("s:high", "s", "s:low")] == [["1"], ["2"], ["3"]]


def test_a_crash_spends_a_delivery_and_no_try(desk: Desk) -> None:
    desk.enqueue(a_job())
    crash(desk, 1)
    (delivery,) = desk.take()
    assert (delivery.deliveries, delivery.tries, delivery.fence) == (2, 0, 2)


def test_its_history_tells_who_fell_silent(desk: Desk) -> None:
    desk.executing()
    before = desk.now()
    desk.recover(deaths={"anna": "killed by signal 9"})
    (line,) = desk.history()
    assert before <= line.pop("at") <= desk.now()
    assert line == {"what": "recovered", "owner": "anna", "more": "killed by signal 9"}


def test_a_history_that_cannot_be_written_keeps_no_job_from_coming_back(desk: Desk) -> None:
    desk.executing(*some_jobs(3))
    desk.redis.set(desk.keys.history("2"), "what?")
    assert desk.recover().requeued == 3
    assert desk.waiting() == ["1", "2", "3"]
    desk.redis.delete(desk.keys.history("2"))


# Quarantine and the end


def test_from_the_third_delivery_on_a_job_runs_in_quarantine(desk: Desk) -> None:
    desk.enqueue(a_job(priority="high"))
    desk.take()
    desk.recover()
    assert (desk.waiting("s:high"), desk.waiting("iso")) == (["1"], [])
    desk.take()
    desk.recover()
    assert (desk.waiting("s:high"), desk.waiting("iso")) == ([], ["1"])
    assert desk.take() == []
    (delivery,) = desk.fetch(lanes=["iso"]).deliveries
    assert (delivery.lane, delivery.deliveries) == ("iso", 3)
    desk.recover()
    assert [fields for _, fields in desk.entries("iso")] == [{"i": "1", "n": "4"}]


def test_a_job_that_was_quarantined_may_succeed(desk: Desk) -> None:
    desk.enqueue(a_job())
    crash(desk, 3)
    assert desk.finish(desk.fetch(lanes=["iso"]).deliveries) == [1]
    assert desk.record()["s"] == "S"
    assert desk.entries("iso") == []
    assert desk.ttl(desk.keys.history("1")) == about(LIFETIMES.record_ms)


def test_after_its_last_delivery_a_job_is_dead_and_those_who_wait_are_told(desk: Desk) -> None:
    desk.enqueue(a_job())
    crash(desk, 3)
    desk.fetch(lanes=["iso"])
    with desk.redis.pubsub() as heard:
        heard.subscribe("me")
        heard.get_message(timeout=1)
        desk.watch("me", "1")
        sweep = desk.recover(deaths={"anna": "killed by signal 9"})
        message = heard.get_message(timeout=1)
    assert (sweep.requeued, sweep.dead) == (0, 1)
    ((entry, dead),) = desk.entries("dlq")
    assert (dead["e"], dead["y"]) == ("CrashLoop", "crash_loop")
    assert (desk.record()["s"], desk.record()["p"]) == ("D", f"dlq/{entry}")
    told = orjson.loads(desk.result()[0])["dead"]
    assert told["reason"] == "crash_loop"
    assert "4 times" in told["message"]
    assert "killed by signal 9" in told["message"]
    assert message is not None
    assert message["data"] == b"mail:1\n" + desk.result()[0].encode()
    assert desk.result_ttl() == about(LIFETIMES.failure_ms)
    assert desk.pending("iso") == {}
    assert desk.entries("iso") == []
    assert desk.stats() == {"recovered": 3, "D": 1}
    assert len(desk.history()) == 4


def test_a_dead_job_is_replayed_with_all_its_deliveries(desk: Desk) -> None:
    desk.enqueue(a_job())
    desk.take()
    desk.recover(max_deliveries=1)
    desk.replay(desk.entries("dlq")[0][0])
    assert [delivery.deliveries for delivery in desk.take()] == [1]
    assert [line["what"] for line in desk.history()] == ["recovered", "replayed"]


@pytest.mark.parametrize(("own", "dead"), [(1, 1), (2, 0)])
def test_a_job_may_have_a_limit_of_its_own(desk: Desk, own: int, dead: int) -> None:
    desk.executing(a_job(max_deliveries=own))
    assert desk.recover(max_deliveries=4).dead == dead


def test_of_a_death_that_nobody_saw_nothing_is_claimed(desk: Desk) -> None:
    desk.executing()
    desk.recover(max_deliveries=1, deaths={"berta": "killed by signal 9"})
    assert "signal" not in desk.entries("dlq")[0][1]["m"]


# The sweep


def test_the_fleet_sweeps_once_an_interval(desk: Desk) -> None:
    desk.executing(a_job("1"))
    assert desk.recover(more=False, interval_ms=DAY).swept
    desk.executing(a_job("2"))
    again = desk.recover(more=False, interval_ms=DAY)
    assert (again.swept, again.requeued) == (False, 0)
    assert desk.ttl(desk.keys["swept"]) == about(DAY)


def test_a_sweeper_that_was_held_up_on_its_way_judges_nobody(desk: Desk) -> None:
    held = desk.executing()
    late = desk.recover(late_ms=LEASE_MS // 2 + 1000, more=False, interval_ms=DAY)
    assert (late.swept, late.requeued) == (False, 0)
    assert desk.finish(held) == [1]
    assert desk.recover(more=False).swept


def test_a_sweep_that_was_begun_goes_on(desk: Desk) -> None:
    desk.recover(more=False, interval_ms=DAY)
    desk.executing()
    assert desk.recover(more=True).requeued == 1


def test_many_are_recovered_in_pages(desk: Desk) -> None:
    desk.executing(*some_jobs(25))
    desk.executing(*(a_job(f"low-{key}", priority="low") for key in range(5)))
    sweeps = [desk.recover(limit=10)]
    while sweeps[-1].more:
        sweeps.append(desk.recover(limit=10))
    assert [sweep.requeued for sweep in sweeps][:2] == [15, 10]
    assert sum(sweep.requeued for sweep in sweeps) == 30
    assert desk.pending() == desk.pending("s:low") == {}


def test_many_fresh_jobs_in_front_do_not_hide_an_old_one(desk: Desk) -> None:
    for page in range(3):
        desk.enqueue(*(a_job(f"{page}-{key}") for key in range(100)))
    desk.take(free=300)
    (old,) = desk.executing(a_job("old"))
    desk.silence(old)
    sweeps = [desk.recover(silent=False, limit=5)]
    while sweeps[-1].more:
        sweeps.append(desk.recover(silent=False, limit=5))
    assert len(sweeps) > 1
    assert sum(sweep.requeued for sweep in sweeps) == 1
    assert desk.waiting()[-1] == "old"


def test_many_sweepers_recover_each_job_once(desk: Desk) -> None:
    desk.executing(*some_jobs(100))
    with ThreadPoolExecutor(8) as pool:
        sweeps = list(pool.map(lambda _: desk.recover(limit=10), range(40)))
    assert sum(sweep.requeued for sweep in sweeps) == 100
    assert sorted(desk.waiting(), key=int) == [str(key) for key in range(1, 101)]


def test_a_missing_lane_does_not_keep_the_others_from_being_swept(desk: Desk) -> None:
    desk.executing(a_job(priority="low"))
    desk.redis.delete(desk.keys["s:high"])
    assert desk.recover().requeued == 1
    desk.open()


# What nobody should meet


@pytest.mark.parametrize("record", ["gone", "of a wrong type"])
def test_an_entry_without_a_record_vanishes_and_is_counted(desk: Desk, record: str) -> None:
    desk.executing(*some_jobs(3))
    desk.redis.delete(desk.keys.record("2"))
    if record == "of a wrong type":
        desk.redis.set(desk.keys.record("2"), "what?")
    sweep = desk.recover()
    assert (sweep.requeued, sweep.vanished) == (2, 1)
    assert desk.waiting() == ["1", "3"]
    assert desk.stats() == {"recovered": 2, "vanished": 1}
    desk.redis.delete(desk.keys.record("2"))


def test_an_entry_that_was_not_written_by_an_arrow_vanishes(desk: Desk) -> None:
    desk.redis.xadd(desk.keys["s"], {"what": "this"})
    desk.block()
    assert desk.recover().vanished == 1
    assert desk.entries("s") == []
    assert desk.pending() == {}


def test_an_entry_of_a_job_that_is_elsewhere_vanishes_and_the_job_does_not(desk: Desk) -> None:
    desk.enqueue(a_job(delay_ms=DAY))
    desk.redis.xadd(desk.keys["s"], {"i": "1", "n": "1"})
    desk.block()
    assert desk.recover().vanished == 1
    assert desk.everywhere() == ["1"]
    assert desk.history() == []


@pytest.mark.parametrize("status", ["S", "D", "K", "L", "R"])
@pytest.mark.audit(lost={"mail:1"})
def test_a_job_that_has_ended_or_waits_is_not_run_again(desk: Desk, status: str) -> None:
    desk.executing()
    desk.redis.hset(desk.keys.record("1"), "s", status)
    assert desk.recover().vanished == 1
    assert desk.record()["s"] == status
    assert desk.entries("s") == []


@pytest.mark.audit(lost={"mail:1"})
def test_a_pending_entry_that_an_operator_deleted_vanishes(desk: Desk) -> None:
    first, _ = desk.executing(*some_jobs(2))
    desk.redis.xdel(desk.keys["s"], first.entry)
    sweep = desk.recover()
    assert (sweep.requeued, sweep.vanished) == (1, 1)
    assert desk.pending() == {}


def test_over_maxmemory_jobs_are_recovered(desk: Desk, server: Server) -> None:
    desk.executing(*some_jobs(3))
    with server.configured(maxmemory="1"):
        assert desk.recover(more=False).requeued == 3
        desk.take()
        assert desk.recover(max_deliveries=1).dead == 3
