"""fetch: the only way to take jobs."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from typing import cast

import orjson
import pytest

from fennelq.broker import verbs
from fennelq.broker.keys import LANES, STREAMS
from fennelq.broker.verbs.runs import Catch, TooNew
from fennelq.model.lifetimes import Lifetimes
from fennelq.model.outcome import not_known, retried, snoozed
from tests.broker.desk import DEAD, FAILURE, LIFETIMES, QUEUE, READ, Desk, a_job, about, some_jobs
from tests.kit.server import Server
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.both_servers, pytest.mark.audit(unfinished=True)]

DAY = 86_400_000
KB = 1024


def test_a_fetched_job_is_executing_and_owned(desk: Desk) -> None:
    desk.enqueue(a_job("7", options=b'{"r":1}'))
    before = desk.now()
    (delivery,) = desk.take("anna")
    record = desk.record("7")
    assert desk.pending() == {delivery.entry: "anna"}
    assert record["s"] == "X"
    assert record["p"] == f"s/{delivery.entry}"
    owner, begun, starts = record["w"].split()
    assert (owner, starts) == ("anna", "1")
    assert before <= int(begun) <= desk.now()


def test_a_delivery_has_everything_that_is_needed_to_run_the_job(desk: Desk) -> None:
    desk.enqueue(a_job("7", options=b'{"r":1}'))
    (delivery,) = desk.take()
    entry, _ = desk.entries("s")[0]
    assert (delivery.queue, delivery.lane, delivery.entry, delivery.key) == (QUEUE, "s", entry, "7")
    assert (delivery.task, delivery.args, delivery.options) == ("app:welcome", b"[42]", b'{"r":1}')
    assert (delivery.tries, delivery.deliveries, delivery.fence) == (0, 1, 1)
    assert delivery.enqueued_ms == int(desk.record("7")["c"])


def test_a_job_is_delivered_once(desk: Desk) -> None:
    desk.enqueue(*some_jobs(20))
    takes = [desk.take(name, free=7) for name in ("anna", "berta", "clara", "dora")]
    keys = [delivery.key for take in takes for delivery in take]
    assert [len(take) for take in takes] == [7, 7, 6, 0]
    assert keys == [str(key) for key in range(1, 21)]


def test_no_more_is_taken_than_there_are_free_slots(desk: Desk) -> None:
    desk.enqueue(*some_jobs(30))
    assert len(desk.take(free=20)) == 20
    assert len(desk.pending()) == 20
    assert desk.take(free=0) == []


def test_priorities_are_read_from_high_to_low(desk: Desk) -> None:
    for priority in ("low", "normal", "high", "low", "normal", "high"):
        desk.enqueue(a_job(f"{priority}-{len(desk.everywhere())}", priority=priority))
    order = [delivery.key for delivery in desk.take()]
    assert order == ["high-2", "high-5", "normal-1", "normal-4", "low-0", "low-3"]


def test_a_full_lane_keeps_the_lower_ones_waiting(desk: Desk) -> None:
    desk.enqueue(*some_jobs(3, priority="high"), a_job("normal"))
    catch = desk.fetch(free=3)
    assert [delivery.lane for delivery in catch.deliveries] == ["s:high"] * 3
    assert not catch.drained
    assert desk.pending("s") == {}


def test_with_one_slot_free_no_lower_job_starts_while_a_higher_one_waits(desk: Desk) -> None:
    """Whatever arrives in between, and however many executors take turns."""
    chance, waiting = random.Random(7), Counter[str]()
    for step in range(150):
        priority = chance.choice(["high", "normal", "low", "low"])
        desk.enqueue(a_job(str(step), priority=priority))
        waiting[LANES[priority]] += 1
        if chance.random() < 0.6:
            (delivery,) = desk.take(chance.choice(["anna", "berta"]), free=1)
            assert delivery.lane == next(lane for lane in READ if waiting[lane])
            waiting[delivery.lane] -= 1
    assert waiting["s:low"] > 20


def test_lanes_that_are_not_asked_for_are_left_alone(desk: Desk) -> None:
    desk.enqueue(a_job("1"), a_job("2", priority="low"))
    assert [delivery.key for delivery in desk.fetch(lanes=["s:high", "s:low"]).deliveries] == ["2"]


def test_it_returns_whether_something_is_left(desk: Desk) -> None:
    assert desk.fetch().drained
    desk.enqueue(*some_jobs(3))
    assert not desk.fetch(free=2).drained
    assert desk.fetch(free=2).drained


@pytest.mark.parametrize("lanes", [["s:high"], ["s:low"], ["s:high", "s:low"], ["iso"]])
def test_an_executor_that_does_not_read_the_only_lane_that_there_is_finds_nothing(
    desk: Desk, lanes: list[str]
) -> None:
    desk.enqueue(*some_jobs(2))
    catch = desk.fetch(lanes=lanes, sleeps=True)
    assert (catch.deliveries, catch.drained) == ([], True)
    assert not desk.sleepers()
    assert [lane for lane in lanes if "anna" in desk.sleepers(lane)] == lanes


def test_a_lane_that_gave_less_than_was_asked_for_is_not_read_again(desk: Desk) -> None:
    def reads() -> int:
        stats = cast("dict[str, dict[str, int]]", desk.redis.info("commandstats"))
        return stats.get("cmdstat_xreadgroup", {}).get("calls", 0)

    desk.make_lanes("s")
    desk.enqueue(*some_jobs(3))
    before = reads()
    assert len(desk.fetch(lanes=["s"]).deliveries) == 3
    assert reads() == before + 1


def test_big_jobs_are_taken_by_bytes_and_not_by_slots(desk: Desk) -> None:
    desk.enqueue(*some_jobs(40, args=b"x" * (100 * KB)))
    catch = desk.fetch()
    assert 10 <= len(catch.deliveries) <= 12
    assert not catch.drained
    taken = len(catch.deliveries)
    while not catch.drained:
        catch = desk.fetch()
        taken += len(catch.deliveries)
    assert taken == 40


def test_the_biggest_jobs_overshoot_by_one_small_page(desk: Desk) -> None:
    desk.enqueue(*some_jobs(20, args=b"x" * (512 * KB)))
    assert len(desk.take()) == 8


def test_small_jobs_are_not_held_up_by_the_byte_limit(desk: Desk) -> None:
    desk.enqueue(*some_jobs(100))
    assert len(desk.take(free=100)) == 100


@pytest.mark.parametrize("run", ["", "anna", "anna 1 many", "\0"])
def test_a_job_whose_last_start_cannot_be_read_starts_as_for_the_first_time(desk: Desk, run: str) -> None:
    desk.enqueue(a_job())
    desk.redis.hset(desk.keys.record("1"), "w", run)
    (delivery,) = desk.take()
    assert delivery.fence == 1


@pytest.mark.parametrize("lane", ["s", "iso"])
def test_a_job_that_is_queued_again_comes_with_its_delivery_number(desk: Desk, lane: str) -> None:
    desk.executing()
    desk.redelivered("1", 3, lane)
    (delivery,) = desk.fetch("berta", lanes=[lane]).deliveries
    assert (delivery.lane, delivery.deliveries, delivery.fence) == (lane, 3, 2)


def test_a_job_whose_start_was_lost_in_a_failover_keeps_its_deliveries(desk: Desk) -> None:
    desk.enqueue(a_job())
    desk.redelivered("1", 3)
    (delivery,) = desk.fetch().deliveries
    assert (delivery.deliveries, delivery.fence) == (3, 1)


def test_the_fence_grows_with_every_start(desk: Desk) -> None:
    desk.enqueue(a_job())
    fences = list[int]()
    for _ in range(4):
        deliveries = desk.take()
        fences += [delivery.fence for delivery in deliveries]
        desk.release(deliveries)
    assert fences == [1, 2, 3, 4]
    assert all(later > earlier for earlier, later in pairwise(fences))


def test_it_returns_when_the_next_job_is_due(desk: Desk) -> None:
    assert desk.fetch().due_ms == -1
    desk.enqueue(a_job("far", delay_ms=2 * DAY))
    assert desk.fetch().due_ms == about(2 * DAY)
    desk.redis.zadd(desk.keys["retry"], {"near": desk.now() + DAY})
    assert desk.fetch().due_ms == about(DAY)
    desk.redis.zadd(desk.keys["sched"], {"overdue": 1})
    assert desk.fetch().due_ms == 0
    desk.redis.zrem(desk.keys["retry"], "near")
    desk.redis.zrem(desk.keys["sched"], "overdue")


def test_a_set_of_a_wrong_type_does_not_stop_reading(desk: Desk) -> None:
    desk.enqueue(a_job())
    desk.redis.set(desk.keys["sched"], "what?")
    assert [delivery.key for delivery in desk.take()] == ["1"]
    desk.redis.delete(desk.keys["sched"])


# Lanes and groups


def groups(desk: Desk) -> dict[str, list[str]]:
    return {lane: desk.groups(lane) for lane in STREAMS}


def test_a_queue_without_a_job_has_no_key(desk: Desk) -> None:
    catch = desk.fetch(lanes=STREAMS)
    assert catch == Catch([], drained=True, due_ms=-1, made=[], problem="", too_new=[])
    assert desk.everything() == {}


def test_a_lane_is_made_by_its_first_job_and_its_group_by_the_first_fetch(desk: Desk) -> None:
    desk.enqueue(a_job("1"), a_job("2", priority="low"))
    assert groups(desk) == {"s:high": [], "s": [], "s:low": [], "iso": []}
    catch = desk.fetch()
    assert catch.made == ["s", "s:low"]
    assert [delivery.key for delivery in catch.deliveries] == ["1", "2"]
    assert groups(desk) == {"s:high": [], "s": ["fq"], "s:low": ["fq"], "iso": []}
    assert not desk.redis.exists(desk.keys["s:high"], desk.keys["iso"])
    desk.enqueue(a_job("3"))
    assert desk.fetch().made == []


def test_jobs_that_were_sent_before_a_group_existed_are_delivered_in_their_order(desk: Desk) -> None:
    desk.enqueue(*some_jobs(20))
    assert [delivery.key for delivery in desk.take(free=12)] == [str(key) for key in range(1, 13)]
    assert [delivery.key for delivery in desk.take(free=12)] == [str(key) for key in range(13, 21)]


@pytest.mark.parametrize("how", ["deleted", "group destroyed"])
def test_a_lane_that_was_lost_is_made_anew(desk: Desk, how: str) -> None:
    desk.finish(desk.executing(a_job("1")))
    if how == "deleted":
        desk.redis.delete(desk.keys["s"])
    else:
        desk.redis.xgroup_destroy(desk.keys["s"], "fq")
    assert desk.fetch().made == []
    desk.enqueue(a_job("2"))
    catch = desk.fetch()
    assert catch.made == ["s"]
    assert [delivery.key for delivery in catch.deliveries] == ["2"]


def test_a_lost_lane_does_not_keep_the_others_from_being_read(desk: Desk) -> None:
    desk.make_lanes()
    desk.redis.delete(desk.keys["s:high"])
    desk.enqueue(a_job("1"), a_job("2", priority="low"))
    catch = desk.fetch()
    assert (catch.made, catch.problem, catch.drained) == ([], "", True)
    assert [delivery.key for delivery in catch.deliveries] == ["1", "2"]


def test_reading_an_empty_lane_makes_no_consumer(desk: Desk) -> None:
    desk.make_lanes()
    before = desk.everything()
    desk.fetch(lanes=STREAMS)
    assert [desk.consumers(lane) for lane in STREAMS] == [set()] * 4
    assert desk.everything() == before
    desk.enqueue(a_job())
    desk.take()
    assert [desk.consumers(lane) for lane in STREAMS] == [set(), {"anna"}, set(), set()]


@pytest.mark.parametrize("lanes", [READ, ("s", "s:low")], ids=["all lanes", "some lanes"])
def test_an_executor_that_finds_nothing_sleeps_makes_nothing_and_learns_when_a_job_is_due(
    desk: Desk, lanes: tuple[str, ...]
) -> None:
    desk.enqueue(a_job(delay_ms=DAY))
    desk.redis.xdel(desk.keys["s"], desk.stray("s", i="2"))
    before = desk.everything()
    catch = desk.fetch(lanes=lanes, sleeps=True)
    assert catch == Catch([], drained=True, due_ms=about(DAY), made=[], problem="", too_new=[])
    asleep = [""] if lanes == READ else lanes
    after = desk.everything()
    assert {name: after.pop(desk.sleepers_key(name)) is not None for name in asleep} == dict.fromkeys(
        asleep, True
    )
    assert after == before
    assert {lane: desk.sleepers(lane) for lane in asleep} == {lane: {"anna"} for lane in asleep}
    assert (desk.groups("s"), desk.consumers("s")) == ([], set())


def test_a_look_at_empty_lanes_asks_the_server_for_little(desk: Desk) -> None:
    assert desk.commands_of(lambda: desk.fetch(sleeps=True)) == {"exists": 1, "xlen": 1, "sadd": 1}
    assert desk.commands_of(desk.fetch) == {"exists": 1, "xlen": 1}
    desk.make_lanes()
    assert desk.commands_of(lambda: desk.fetch(sleeps=True)) == {"exists": 2, "xlen": 3, "sadd": 1}
    desk.enqueue(a_job("later", delay_ms=60_000))
    assert desk.commands_of(desk.fetch) == {"exists": 2, "get": 1, "xlen": 3, "zrange": 3}


def test_a_fetch_that_puts_a_job_off_says_when_it_is_due(desk: Desk) -> None:
    """Nothing was due when it began."""
    desk.enqueue(a_job())
    desk.redis.hset(desk.keys.record("1"), "v", "99")
    catch = desk.fetch()
    assert (catch.deliveries, len(catch.too_new)) == ([], 1)
    assert 0 < catch.due_ms <= 30_000


@pytest.mark.parametrize("lane", READ)
def test_a_job_in_any_lane_is_found(desk: Desk, lane: str) -> None:
    desk.enqueue(a_job(priority={lane: name for name, lane in LANES.items()}[lane]))
    assert [delivery.lane for delivery in desk.fetch(sleeps=True).deliveries] == [lane]


def test_the_error_of_a_lane_is_in_the_reply_and_the_other_lanes_are_read(desk: Desk) -> None:
    desk.enqueue(a_job("1", priority="high"), a_job("2", priority="low"))
    desk.redis.set(desk.keys["s"], "what?")
    catch = desk.fetch(sleeps=True)
    assert [delivery.key for delivery in catch.deliveries] == ["1", "2"]
    assert catch.problem.startswith("WRONGTYPE")
    assert (catch.made, desk.sleepers()) == (["s:high", "s:low"], set())
    desk.redis.delete(desk.keys["s"])
    assert desk.fetch().problem == ""


def test_over_maxmemory_a_lane_gets_its_group(desk: Desk, server: Server) -> None:
    desk.enqueue(a_job())
    with server.configured(maxmemory="1"):
        catch = desk.fetch()
    assert (catch.made, [delivery.key for delivery in catch.deliveries]) == (["s"], ["1"])


def test_a_job_whose_group_was_destroyed_under_it_starts_again_and_is_finished_once(desk: Desk) -> None:
    """Its entry comes again with the new group. It is the job's place, so it must not be dropped."""
    (first,) = desk.executing()
    desk.redis.xgroup_destroy(desk.keys["s"], "fq")
    (second,) = desk.take("berta")
    assert second.token == first.token
    assert second.fence == 2
    assert desk.finish([second]) == [1]
    assert desk.finish([first]) == [2]


