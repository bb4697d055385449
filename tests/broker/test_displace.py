"""displace: a queue that is full drops its oldest job for a new one."""

from __future__ import annotations

from typing import Any

import pytest

from fennelq.broker import verbs
from fennelq.broker.keys import GROUP
from fennelq.model.wire import AnyWireJob
from tests.broker.desk import LIFETIMES, Desk, a_job, some_jobs
from tests.kit.clock import ServerClock
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.both_servers, pytest.mark.audit(unfinished=True)]

NOON = 1_800_000_000_000
ONE = "c1:account/1"
FULL = "the queue was full (max_waiting is 2), and this was its oldest job"


def displace(desk: Desk, *jobs: AnyWireJob, most: int = 2) -> list[Any]:
    return desk.do(verbs.jobs.displace, jobs, most, LIFETIMES)


def dropped(desk: Desk) -> list[str]:
    """The dead jobs, in their order; all were dropped."""
    assert {fields["y"] for _, fields in desk.entries("dlq")} <= {"dropped"}
    return desk.waiting("dlq")


def test_the_oldest_job_is_dead_and_the_new_one_waits(desk: Desk) -> None:
    assert displace(desk, *some_jobs(2)) == [1, 1]
    assert displace(desk, a_job("3")) == [1]
    assert (desk.waiting(), dropped(desk)) == (["2", "3"], ["1"])
    record = desk.record("1")
    assert (record["s"], record["y"], record.get("n", "0")) == ("D", "dropped", "0")
    assert FULL in desk.result("1")[0]
    assert desk.stats().items() >= {"displaced": 1, "D": 1}.items()


def test_the_waiters_of_a_dropped_job_are_told(desk: Desk) -> None:
    displace(desk, *some_jobs(2))
    with desk.listening("ends") as heard:
        desk.do(verbs.jobs.watch, "ends", ["1"], LIFETIMES)
        displace(desk, a_job("3"))
        message = heard()
    assert message is not None
    assert message[1].startswith(b"mail:1\n")
    assert FULL.encode() in message[1]


def test_it_is_the_oldest_of_the_lowest_lane(desk: Desk) -> None:
    displace(
        desk,
        a_job("h", priority="high"),
        a_job("n"),
        a_job("l1", priority="low"),
        a_job("l2", priority="low"),
        most=4,
    )
    displace(desk, *some_jobs(3), most=4)
    assert dropped(desk) == ["l1", "l2", "n"]
    assert (desk.waiting("s:high"), desk.waiting()) == (["h"], ["1", "2", "3"])


def test_a_job_that_runs_neither_counts_nor_is_dropped(desk: Desk) -> None:
    displace(desk, *some_jobs(2))
    running = desk.take()
    assert displace(desk, a_job("3"), a_job("4"), a_job("5")) == [1, 1, 1]
    assert dropped(desk) == ["3"]
    assert desk.finish(running) == [1, 1]
    assert desk.waiting() == ["4", "5"]


def test_jobs_of_one_call_are_dropped_as_if_they_came_one_by_one(desk: Desk) -> None:
    assert displace(desk, *some_jobs(5)) == [1] * 5
    assert (desk.waiting(), dropped(desk)) == (["4", "5"], ["1", "2", "3"])


def test_without_a_job_in_a_lane_it_is_the_one_that_has_waited_longest_in_a_line(desk: Desk) -> None:
    displace(
        desk, *(a_job(key, gates=f"c1:account/{key[0]}") for key in ("a1", "b1", "a2", "b2", "a3")), most=9
    )
    desk.take()
    a_millisecond_passes(desk)
    assert displace(desk, a_job("4"), most=3) == [1]
    assert displace(desk, a_job("b3", gates="c1:account/b"), most=3) == [1]
    assert dropped(desk) == ["a2", "b2"]
    assert displace(desk, *(a_job(key, gates="c1:account/b") for key in ("b4", "b5")), most=3) == [1, 1]
    assert dropped(desk) == ["a2", "b2", "a3", "4"]
    assert desk.stats()["parked"] == 3


def a_millisecond_passes(desk: Desk) -> None:
    """What is sent now is younger than what was sent before: ages are in milliseconds."""
    before = desk.now()
    eventually(lambda: desk.now() > before + 1)


def test_the_slot_of_a_dropped_job_goes_to_a_line_that_waits_and_not_to_the_new_job(desk: Desk) -> None:
    """Each tenant has a line of its own, so the new job would not have to wait behind the others."""

    def of(tenant: int) -> AnyWireJob:
        return a_job(str(tenant), gates=f"c2:api t1:tenant/{tenant}")

    displace(desk, *map(of, range(6)), most=6)
    displace(desk, of(6), of(7), most=6)
    assert dropped(desk) == ["0", "1"]
    assert (desk.waiting(), sorted(desk.in_lines())) == (["2", "3"], ["4", "5", "6", "7"])


