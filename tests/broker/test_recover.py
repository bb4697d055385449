"""recover: takes jobs from executors that have been silent for longer than a lease."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from fennelq.broker import verbs
from fennelq.broker.keys import QUARANTINE
from fennelq.broker.verbs.runs import Sweep
from fennelq.model.outcome import retried
from tests.broker.desk import DONE, FAILURE, LIFETIMES, Desk, a_job, about, some_jobs
from tests.kit.server import Server

pytestmark = pytest.mark.both_servers

LEASE = 60_000
NOT_DONE = Sweep(False, False, 0, 0, 0, 0)


def recover(desk: Desk, *, lease_ms: int = 0, beaten_ms: int | None = None, **more: Any) -> Sweep:
    """A sweep for which every silence is too long, by an executor that has just beaten.

    With `more`, the guard of the interval is skipped.
    """
    given: dict[str, Any] = {"interval_ms": LEASE, "max_deliveries": 4, "more": True} | more
    beaten = desk.now() + LEASE if beaten_ms is None else beaten_ms
    if beaten_ms is None:
        given = {"ago_ms": -2 * LEASE} | given
    return desk.do(verbs.runs.recover, LIFETIMES, lease_ms=lease_ms, beaten_ms=beaten, **given)


def history(desk: Desk, key: str = "1") -> list[Mapping[str, Any]]:
    lines: Any = desk.redis.lrange(desk.keys.history(key), 0, -1)
    return [json.loads(line) for line in lines]


# What becomes of a job


def test_a_job_of_a_silent_executor_is_queued_again(desk: Desk) -> None:
    (delivery,) = desk.executing()
    assert recover(desk) == Sweep(True, False, requeued=1, dead=0, vanished=0, quarantined=0)
    ((entry, fields),) = desk.entries("s")
    record = desk.record()
    assert entry != delivery.entry
    assert fields == {"i": "1", "n": "2"}
    assert (record["s"], record["p"]) == ("Q", f"s/{entry}")
    assert desk.pending() == {}
    assert desk.stats() == {"recovered": 1}


@pytest.mark.parametrize("lane", ["", "s"])
def test_the_message_about_the_job_does_not_go_to_the_executor_that_it_was_taken_from(
    desk: Desk, lane: str
) -> None:
    desk.executing(a_job("1"), a_job("2"))
    with desk.subscribed("anna", "berta") as heard:
        desk.sleep("anna", "berta", lane=lane)
        assert recover(desk).requeued == 2
        assert heard() == [("berta", "look s")]
        assert desk.sleepers(lane) == set()


def test_whatever_the_silent_executor_still_does_with_it_is_refused(desk: Desk) -> None:
    zombie = desk.executing()
    recover(desk)
    (delivery,) = desk.take("berta")
    before = desk.everything()
    assert desk.finish(zombie) == [0]
    assert desk.release(zombie) == 0
    assert desk.everything() == before
    assert desk.finish([delivery]) == [1]


@pytest.mark.audit(unfinished=True)
def test_the_fence_of_the_next_run_is_higher(desk: Desk) -> None:
    (before,) = desk.executing()
    recover(desk)
    (after,) = desk.take("berta")
    assert after.fence > before.fence


def test_a_delivery_is_spent_and_a_try_is_not(desk: Desk) -> None:
    desk.enqueue(a_job())
    desk.finish(desk.take(), retried(0, FAILURE))
    desk.do(verbs.queues.promote, 100)
    desk.take()
    recover(desk)
    (delivery,) = desk.take()
    assert (delivery.tries, delivery.deliveries) == (1, 2)
    desk.finish([delivery])


@pytest.mark.parametrize("watched", [False, True])
def test_a_job_that_a_silent_executor_read_and_did_not_start_is_queued_again(
    desk: Desk, watched: bool
) -> None:
    desk.enqueue(a_job())
    if watched:  # Only then the record says in words that the job waits.
        desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES)
    desk.read()
    assert recover(desk).requeued == 1
    assert desk.entries("s")[0][1] == {"i": "1", "n": "2"}


@pytest.mark.parametrize("priority", ["high", "normal", "low"])
def test_a_job_goes_back_to_its_own_lane(desk: Desk, priority: str) -> None:
    (delivery,) = desk.executing(a_job(priority=priority))
    recover(desk)
    assert desk.waiting(delivery.lane) == ["1"]
    assert desk.everywhere() == ["1"]


def test_from_the_third_delivery_on_a_job_runs_in_quarantine(desk: Desk) -> None:
    desk.executing(a_job("1", priority="high"), a_job("2"))
    recover(desk)
    desk.take()
    recover(desk)
    assert sorted(desk.waiting("iso")) == sorted(desk.everywhere()) == ["1", "2"]
    assert desk.take() == []
    (one, two) = desk.fetch(lanes=["iso"]).deliveries
    assert (one.deliveries, two.deliveries) == (3, 3)
    recover(desk)
    assert [fields["n"] for _, fields in desk.entries("iso")] == ["4", "4"]


def test_after_the_last_delivery_a_job_is_dead(desk: Desk) -> None:
    desk.enqueue(a_job())
    desk.redelivered("1", 4, "iso")
    desk.fetch(lanes=["iso"])
    assert recover(desk) == Sweep(True, False, requeued=0, dead=1, vanished=0, quarantined=0)
    ((entry, fields),) = desk.entries("dlq")
    record = desk.record()
    assert (fields["i"], fields["e"], fields["y"]) == ("1", "CrashLoop", "crash_loop")
    assert (record["s"], record["p"], record["y"]) == ("D", f"dlq/{entry}", "crash_loop")
    assert "4 times" in json.loads(record["x"])["message"]
    assert desk.everywhere() == ["1"]
    assert desk.pending("iso") == {}
    assert desk.stats() == {"D": 1}


def test_clients_that_wait_for_a_dead_job_are_notified(desk: Desk) -> None:
    desk.executing()
    desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES)
    with desk.listening("me") as heard:
        recover(desk, max_deliveries=1)
        (result,) = desk.result()
        assert heard() == ("me", f"mail:1\n{result}".encode())
    assert json.loads(result)["dead"]["reason"] == "crash_loop"
    assert desk.result_ttl() == about(LIFETIMES.failure_ms)


def test_the_tries_of_a_job_that_crashed_for_good_are_kept(desk: Desk) -> None:
    desk.enqueue(a_job())
    desk.finish(desk.take(), retried(0, FAILURE))
    desk.do(verbs.queues.promote, 100)
    desk.take()
    recover(desk, max_deliveries=1)
    assert desk.record()["n"] == "1"
    assert json.loads(desk.record()["x"])["tries"] == 1


def test_a_job_may_have_a_budget_of_its_own(desk: Desk) -> None:
    desk.executing(a_job("1", max_deliveries=1), a_job("2", max_deliveries=2), a_job("3"))
    swept = recover(desk)
    assert (swept.requeued, swept.dead) == (2, 1)
    assert desk.waiting("dlq") == ["1"]


@pytest.mark.parametrize(
    ("deaths", "message"),
    [({"anna": "SIGKILL"}, "last: SIGKILL"), ({"berta": "SIGSEGV"}, "nothing is known")],
)
def test_the_failure_contains_what_is_known_of_the_death(
    desk: Desk, deaths: dict[str, str], message: str
) -> None:
    desk.executing()
    recover(desk, max_deliveries=1, deaths=deaths)
    assert message in json.loads(desk.record()["x"])["message"]
    (line,) = history(desk)
    assert (line["what"], line["owner"]) == ("recovered", "anna")
    assert line.get("more") == deaths.get("anna")


def test_every_recovery_is_a_line_of_the_job_s_history(desk: Desk) -> None:
    desk.executing()
    recover(desk)
    desk.take("berta")
    recover(desk, deaths={"berta": "exit code 1"})
    assert [(line["what"], line["owner"]) for line in history(desk)] == [
        ("recovered", "anna"),
        ("recovered", "berta"),
    ]
    assert desk.record()["H"] == "1"


# Whom it judges


@pytest.mark.audit(unfinished=True)
def test_a_lease_that_runs_is_respected(desk: Desk) -> None:
    fresh, old = desk.executing(*some_jobs(2))
    desk.silent([old], LEASE)
    assert recover(desk, lease_ms=LEASE).requeued == 1
    assert desk.pending() == {fresh.entry: "anna"}
    assert desk.finish([old, fresh]) == [0, 1]


@pytest.mark.audit(unfinished=True)
def test_a_sweep_by_an_executor_that_was_silent_for_half_a_lease_takes_no_job(desk: Desk) -> None:
    (delivery,) = desk.executing()
    desk.silent([delivery], LEASE)
    before = desk.everything()
    long_ago = desk.now() - LEASE // 2 - 1
    assert recover(desk, lease_ms=LEASE, more=False, beaten_ms=long_ago) == NOT_DONE
    assert recover(desk, lease_ms=LEASE, beaten_ms=long_ago) == NOT_DONE
    assert desk.everything() == before
    assert recover(desk, lease_ms=LEASE, beaten_ms=desk.now() - LEASE // 2 + 10_000).requeued == 1


@pytest.mark.audit(unfinished=True)
@pytest.mark.parametrize(("moved", "swept"), [(-31_000, 0), (-29_000, 1), (29_000, 1), (31_000, 0)])
def test_a_sweep_across_a_jump_of_the_servers_clock_takes_nothing(desk: Desk, moved: int, swept: int) -> None:
    """The sweeper's last beat was `ago` by its own clock; by the server's the time since then differs by `moved` ms."""
    (delivery,) = desk.executing()
    desk.silent([delivery], LEASE)
    ago = 0 if moved > 0 else LEASE // 2
    beaten = desk.now() - ago - moved
    answer = recover(desk, lease_ms=LEASE, more=False, beaten_ms=beaten, ago_ms=ago)
    assert answer.requeued == swept
    assert bool(desk.pending()) is not bool(swept)


def test_one_sweep_is_done_in_an_interval_by_all_executors_together(desk: Desk) -> None:
    desk.executing()
    assert recover(desk, more=False).requeued == 1
    desk.take("berta")
    assert recover(desk, more=False) == NOT_DONE
    assert desk.ttl(desk.keys["swept"]) == about(LEASE)
    desk.redis.delete(desk.keys["swept"])
    assert recover(desk, more=False).requeued == 1


def test_a_sweep_that_was_done_before_the_clock_was_set_back_delays_the_next_by_no_more_than_a_lease(
    desk: Desk,
) -> None:
    desk.executing()
    assert recover(desk, interval_ms=1_000, more=False).requeued == 1
    held = desk.take("berta")
    desk.silent(held, LEASE, "berta")
    desk.redis.pexpire(desk.keys["swept"], LEASE - 10_000)
    assert recover(desk, lease_ms=LEASE, interval_ms=1_000, more=False) == NOT_DONE
    desk.redis.pexpire(desk.keys["swept"], LEASE + 3_600_000)
    assert recover(desk, lease_ms=LEASE, interval_ms=1_000, more=False).requeued == 1
    assert 0 < desk.ttl(desk.keys["swept"]) <= 1_000


# How it walks


@pytest.mark.audit(unfinished=True)
def test_many_fresh_entries_do_not_hide_the_old_ones_behind(desk: Desk) -> None:
    old = desk.executing(a_job("first"))
    fresh = desk.executing(*some_jobs(100))
    old += desk.executing(a_job("last"))
    desk.silent(old, LEASE)
    pages = 1
    swept = recover(desk, lease_ms=LEASE, limit=1, more=False)
    found = swept.requeued
    while swept.more:
        swept = recover(desk, lease_ms=LEASE, limit=1)
        found, pages = found + swept.requeued, pages + 1
    assert found == 2
    assert pages >= 10
    assert set(desk.pending()) == {delivery.entry for delivery in fresh}


@pytest.mark.audit(unfinished=True)
def test_a_page_is_bounded_in_every_lane(desk: Desk) -> None:
    desk.executing(*some_jobs(10), *(a_job(f"low{number}", priority="low") for number in range(10)))
    swept = recover(desk, limit=3)
    assert (swept.requeued, swept.more) == (6, True)


def test_a_walk_begins_again_when_it_has_come_to_the_end(desk: Desk) -> None:
    for key in ("1", "2", "3"):
        desk.executing(a_job(key))
        assert recover(desk) == Sweep(True, False, 1, 0, 0, 0)
        desk.finish(desk.take())


# Odd entries


def test_an_entry_whose_record_is_gone_is_removed_and_counted(desk: Desk) -> None:
    desk.executing(*some_jobs(2))
    desk.redis.delete(desk.keys.record("1"))
    assert recover(desk) == Sweep(True, False, requeued=1, dead=0, vanished=1, quarantined=0)
    assert desk.waiting() == ["2"]
    assert desk.pending() == {}
    assert desk.stats() == {"recovered": 1, "vanished": 1}


def test_an_entry_of_a_job_that_is_elsewhere_is_removed_and_the_job_is_not(desk: Desk) -> None:
    desk.enqueue(a_job("1", delay_ms=86_400_000))
    desk.redis.xadd(desk.keys["s"], {"i": "1", "n": "1"})
    desk.read()
    assert recover(desk).vanished == 1
    assert desk.everywhere() == ["1"]
    assert desk.record()["p"] == "sched"


def test_every_job_that_was_recovered_is_counted(desk: Desk) -> None:
    desk.executing(*some_jobs(3))
    desk.recover()
    assert desk.stats() == {"recovered": 3}


def test_a_second_entry_of_a_job_that_waits_is_removed_and_the_job_stays(desk: Desk) -> None:
    desk.enqueue(a_job())
    desk.stray("s:low", i="1", n="1")
    desk.read(lanes=["s:low"])
    assert desk.recover().vanished == 1
    assert desk.everywhere() == desk.waiting("s") == ["1"]


@pytest.mark.parametrize("status", ["S", "N", "K", "D", "R", "L"])
@pytest.mark.audit(skip="the record was tampered with")
def test_a_job_that_does_not_run_is_not_queued_again(desk: Desk, status: str) -> None:
    desk.executing()
    desk.redis.hset(desk.keys.record("1"), "s", status)
    assert recover(desk) == Sweep(True, False, requeued=0, dead=0, vanished=1, quarantined=0)
    assert desk.entries("s") == []
    assert desk.pending() == {}


def test_an_entry_that_was_not_written_by_an_arrow_is_removed(desk: Desk) -> None:
    desk.redis.xadd(desk.keys["s"], {"what": "this"})
    desk.read()
    assert recover(desk).vanished == 1
    assert desk.entries("s") == []
    assert desk.pending() == {}


@pytest.mark.audit(lost={"mail:1"})
def test_an_entry_that_an_operator_deleted_leaves_the_pending_list_and_is_counted(desk: Desk) -> None:
    deleted, _ = desk.executing(*some_jobs(2))
    desk.redis.xdel(desk.keys["s"], deleted.entry)
    assert recover(desk) == Sweep(True, False, requeued=1, dead=0, vanished=1, quarantined=0)
    assert desk.pending() == {}
    assert desk.stats()["vanished"] == 1


def test_without_groups_there_is_nothing_to_recover(desk: Desk) -> None:
    desk.enqueue(a_job())
    assert recover(desk) == Sweep(True, False, 0, 0, 0, 0)
    assert desk.waiting() == ["1"]


@pytest.mark.audit(unfinished=True)
def test_an_executor_whose_turn_it_is_not_learns_how_many_jobs_wait_in_quarantine(desk: Desk) -> None:
    """Its supervisor starts an executor for them."""
    desk.enqueue(a_job("1"), a_job("2"))
    for key in ("1", "2"):
        desk.redelivered(key, 2)
    desk.take()
    desk.silence()
    assert recover(desk).quarantined == 2
    assert desk.waiting(QUARANTINE) == ["1", "2"]
    desk.redis.set(desk.keys["swept"], "2", px=LEASE)
    assert recover(desk, lease_ms=LEASE, more=False) == Sweep(False, False, 0, 0, 0, quarantined=2)
    assert desk.recover(silent=False, late_ms=LEASE).quarantined == 2
    assert len(desk.fetch("berta", lanes=(QUARANTINE,), free=1).deliveries) == 1
    assert recover(desk, lease_ms=LEASE, more=False).quarantined == 1


@pytest.mark.audit(unfinished=True)
def test_an_executor_whose_turn_it_is_not_asks_the_server_for_little(desk: Desk) -> None:
    desk.executing()
    desk.silence()
    before = desk.everything()
    desk.redis.set(desk.keys["swept"], "1", px=LEASE)
    assert desk.commands_of(lambda: recover(desk, lease_ms=LEASE, more=False)) == {
        "set": 1,
        "pttl": 1,
        "xlen": 1,
    }
    desk.redis.delete(desk.keys["swept"])
    assert desk.commands_of(lambda: desk.recover(silent=False, late_ms=LEASE)) == {"xlen": 1}
    assert desk.everything() == before


def test_one_missing_lane_does_not_keep_the_others_from_being_swept(desk: Desk) -> None:
    desk.executing(a_job("1", priority="high"), a_job("2"))
    desk.redis.delete(desk.keys["s:high"], desk.keys.record("1"))
    assert recover(desk).requeued == 1


def test_over_maxmemory_jobs_are_recovered(desk: Desk, server: Server) -> None:
    desk.executing(*some_jobs(3))
    with server.configured(maxmemory="1"):
        assert recover(desk, more=False).requeued == 3
        swept = recover(desk, max_deliveries=1)
    assert swept.requeued == 0
    assert desk.finish(desk.take(), DONE) == [1, 1, 1]


def test_a_cursor_that_is_none_delays_recovery_by_one_sweep(desk: Desk) -> None:
    desk.executing(a_job())
    desk.redis.hset(desk.keys["sweep"], "s", "by mistake")
    assert desk.recover().requeued == 0
    assert desk.recover().requeued == 1


def test_a_lane_that_no_executor_reads_gets_no_consumer_and_no_cursor(desk: Desk) -> None:
    desk.finish(desk.executing())
    desk.enqueue(a_job("2"))
    before = desk.everything()
    assert desk.recover() == Sweep(True, False, 0, 0, 0, 0)
    assert desk.everything() == before
    assert desk.consumers() == {"anna"}


def test_a_walk_that_has_ended_leaves_no_cursor(desk: Desk) -> None:
    desk.executing(*some_jobs(5))
    assert desk.recover(limit=3).more
    assert desk.redis.hkeys(desk.keys["sweep"]) == [b"s"]
    assert not desk.recover(limit=3).more
    assert not desk.redis.exists(desk.keys["sweep"])


def test_a_cursor_of_a_lane_that_is_not_walked_any_more_is_forgotten(desk: Desk) -> None:
    """Otherwise the next walk would begin behind the entries that were delivered since."""
    held = desk.executing(*some_jobs(2))
    desk.redis.hset(desk.keys["sweep"], "s", f"{desk.now() + 86_400_000}-0")
    desk.finish(held)
    desk.recover()
    desk.executing(a_job("3"))
    assert desk.recover().requeued == 1


def test_the_executor_of_a_job_that_recovery_has_buried_learns_that_it_has_lost_the_job(desk: Desk) -> None:
    running = desk.executing()
    assert desk.recover(max_deliveries=1).dead == 1
    assert desk.finish(running) == [0]
    assert desk.record()["s"] == "D"