# What may not run


def expire(desk: Desk, key: str = "1") -> None:
    eventually(lambda: desk.now() > int(desk.record(key)["E"]))


def test_an_expired_job_is_cancelled_and_its_waiters_find_out(desk: Desk) -> None:
    desk.enqueue(a_job(expires_ms=1))
    expire(desk)
    assert desk.take() == []
    record = desk.record()
    assert (record["s"], record["y"]) == ("K", "expired")
    assert desk.result() == ['{"cancelled":"expired"}']
    assert desk.result_ttl() == about(LIFETIMES.failure_ms)
    assert desk.record_ttl() == about(LIFETIMES.failure_ms)
    assert desk.everywhere() == []
    assert desk.pending() == {}
    assert desk.stats() == {"K": 1}


def test_a_job_that_expires_later_runs(desk: Desk) -> None:
    desk.enqueue(a_job(expires_ms=DAY))
    assert len(desk.take()) == 1


def test_a_job_that_has_started_does_not_expire(desk: Desk) -> None:
    """Its group was destroyed while it ran, so its entry is delivered again."""
    desk.executing(a_job(expires_ms=DAY))
    desk.redis.xgroup_destroy(desk.keys["s"], "fq")
    desk.redis.hset(desk.keys.record("1"), "E", 1)
    (again,) = desk.take()
    assert desk.finish([again]) == [1]