def test_the_slot_of_a_dropped_job_lets_the_next_of_its_line_in(desk: Desk) -> None:
    displace(desk, a_job("1", gates=ONE), a_job("2", gates=ONE), a_job("3", gates=ONE), most=3)
    assert (desk.waiting(), desk.in_lines()) == (["1"], ["2", "3"])
    assert displace(desk, a_job("4", gates=ONE), most=3) == [1]
    assert dropped(desk) == ["1"]
    assert (desk.waiting(), desk.in_lines()) == (["2"], ["3", "4"])


def test_a_repeat_drops_nothing(desk: Desk) -> None:
    displace(desk, *some_jobs(2))
    before = desk.everything()
    assert displace(desk, *some_jobs(2)) == [0, 0]
    assert desk.everything() == before


def test_entries_that_no_record_names_are_removed_first(desk: Desk) -> None:
    desk.enqueue(a_job("h", priority="high"))
    strays = [desk.stray("s", i="gone"), desk.stray("s", i="h")]
    assert displace(desk, *some_jobs(2), most=3) == [1, 1]
    assert dict(desk.entries("s")).keys().isdisjoint(strays)
    assert (desk.waiting(), desk.waiting("s:high"), dropped(desk)) == (["1", "2"], ["h"], [])
    assert desk.stats() == {"dropped": 2}


def test_a_job_is_accepted_although_none_can_be_dropped(desk: Desk) -> None:
    desk.enqueue(a_job("1"))
    desk.redelivered("1", 3, lane="iso")
    assert displace(desk, a_job("2"), most=1) == [1]
    assert (desk.waiting("iso"), desk.waiting(), dropped(desk)) == (["1"], ["2"], [])


@pytest.mark.audit(skip="a line was damaged on purpose")
def test_a_line_that_cannot_be_read_is_passed_over(desk: Desk) -> None:
    displace(
        desk,
        *(a_job(key, gates=f"c1:account/{key[0]}") for key in ("a1", "b1", "c1", "a2", "b2", "c2")),
        most=9,
    )
    desk.take()
    for account in "ac":
        line = f"{desk.keys.prefix}line:c:account/{account}@s"
        desk.redis.delete(line)
        desk.redis.set(line, "not mine")
    assert displace(desk, a_job("b3", gates="c1:account/b"), most=3) == [1]
    assert (dropped(desk), desk.stats()["parked"]) == (["b2"], 3)


def test_of_tenants_that_take_turns_the_oldest_job_is_dropped_and_not_the_only_one_of_a_small_tenant(
    desk: Desk, server_clock: ServerClock
) -> None:
    server_clock.stop_at(NOON)
    desk.enqueue(*(a_job(f"flood{n}", gates="t1:tenant/F") for n in range(4)))
    server_clock.pass_by(1)
    desk.enqueue(*(a_job(f"small{n}", gates=f"t1:tenant/{n}") for n in range(2)))
    displace(desk, *(a_job(f"more{n}", gates="t1:tenant/F") for n in range(5)), most=6)
    # The first one was in the lane; its place there went to the second, which is the last in the lane therefore.
    assert dropped(desk) == ["flood0", "flood2", "flood3", "small0", "small1"]


def test_the_lines_of_a_higher_lane_are_older_but_not_dropped_first(
    desk: Desk, server_clock: ServerClock
) -> None:
    server_clock.stop_at(NOON)
    displace(desk, *(a_job(key, gates=ONE, priority="high") for key in "12"), most=9)
    desk.take()
    displace(desk, *(a_job(key, gates=ONE) for key in "34"), most=9)
    server_clock.pass_by(1)
    displace(desk, a_job("5"), most=9)
    displace(desk, *(a_job(key) for key in "678"), most=4)
    assert (dropped(desk), desk.in_lines()) == (["3", "4", "5"], ["2"])


def test_of_lines_whose_first_jobs_came_at_the_same_moment_each_loses_its_first(
    desk: Desk, server_clock: ServerClock
) -> None:
    server_clock.stop_at(NOON)
    for number in "123":
        for account in "ab":
            desk.enqueue(a_job(account + number, gates=f"c1:account/{account}"))
        desk.take()
        server_clock.pass_by(1)
    displace(desk, *some_jobs(2), most=4)
    assert (sorted(dropped(desk)), sorted(desk.in_lines())) == (["a2", "b2"], ["a3", "b3"])


