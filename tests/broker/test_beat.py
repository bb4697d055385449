"""beat: renews the lease of every job an executor holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest

from fennelq.broker import verbs
from fennelq.broker.keys import GROUP
from fennelq.broker.verbs.executors import Beat
from fennelq.model.job import Delivery
from tests.broker.desk import Desk, a_job, some_jobs
from tests.kit.server import Server

pytestmark = [pytest.mark.both_servers, pytest.mark.audit(unfinished=True)]

HOUR = 3_600_000
LANES = ("s:high", "s", "s:low")


def beat(desk: Desk, held: Iterable[Delivery] = (), consumer: str = "anna", *, grace_ms: int = HOUR) -> Beat:
    entries = [(delivery.lane, delivery.entry) for delivery in held]
    return desk.do(verbs.executors.beat, consumer, grace_ms, entries)


def idle(desk: Desk, lane: str = "s") -> dict[str, int]:
    """Entry → milliseconds since its lease was renewed."""
    reply = cast("Any", desk.redis.xpending_range(desk.keys[lane], GROUP, "-", "+", 5000))
    return {entry["message_id"].decode(): entry["time_since_delivered"] for entry in reply}


def counted(desk: Desk) -> set[int]:
    reply = cast("Any", desk.redis.xpending_range(desk.keys["s"], GROUP, "-", "+", 5000))
    return {entry["times_delivered"] for entry in reply}


def token(delivery: Delivery) -> tuple[str, str]:
    return (delivery.lane, delivery.entry)


def one_in_each_lane(desk: Desk) -> list[Delivery]:
    return desk.executing(a_job("1", priority="high"), a_job("2"), a_job("3", priority="low"))


def quarantined(desk: Desk) -> list[Delivery]:
    """A job in quarantine, in the hands of anna."""
    desk.enqueue(a_job("suspect"))
    desk.redelivered("suspect", 3, "iso")
    return desk.fetch(lanes=["iso"]).deliveries


def test_every_lease_that_is_held_is_renewed_in_every_lane(desk: Desk) -> None:
    held = [*one_in_each_lane(desk), *quarantined(desk)]
    desk.silent(held, HOUR)
    answer = beat(desk, held, grace_ms=0)
    assert (answer.lost, answer.stranded) == ([], [])
    assert {delivery.lane for delivery in held} == {*LANES, "iso"}
    for delivery in held:
        assert idle(desk, delivery.lane)[delivery.entry] < HOUR


def test_a_renewal_spends_no_delivery(desk: Desk) -> None:
    held = desk.executing(*some_jobs(3))
    for _ in range(3):
        beat(desk, held)
    assert counted(desk) == {1}


def test_a_thousand_leases_and_more_are_renewed(desk: Desk) -> None:
    held: list[Delivery] = []
    for hundred in range(21):
        held += desk.executing(*(a_job(f"{hundred}.{job}") for job in range(100)))
    desk.silent(held, HOUR)
    answer = beat(desk, held, grace_ms=0)
    assert (answer.lost, answer.stranded) == ([], [])
    assert len(idle(desk)) == 2100
    assert max(idle(desk).values()) < HOUR


def test_the_leases_of_others_are_left_alone(desk: Desk) -> None:
    mine = desk.executing(a_job("1"))
    desk.enqueue(a_job("2"))
    theirs = desk.take("berta")
    desk.silent(theirs, HOUR, "berta")
    answer = beat(desk, mine, grace_ms=0)
    assert (answer.lost, answer.stranded) == ([], [])
    assert idle(desk)[theirs[0].entry] >= HOUR
    assert desk.pending()[theirs[0].entry] == "berta"


def test_an_executor_takes_no_job_by_claiming_to_hold_it(desk: Desk) -> None:
    (stolen,) = desk.executing()
    desk.release([stolen])
    (theirs,) = desk.take("berta")
    before = desk.everything()
    answer = beat(desk, [stolen, theirs])
    assert sorted(answer.lost) == sorted([token(stolen), token(theirs)])
    assert desk.everything() == before
    assert desk.finish([theirs]) == [1]


@pytest.mark.parametrize("how", ["finished", "released"])
def test_a_job_that_is_no_longer_ours_is_lost(desk: Desk, how: str) -> None:
    gone, kept = desk.executing(*some_jobs(2))
    if how == "finished":
        desk.finish([gone])
    else:
        desk.release([gone])
    answer = beat(desk, [gone, kept])
    assert answer.lost == [token(gone)]
    assert answer.stranded == []


def test_an_entry_of_the_same_id_in_another_lane_is_another_one(desk: Desk) -> None:
    (delivery,) = desk.executing()
    answer = beat(desk, [delivery._replace(lane="s:low")], grace_ms=0)
    assert answer.lost == [("s:low", delivery.entry)]
    assert answer.stranded == [token(delivery)]


def test_what_is_ours_and_unknown_to_us_is_stranded(desk: Desk) -> None:
    known, unknown = desk.executing(a_job("1"), a_job("2", priority="low"))
    answer = beat(desk, [known], grace_ms=0)
    assert answer.stranded == [token(unknown)]
    assert answer.lost == []


def test_what_may_yet_be_brought_by_a_reply_is_not_stranded(desk: Desk) -> None:
    desk.executing()
    assert beat(desk).stranded == []


def test_a_beat_only_names_what_is_stranded(desk: Desk) -> None:
    """Its lease goes on running: no executor renews it, and it is recovered if the executor does not act."""
    desk.executing()
    before = desk.everything()
    assert len(beat(desk, grace_ms=0).stranded) == 1
    assert desk.everything() == before


def test_it_returns_how_many_wait_in_quarantine(desk: Desk) -> None:
    desk.enqueue(*some_jobs(3))
    for key in "123":
        desk.redelivered(key, 3, "iso")
    assert beat(desk).quarantined == 3
    desk.fetch(lanes=["iso"], free=2)
    assert beat(desk).quarantined == 1


def test_an_idle_queue_has_nothing_to_report(desk: Desk) -> None:
    answer = beat(desk)
    assert (answer.lost, answer.stranded, answer.quarantined) == ([], [], 0)
    assert desk.consumers() == set()


def test_it_returns_the_time_of_the_server(desk: Desk) -> None:
    before = desk.now()
    assert before <= beat(desk).now_ms <= desk.now()


def test_without_groups_everything_is_lost(desk: Desk) -> None:
    held = one_in_each_lane(desk)
    desk.redis.flushall()
    answer = beat(desk, held)
    assert sorted(answer.lost) == sorted(map(token, held))
    assert (answer.stranded, answer.quarantined) == ([], 0)


def test_one_missing_lane_does_not_keep_the_others_from_being_renewed(desk: Desk) -> None:
    held = one_in_each_lane(desk)
    desk.silent(held, HOUR)
    desk.redis.delete(desk.keys["s:high"], desk.keys.record("1"))
    answer = beat(desk, held)
    assert answer.lost == [token(held[0])]
    assert idle(desk)[held[1].entry] < HOUR
    assert idle(desk, "s:low")[held[2].entry] < HOUR


def test_a_quarantine_lane_without_a_group_counts_all_its_jobs(desk: Desk) -> None:
    desk.enqueue(a_job())
    desk.redelivered("1", 3, "iso")
    desk.redis.xgroup_destroy(desk.keys["iso"], GROUP)
    assert beat(desk).quarantined == 1


def test_a_quarantine_lane_of_a_wrong_type_keeps_no_other_lane_from_being_renewed(desk: Desk) -> None:
    held = one_in_each_lane(desk)
    desk.silent(held, HOUR)
    desk.redis.set(desk.keys["iso"], "not a stream")
    answer = beat(desk, held)
    assert (answer.lost, answer.stranded, answer.quarantined) == ([], [], 0)
    assert max(idle(desk).values()) < HOUR
    desk.redis.delete(desk.keys["iso"])


@pytest.mark.audit(lost={"mail:1"})
def test_an_entry_that_was_deleted_is_counted_once_and_then_lost(desk: Desk) -> None:
    deleted, kept = desk.executing(*some_jobs(2))
    desk.redis.xdel(desk.keys["s"], deleted.entry)
    assert beat(desk, [deleted, kept]).lost == []
    assert desk.stats() == {"vanished": 1}
    assert desk.pending() == {kept.entry: "anna"}
    assert beat(desk, [deleted, kept]).lost == [token(deleted)]
    assert desk.stats() == {"vanished": 1}


def test_over_maxmemory_leases_are_renewed(desk: Desk, server: Server) -> None:
    held = one_in_each_lane(desk)
    desk.silent(held, HOUR)
    with server.configured(maxmemory="1"):
        beat(desk, held)
    assert max(idle(desk).values()) < HOUR