@pytest.mark.parametrize("how", ["retried", "snoozed", "stopped", "recovered"])
def test_a_job_that_has_started_once_runs_again_after_its_expiry(desk: Desk, how: str) -> None:
    deliveries = desk.executing(a_job(expires_ms=DAY))
    desk.redis.hset(desk.keys.record("1"), "E", 1)
    if how == "retried":
        desk.finish(deliveries, retried(0, FAILURE))
    elif how == "snoozed":
        desk.finish(deliveries, snoozed(0.001))
        eventually(lambda: desk.now() > desk.due()["1"])
    elif how == "recovered":
        desk.recover()
    else:
        desk.release(deliveries)
    desk.do(verbs.queues.promote, 100)
    (again,) = desk.take("berta")
    assert (again.key, again.fence) == ("1", 2)
    assert desk.finish([again]) == [1]
    assert desk.stats().get("K", 0) == 0
    assert desk.result() == ['{"ok":42}']


def test_a_job_whose_entry_was_read_and_handed_back_before_it_was_started_still_expires(desk: Desk) -> None:
    desk.enqueue(a_job(expires_ms=DAY))
    desk.release(desk.read())
    desk.redis.hset(desk.keys.record("1"), "E", 1)
    assert desk.take() == []
    assert desk.record()["y"] == "expired"


