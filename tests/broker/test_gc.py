"""gc: bounds the DLQ by age and by count, and drops unused consumers."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.broker.desk import READ, Desk, a_job, some_jobs
from tests.kit.server import Server
from tests.kit.waiting import eventually

pytestmark = pytest.mark.both_servers

HOUR = 3_600_000
DAY = 24 * HOUR


def died_long_ago(desk: Desk, age_ms: int, *keys: str) -> None:
    """Dead jobs, by a DLQ entry that old. The DLQ must be empty."""
    desk.dead(*(a_job(key) for key in keys))
    died = desk.now() - age_ms
    dead = desk.entries("dlq")
    desk.redis.delete(desk.keys["dlq"])
    for number, (_, fields) in enumerate(dead):
        entry = f"{died}-{number}"
        desk.redis.xadd(desk.keys["dlq"], cast("Any", fields), id=entry)
        desk.redis.hset(desk.keys.record(fields["i"]), "p", f"dlq/{entry}")
    desk.redis.delete(desk.keys["dlq:g"])
    desk.index()


def test_the_dead_of_old_are_removed_with_all_that_is_theirs(desk: Desk) -> None:
    died_long_ago(desk, DAY, "1", "2")
    desk.dead(a_job("young"))
    assert desk.gc(max_age_ms=DAY - HOUR) == (2, 0)
    assert desk.waiting("dlq") == ["young"]
    assert desk.record("1") == desk.record("2") == {}
    assert desk.result("1") == desk.result("2") == []
    assert desk.record("young")["s"] == "D"
    assert desk.stats()["purged"] == 2


def test_the_dead_who_are_not_old_enough_stay(desk: Desk) -> None:
    died_long_ago(desk, DAY, "1", "2")
    before = desk.everything()
    assert desk.gc(max_age_ms=DAY + HOUR) == (0, 0)
    assert desk.everything() == before


def test_of_too_many_dead_the_oldest_are_removed(desk: Desk) -> None:
    desk.dead(*some_jobs(10))
    assert desk.gc(max_len=7) == (3, 0)
    assert desk.waiting("dlq") == [str(key) for key in range(4, 11)]
    assert desk.record("3") == {}
    assert desk.gc(max_len=7) == (0, 0)


def test_age_and_count_bound_together(desk: Desk) -> None:
    died_long_ago(desk, DAY, "1", "2", "3")
    desk.dead(*(a_job(key) for key in "4567"))
    assert desk.gc(max_age_ms=HOUR, max_len=3) == (4, 0)
    assert desk.waiting("dlq") == ["5", "6", "7"]


def test_many_dead_are_removed_in_pages(desk: Desk) -> None:
    desk.dead(*some_jobs(25))
    assert [desk.gc(max_len=0, limit=10)[0] for _ in range(4)] == [10, 10, 5, 0]


def test_the_key_of_a_removed_job_is_free(desk: Desk) -> None:
    desk.dead(a_job(idempotency="app:welcome:42"))
    desk.gc(max_len=0)
    assert desk.enqueue(a_job("2", idempotency="app:welcome:42")) == [1]


def test_stray_entries_go_and_the_jobs_that_are_elsewhere_stay(desk: Desk) -> None:
    desk.enqueue(a_job())
    desk.redis.xadd(desk.keys["dlq"], {"i": "1"})
    desk.redis.xadd(desk.keys["dlq"], {"what": "this"})
    assert desk.gc(max_len=0) == (2, 0)
    assert desk.everywhere() == ["1"]


# Consumers


def idle(desk: Desk, consumer: str, lane: str = "s", milliseconds: int = 5) -> None:
    """Returns when the consumer has done nothing for that long."""

    def long_enough() -> bool:
        reply = cast("Any", desk.redis.xinfo_consumers(desk.keys[lane], "fq"))
        return all(facts["idle"] > milliseconds for facts in reply if facts["name"] == consumer.encode())

    eventually(long_enough)


def test_an_unused_consumer_is_dropped_in_every_lane(desk: Desk) -> None:
    desk.enqueue(a_job("1"), a_job("2", priority="high"), a_job("3", priority="low"))
    desk.finish(desk.take("anna"))
    for lane in ("s", "s:high", "s:low"):
        idle(desk, "anna", lane)
    assert desk.gc(idle_ms=4) == (0, 3)
    assert desk.consumers("s") == desk.consumers("s:high") == desk.consumers("s:low") == set()


def test_a_consumer_that_was_seen_lately_stays(desk: Desk) -> None:
    desk.finish(desk.executing())
    assert desk.gc(idle_ms=HOUR) == (0, 0)
    assert desk.consumers() == {"anna"}


@pytest.mark.audit(unfinished=True)
def test_a_consumer_that_still_holds_an_entry_is_never_dropped(desk: Desk) -> None:
    held = desk.executing()
    idle(desk, "anna")
    desk.gc(idle_ms=0)
    assert desk.consumers() == {"anna"}
    assert desk.finish(held) == [1]
    idle(desk, "anna")
    desk.gc(idle_ms=0)
    assert desk.consumers() == set()


@pytest.mark.audit(unfinished=True)
def test_only_the_unused_of_several_consumers_are_dropped(desk: Desk) -> None:
    for name in ("anna", "berta", "clara"):
        desk.enqueue(a_job(name))
        (delivery,) = desk.take(name)
        if name != "berta":
            desk.finish([delivery])
    for name in ("anna", "berta", "clara"):
        idle(desk, name)
    desk.gc(idle_ms=4)
    assert desk.consumers() == {"berta"}


def test_consumers_are_dropped_in_pages(desk: Desk) -> None:
    desk.make_lanes()
    for name in range(7):
        desk.redis.xgroup_createconsumer(desk.keys["s"], "fq", f"c{name}")
        desk.redis.xgroup_createconsumer(desk.keys["s:low"], "fq", f"c{name}")
        idle(desk, f"c{name}", milliseconds=1)
        idle(desk, f"c{name}", "s:low", milliseconds=1)
    assert [desk.gc(idle_ms=0, limit=4)[1] for _ in range(5)] == [4, 4, 4, 2, 0]


def test_ten_restarts_leave_no_consumers_behind(desk: Desk) -> None:
    for name in range(10):
        desk.enqueue(a_job(str(name)))
        desk.finish(desk.take(f"executor-{name}"))
    idle(desk, "executor-9")
    desk.gc(idle_ms=4)
    assert desk.consumers() == set()


def test_a_queue_without_groups_has_no_consumers(desk: Desk) -> None:
    desk.enqueue(a_job())
    assert desk.gc(idle_ms=0) == (0, 0)


def test_over_maxmemory_house_is_kept(desk: Desk, server: Server) -> None:
    desk.dead(*some_jobs(3))
    idle(desk, "anna")
    with server.configured(maxmemory="1"):
        assert desk.gc(max_len=0, idle_ms=4)[0] == 3
    assert desk.consumers() == set()


# Executors that sleep


@pytest.mark.parametrize("lane", ["", *READ])
def test_names_without_a_subscriber_are_dropped(desk: Desk, lane: str) -> None:
    with desk.subscribed("anna", "berta") as heard:
        desk.sleep("anna", "berta", "killed-1", "killed-2", lane=lane)
        assert desk.gc() == (0, 0)
        assert desk.sleepers(lane) == {"anna", "berta"}
        # It asks the server who listens, and sends nothing.
        assert heard() == []


def test_the_names_of_killed_executors_leave_no_key(desk: Desk) -> None:
    for lane in ("", *READ):
        desk.sleep("killed", lane=lane)
    desk.gc()
    assert desk.everything() == {}


def test_at_most_a_page_of_each_set_is_dropped(desk: Desk) -> None:
    for lane in ("", "s"):
        desk.sleep(*(f"killed-{number}" for number in range(25)), lane=lane)
    left = list[tuple[int, int]]()
    for _ in range(3):
        desk.gc(limit=10)
        left.append((len(desk.sleepers()), len(desk.sleepers("s"))))
    assert left == [(15, 15), (5, 5), (0, 0)]


def test_a_subscriber_of_another_queue_does_not_count(desk: Desk, server: Server) -> None:
    with Desk.opened(server, "post") as other, other.subscribed("anna"):
        desk.sleep("anna")
        other.sleep("anna")
        desk.gc()
        other.gc()
        assert (desk.sleepers(), other.sleepers()) == (set(), {"anna"})


@pytest.mark.parametrize("lane", ["", *READ])
@pytest.mark.audit(skip="the set has a wrong type on purpose")
def test_a_set_of_a_wrong_type_does_not_keep_the_other_names(desk: Desk, lane: str) -> None:
    others = {"", *READ} - {lane}
    for other in others:
        desk.sleep("killed", lane=other)
    desk.redis.set(desk.sleepers_key(lane), "what?")
    assert desk.gc() == (0, 0)
    assert all(desk.sleepers(other) == set() for other in others)


def test_over_maxmemory_names_are_dropped(desk: Desk, server: Server) -> None:
    desk.sleep("killed")
    with server.configured(maxmemory="1"):
        desk.gc()
    assert desk.sleepers() == set()
