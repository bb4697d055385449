"""beat: renews the lease of every job an executor holds, and names what it lost and what is stranded."""

from __future__ import annotations

from typing import Any, cast

import pytest

from fennelq.model.job import Delivery
from tests.broker.desk import LEASE_MS, Desk, a_job, some_jobs
from tests.kit.server import Server

pytestmark = [pytest.mark.both_servers, pytest.mark.audit(unfinished=True)]


def token(delivery: Delivery) -> tuple[str, str]:
    return delivery.lane, delivery.entry


def test_every_lease_that_is_held_is_renewed(desk: Desk) -> None:
    held = desk.executing(a_job("1"), a_job("2", priority="high"), a_job("3", priority="low"))
    desk.silence(*held)
    assert min(desk.idle(*held)) >= LEASE_MS
    beat = desk.beat("anna", *held)
    assert (beat.lost, beat.stranded, beat.quarantined) == ([], [], 0)
    assert max(desk.idle(*held)) < LEASE_MS
    assert desk.recover(silent=False).requeued == 0


def test_a_lease_in_quarantine_is_renewed_too(desk: Desk) -> None:
    desk.executing()
    desk.redelivered("1", 3, "iso")
    (held,) = desk.fetch(lanes=["iso"]).deliveries
    desk.silence(held)
    assert desk.beat("anna", held).lost == []
    assert desk.idle(held)[0] < LEASE_MS


def test_a_beat_changes_nothing_but_leases(desk: Desk) -> None:
    held = desk.executing(*some_jobs(3))
    desk.enqueue(a_job("4"))
    before = [desk.record(key) for key in "1234"], desk.entries("s"), desk.pending(), desk.stats()
    desk.beat("anna", *held[:2], grace_ms=0)
    assert before == ([desk.record(key) for key in "1234"], desk.entries("s"), desk.pending(), desk.stats())


def test_a_beat_counts_as_no_delivery(desk: Desk) -> None:
    (held,) = desk.executing()
    for _ in range(3):
        desk.beat("anna", held)
    (pending,) = cast("Any", desk.redis.xpending_range(desk.keys["s"], "fq", "-", "+", 10))
    assert pending["times_delivered"] == 1


def test_a_job_that_was_taken_away_is_lost(desk: Desk) -> None:
    lost, kept = desk.executing(*some_jobs(2))
    desk.silence(lost)
    desk.recover(silent=False)
    beat = desk.beat("anna", lost, kept)
    assert beat.lost == [token(lost)]
    assert desk.pending().keys() == {kept.entry}


def test_a_job_that_was_settled_meanwhile_is_named_as_well(desk: Desk) -> None:
    (held,) = desk.executing()
    desk.finish([held])
    assert desk.beat("anna", held).lost == [token(held)]


def test_a_job_that_another_has_got_is_lost_and_not_taken_back(desk: Desk) -> None:
    zombie = desk.executing()
    desk.recover()
    (delivery,) = desk.take("berta")
    assert desk.beat("anna", *zombie).lost == [token(zombie[0])]
    assert desk.beat("anna", delivery).lost == [token(delivery)]
    assert desk.pending() == {delivery.entry: "berta"}


def test_what_a_lost_reply_left_with_us_is_stranded_once_it_is_old_enough(desk: Desk) -> None:
    held, forgotten = desk.executing(*some_jobs(2))
    assert desk.beat("anna", held, grace_ms=LEASE_MS).stranded == []
    desk.silence(forgotten)
    beat = desk.beat("anna", held, grace_ms=LEASE_MS)
    assert (beat.lost, beat.stranded) == ([], [token(forgotten)])
    assert desk.idle(forgotten)[0] >= LEASE_MS


def test_what_is_with_others_is_not_ours_to_name_or_renew(desk: Desk) -> None:
    desk.enqueue(*some_jobs(2))
    (mine,) = desk.take("anna", free=1)
    (theirs,) = desk.take("berta", free=1)
    desk.silence(mine, theirs)
    assert desk.beat("anna", mine, grace_ms=0).stranded == []
    assert desk.idle(theirs)[0] >= LEASE_MS


def test_it_tells_how_many_wait_in_quarantine(desk: Desk) -> None:
    desk.executing(*some_jobs(3))
    for key in "123":
        desk.redelivered(key, 3, "iso")
    assert desk.beat("anna").quarantined == 3


def test_thousands_are_renewed_in_one_beat(desk: Desk) -> None:
    for page in range(22):
        desk.enqueue(*(a_job(f"{page}-{key}") for key in range(100)))
    held = [delivery for _ in range(22) for delivery in desk.take(free=100)]
    assert len(held) == 2200
    beat = desk.beat("anna", *held[:100], *held[200:], grace_ms=0)
    assert beat.lost == []
    assert beat.stranded == [token(delivery) for delivery in held[100:200]]
    desk.silence(held[0], held[1500], held[-1])
    desk.beat("anna", *held)
    assert max(desk.idle(held[0], held[1500], held[-1])) < LEASE_MS


def test_what_an_operator_deleted_is_lost_by_the_second_beat(desk: Desk) -> None:
    first, second = desk.executing(*some_jobs(2))
    desk.redis.xdel(desk.keys["s"], first.entry)
    desk.beat("anna", first, second)
    assert desk.beat("anna", first, second).lost == [token(first)]
    desk.redis.delete(desk.keys.record("1"))


def test_without_a_group_everything_is_lost(desk: Desk) -> None:
    held = desk.executing(a_job("1"), a_job("2", priority="low"))
    desk.redis.delete(desk.keys["s"], desk.keys.record("1"))
    assert desk.beat("anna", *held).lost == [token(held[0])]
    desk.open()


def test_an_executor_without_jobs_may_beat(bare: Desk) -> None:
    beat = bare.beat("anna")
    assert (beat.lost, beat.stranded, beat.quarantined) == ([], [], 0)


def test_over_maxmemory_the_heart_goes_on_beating(desk: Desk, server: Server) -> None:
    (held,) = desk.executing()
    desk.silence(held)
    with server.configured(maxmemory="1"):
        assert desk.beat("anna", held).lost == []
    assert desk.idle(held)[0] < LEASE_MS