@pytest.mark.parametrize("met", ["unknown task", "unknown version"])
def test_a_job_that_only_met_workers_which_could_not_run_it_still_expires(desk: Desk, met: str) -> None:
    desk.enqueue(a_job(expires_ms=DAY))
    for _ in range(3):
        pass_over(desk, met)
    desk.redis.hset(desk.keys.record("1"), "E", 1)
    assert desk.take() == []
    assert desk.record()["y"] == "expired"


@pytest.mark.parametrize("met", ["unknown task", "unknown version"])
def test_a_job_that_has_started_once_does_not_expire_whomever_it_meets_later(desk: Desk, met: str) -> None:
    desk.enqueue(a_job(expires_ms=DAY))
    pass_over(desk, met)
    desk.release(desk.take())
    pass_over(desk, met)
    desk.redis.hset(desk.keys.record("1"), "E", 1)
    (delivery,) = desk.take()
    assert desk.finish([delivery]) == [1]


def pass_over(desk: Desk, met: str) -> None:
    """A worker that cannot run the job takes it, and it waits for another one."""
    if met == "unknown version":
        desk.redis.hset(desk.keys.record("1"), "v", "3")
        assert desk.take("old") == []
        desk.redis.hdel(desk.keys.record("1"), "v")
    else:
        assert desk.finish(desk.take("old"), not_known(FAILURE, 0, LIFETIMES.failure_ms)) == [1]
    assert desk.record()["s"] == "L"
    desk.redis.zadd(desk.keys["sched"], {"1": 1})
    desk.do(verbs.queues.promote, 100)