@pytest.mark.audit(skip="a record was damaged on purpose")
@pytest.mark.parametrize("damage", ["it is gone", "it is not a hash", "it does not say when it was created"])
def test_an_entry_whose_record_is_damaged_is_removed_before_the_jobs_of_lines(
    desk: Desk, damage: str
) -> None:
    displace(desk, a_job("1", gates=ONE), a_job("2", gates=ONE), most=9)
    desk.take()
    desk.enqueue(a_job("3"))
    if damage == "it does not say when it was created":
        desk.redis.hdel(desk.keys.record("3"), "c")
    else:
        desk.redis.delete(desk.keys.record("3"))
    if damage == "it is not a hash":
        desk.redis.set(desk.keys.record("3"), "not mine")
    assert displace(desk, a_job("4")) == [1]
    assert (desk.waiting(), desk.in_lines()) == (["1", "4"], ["2"])


def test_the_first_jobs_of_many_lines_are_read_once(desk: Desk) -> None:
    accounts = range(40)
    desk.enqueue(*(a_job(f"r{n}", gates=f"c1:account/{n}") for n in accounts))
    desk.take()
    desk.enqueue(*(a_job(f"{w}{n}", gates=f"c1:account/{n}") for w in "ab" for n in accounts))
    calls = iter("cd")

    def forty_more() -> None:
        call = next(calls)
        displace(desk, *(a_job(f"{call}{n}", gates=f"c1:account/{n}") for n in accounts), most=80)

    sent = desk.commands_of(forty_more)
    assert dropped(desk) == [f"{w}{n}" for w in "ab" for n in accounts]
    # Per line once, and per dropped job to see that it is still the first, to take it, and to see what follows.
    assert sent["zrange"] <= 40 + 4 * 40


def test_jobs_that_run_are_not_dropped_when_the_group_is_lost(desk: Desk) -> None:
    running = desk.executing(*some_jobs(2))
    desk.enqueue(a_job("3"), a_job("4"))
    desk.redis.xgroup_destroy(desk.keys["s"], GROUP)
    assert displace(desk, a_job("5"), a_job("6"), most=4) == [1, 1]
    assert (dropped(desk), [desk.record(key)["s"] for key in "12"]) == (["3", "4"], ["X", "X"])
    assert displace(desk, a_job("7"), a_job("8"), a_job("9"), most=3) == [1, 1, 1]
    assert dropped(desk) == ["3", "4", "5", "6", "7"]
    assert desk.finish(running) == [1, 1]


@pytest.mark.audit(skip="the keys were damaged on purpose")
@pytest.mark.parametrize("name", ["wait:c:account/1", "lines"])
@pytest.mark.parametrize("how", ["dropped", "cancelled", "purged"])
def test_a_job_in_a_line_whose_gate_is_damaged_ends_and_is_not_lost(desk: Desk, name: str, how: str) -> None:
    displace(desk, a_job("1", gates=ONE), a_job("2", gates=ONE))
    desk.take()
    desk.redis.delete(desk.keys.prefix + name)
    desk.redis.set(desk.keys.prefix + name, "not mine")
    if how == "dropped":
        assert displace(desk, a_job("3"), most=1) == [1]
    elif how == "cancelled":
        assert desk.cancel("2") == [1]
    else:
        desk.do(verbs.queues.purge, LIFETIMES, 10)
    ended = how == "cancelled" or name != "lines"
    assert desk.record("2").get("y") == (how if ended else None)
    assert desk.in_lines() == ([] if ended else ["2"])


@pytest.mark.audit(skip="the keys were damaged on purpose")
@pytest.mark.parametrize("name", ["s:low", "lines", "stats"])
def test_a_damaged_key_does_not_keep_a_new_job_out(desk: Desk, name: str) -> None:
    displace(desk, *some_jobs(2))
    desk.redis.delete(desk.keys[name])
    desk.redis.set(desk.keys[name], "not mine")
    assert displace(desk, a_job("3")) == [1]
    assert (desk.waiting(), dropped(desk)) == (["2", "3"], ["1"])


@pytest.mark.audit(skip="a record of a line was deleted on purpose")
def test_a_line_whose_record_is_gone_is_passed_over(desk: Desk) -> None:
    displace(desk, *(a_job(key, gates=ONE) for key in "12345"), most=9)
    desk.take()
    desk.redis.delete(desk.keys.record("2"))
    desk.redis.hset(desk.keys.record("3"), "p", "s/1-1")
    displace(desk, a_job("6", gates=ONE), most=4)
    assert (dropped(desk), desk.record("3")["p"], desk.in_lines()) == (["4"], "s/1-1", ["5", "6"])


def test_nothing_is_dropped_while_a_person_has_paused_enqueuing(desk: Desk) -> None:
    displace(desk, *some_jobs(2))
    desk.pause("enqueue")
    ((refused,),) = displace(desk, a_job("3"))
    assert refused.startswith(b"e\n")
    assert dropped(desk) == []