def test_an_expired_job_takes_no_slot(desk: Desk) -> None:
    desk.enqueue(a_job("old", expires_ms=1), a_job("new"))
    expire(desk, "old")
    assert [delivery.key for delivery in desk.take(free=1)] == ["new"]


def test_a_thousand_expired_jobs_do_not_hold_the_server_in_one_call(desk: Desk) -> None:
    for page in range(15):
        desk.enqueue(*(a_job(f"{page}-{key}", expires_ms=1) for key in range(100)))
    desk.enqueue(a_job("fresh"))
    expire(desk, "14-99")
    catch = desk.fetch(free=10)
    assert not catch.drained
    assert 100 <= 1501 - len(desk.entries("s")) <= 1100
    while not catch.drained:
        assert not catch.deliveries
        catch = desk.fetch(free=10)
    assert [delivery.key for delivery in catch.deliveries] == ["fresh"]
    assert desk.stats()["K"] == 1500


@pytest.mark.parametrize("missing", ["t", "a"])
def test_a_record_without_a_task_or_arguments_is_dead_as_broken(desk: Desk, missing: str) -> None:
    desk.enqueue(*some_jobs(2))
    desk.redis.hdel(desk.keys.record("1"), missing)
    assert [delivery.key for delivery in desk.take()] == ["2"]
    ((entry, dead),) = desk.entries("dlq")
    record = desk.record("1")
    assert (dead["i"], dead["e"], dead["y"]) == ("1", "Broken", "broken")
    assert (record["s"], record["p"], record["y"]) == ("D", f"dlq/{entry}", "broken")
    assert "no task or no arguments" in desk.result("1")[0]
    assert desk.waiting() == ["2"]
    assert desk.stats() == {"D": 1}


def test_a_job_that_is_refused_as_broken_keeps_its_number_of_tries(desk: Desk) -> None:
    desk.enqueue(a_job())
    desk.redis.hset(desk.keys.record("1"), "n", "2")
    desk.redis.hdel(desk.keys.record("1"), "a")
    assert desk.take() == []
    record = desk.record("1")
    assert (record["s"], record["n"], orjson.loads(record["x"])["tries"]) == ("D", "2", 2)


def test_a_record_of_a_later_wire_version_waits_for_a_worker_that_reads_it(desk: Desk) -> None:
    desk.enqueue(*some_jobs(2))
    desk.redis.hset(desk.keys.record("1"), "v", "3")
    desk.redis.hset(desk.keys.record("2"), "v", "1")
    assert [delivery.key for delivery in desk.take()] == ["2"]
    assert desk.record("1")["s"] == "L"
    assert list(desk.due()) == ["1"]
    assert desk.entries("dlq") == []


def test_the_worker_receives_a_few_records_of_a_later_wire_version(desk: Desk) -> None:
    desk.enqueue(*some_jobs(9), a_job("fine"))
    for key in range(1, 10):
        desk.redis.hset(desk.keys.record(str(key)), "v", "3")
    catch = desk.fetch()
    assert [delivery.key for delivery in catch.deliveries] == ["fine"]
    problem = "the record has wire version 3 and this worker reads 2: upgrade fennelq where the worker runs"
    assert catch.too_new == [TooNew(str(key), "app:welcome", problem) for key in range(1, 9)]
    assert desk.record("1")["Y"] == f"0 {problem}"
    assert [line["what"] for line in desk.history("1")] == ["unknown_version"]
    desk.finish(catch.deliveries)
    assert desk.fetch().too_new == []


def test_the_worker_receives_records_of_a_later_wire_version_whose_task_it_cannot_know(desk: Desk) -> None:
    """That version may store the task in another field."""
    desk.enqueue(*some_jobs(2))
    for key in ("1", "2"):
        desk.redis.hset(desk.keys.record(key), "v", "3")
        desk.redis.hdel(desk.keys.record(key), "t")
    assert [(job.key, job.task) for job in desk.fetch().too_new] == [("1", ""), ("2", "")]


def test_a_record_of_a_later_wire_version_that_no_worker_reads_in_time_is_dead(desk: Desk) -> None:
    desk.enqueue(a_job())
    desk.redis.hset(desk.keys.record("1"), mapping={"v": "3", "U": str(desk.now() - 3_600_001)})
    assert desk.take() == []
    assert "wire version 3" in desk.entries("dlq")[0][1]["m"]
    assert desk.record("1")["y"] == "unknown_version"


@pytest.mark.parametrize("field", ["E", "n", "f", "c", "b", "v"])
def test_a_record_with_garbage_in_it_never_strands_the_others(desk: Desk, field: str) -> None:
    desk.enqueue(*some_jobs(3))
    desk.redis.hset(desk.keys.record("2"), field, b"\xffgarbage")
    deliveries = desk.take()
    assert {delivery.key for delivery in deliveries} >= {"1", "3"}
    desk.finish(deliveries)
    assert desk.everywhere() in ([], ["2"])
    assert desk.pending() == {}


# Entries that should not be there


def test_an_entry_without_the_fields_of_an_arrow_is_dropped_and_counted(desk: Desk) -> None:
    desk.enqueue(a_job("1"))
    desk.redis.xadd(desk.keys["s"], {"what": "this"})
    desk.redis.xadd(desk.keys["s"], {"i": "1"})
    desk.redis.xadd(desk.keys["s"], {"n": "1", "i": "1"})
    desk.redis.xadd(desk.keys["s"], {"i": "1", "x": "1"})
    desk.enqueue(a_job("2"))
    assert [delivery.key for delivery in desk.take()] == ["1", "2"]
    assert desk.waiting() == ["1", "2"]
    assert desk.stats() == {"dropped": 4}


def test_an_entry_whose_record_is_gone_is_dropped_and_counted(desk: Desk) -> None:
    desk.enqueue(*some_jobs(3))
    desk.redis.delete(desk.keys.record("2"))
    assert [delivery.key for delivery in desk.take()] == ["1", "3"]
    assert desk.waiting() == ["1", "3"]
    assert len(desk.pending()) == 2
    assert desk.stats() == {"dropped": 1}


@pytest.mark.audit(lost={"mail:2"})
def test_an_entry_whose_record_has_a_wrong_type_is_dropped_and_counted(desk: Desk) -> None:
    desk.enqueue(*some_jobs(3))
    desk.redis.delete(desk.keys.record("2"))
    desk.redis.set(desk.keys.record("2"), "what?")
    assert [delivery.key for delivery in desk.take()] == ["1", "3"]
    assert len(desk.pending()) == 2
    assert desk.stats() == {"dropped": 1}


def test_an_entry_of_a_job_that_is_elsewhere_is_dropped_and_the_job_is_not(desk: Desk) -> None:
    desk.enqueue(a_job("1", delay_ms=DAY))
    desk.redis.xadd(desk.keys["s"], {"i": "1", "n": "1"})
    assert desk.take() == []
    assert desk.everywhere() == ["1"]
    assert desk.record()["s"] == "L"
    assert desk.stats() == {"dropped": 1}


def test_of_two_entries_for_one_job_only_the_recorded_one_counts(desk: Desk) -> None:
    desk.enqueue(a_job())
    desk.redis.xadd(desk.keys["s"], {"i": "1", "n": "1"})
    desk.redis.xadd(desk.keys["s:high"], {"i": "1", "n": "1"})
    (delivery,) = desk.take()
    assert desk.record()["p"] == f"s/{delivery.entry}"
    assert desk.waiting("s") == ["1"]
    assert desk.waiting("s:high") == []
    assert desk.stats() == {"dropped": 2}


def test_the_same_entry_id_in_another_lane_is_another_entry(desk: Desk) -> None:
    desk.enqueue(a_job())
    entry, _ = desk.entries("s")[0]
    desk.redis.xadd(desk.keys["s:high"], {"i": "1", "n": "1"}, id=entry)
    (delivery,) = desk.take()
    assert (delivery.lane, delivery.entry) == ("s", entry)
    assert desk.stats() == {"dropped": 1}


@pytest.mark.parametrize("status", ["S", "D", "K", "L", "R"])
@pytest.mark.audit(lost={"mail:1"})
def test_an_entry_of_a_job_that_has_ended_or_waits_is_dropped(desk: Desk, status: str) -> None:
    desk.enqueue(a_job())
    desk.redis.hset(desk.keys.record("1"), "s", status)
    assert desk.take() == []
    assert desk.record()["s"] == status
    assert desk.stats() == {"dropped": 1}


def test_a_thousand_ghosts_before_a_job_are_dropped(desk: Desk) -> None:
    for page in range(12):
        desk.enqueue(*(a_job(f"{page}-{key}") for key in range(100)))
        desk.redis.delete(*(desk.keys.record(f"{page}-{key}") for key in range(100)))
    desk.enqueue(a_job("last"))
    catches = [desk.fetch(free=5)]
    while not catches[-1].drained:
        catches.append(desk.fetch(free=5))
    assert [delivery.key for catch in catches for delivery in catch.deliveries] == ["last"]
    assert desk.stats() == {"dropped": 1200}


# Bad days


def test_over_maxmemory_jobs_are_still_taken_and_the_expired_are_closed(desk: Desk, server: Server) -> None:
    desk.enqueue(a_job("old", expires_ms=1), a_job("new"))
    expire(desk, "old")
    with server.configured(maxmemory="1"):
        assert [delivery.key for delivery in desk.take()] == ["new"]
    assert desk.record("old")["s"] == "K"


def test_no_lifetime_for_failures_means_no_result_is_kept(desk: Desk) -> None:
    desk.enqueue(a_job(expires_ms=1))
    expire(desk)
    desk.fetch(lifetimes=Lifetimes(600_000, 0))
    assert desk.result() == []
    assert desk.record_ttl() == about(600_000)


def test_dead_and_replayed_jobs_keep_counting_their_starts(desk: Desk) -> None:
    (entry,) = desk.dead(outcome=DEAD)
    desk.do(verbs.dead.replay, [entry])
    (delivery,) = desk.take()
    assert (delivery.fence, delivery.tries, delivery.deliveries) == (2, 0, 1)
