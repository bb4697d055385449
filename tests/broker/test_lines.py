"""Lines: jobs with limits wait outside of the lanes until all their gates are open."""

from __future__ import annotations

import pytest

from fennelq.broker import verbs
from fennelq.broker.keys import GROUP, LANES, QUARANTINE
from fennelq.broker.trouble import ReplyError
from fennelq.model.job import Priority
from fennelq.model.outcome import rate_limited, retried, snoozed
from tests.broker.desk import DEAD, FAILURE, LIFETIMES, READ, Desk, a_job
from tests.broker.limited import calls, in_line, send, taken
from tests.kit.clock import ServerClock

NOON = 1_800_000_000_000

pytestmark = [pytest.mark.both_servers, pytest.mark.audit(unfinished=True)]


def test_a_job_behind_a_shut_gate_waits_in_a_line_and_is_called_when_the_slot_is_given_back(
    desk: Desk,
) -> None:
    send(desk, "1", "2", "3")
    assert (desk.waiting("s"), in_line(desk)) == (["1"], ["2", "3"])
    assert desk.record("2")["p"] == "line"
    for key in ("1", "2", "3"):
        (run,) = desk.take()
        assert run.key == key
        assert taken(desk) == []
        assert desk.finish([run]) == [1]
    assert desk.keys_of_limits() == []
    assert [desk.record(key)["s"] for key in "123"] == ["S", "S", "S"]


def test_a_retry_gives_its_slot_back_and_comes_to_the_end_of_the_line(desk: Desk) -> None:
    send(desk, "1", "2")
    (first,) = desk.take()
    desk.finish([first], retried(0, FAILURE))
    desk.do(verbs.queues.promote, 100)
    assert (desk.waiting("s"), in_line(desk)) == (["2"], ["1"])


def test_a_snooze_gives_its_slot_back(desk: Desk) -> None:
    send(desk, "1", "2")
    (first,) = desk.take()
    desk.finish([first], snoozed(1000))
    assert taken(desk) == ["2"]


def test_a_rate_lets_one_through_per_interval(desk: Desk) -> None:
    send(desk, "1", "2", gates="r3600000000/1:send")
    assert taken(desk) == ["1"]
    assert taken(desk) == []
    assert in_line(desk, "r:send") == ["2"]
    assert 3_590_000 < desk.fetch().due_ms <= 3_600_000


@pytest.mark.audit(skip="no sender writes a gate without its number")
def test_a_rate_without_a_burst_lets_one_start_at_once_and_a_gate_without_a_number_one_at_a_time(
    desk: Desk,
) -> None:
    send(desk, "1", "2", gates="r3600000000:send")
    send(desk, "3", "4", gates="c:account/17")
    assert taken(desk) == ["1", "3"]


@pytest.mark.parametrize(
    ("interval_us", "jobs", "due"),
    [
        # A fast rate rings at most twenty times a second.
        (10_000, 11, 60),
        (200_500, 1, 101),
    ],
)
@pytest.mark.audit(unfinished=True)
def test_the_alarm_of_a_rate_rings_when_the_next_job_may_start(
    desk: Desk, server_clock: ServerClock, interval_us: int, jobs: int, due: int
) -> None:
    server_clock.stop_at(NOON)
    send(desk, *map(str, range(jobs + 1)), gates=f"r{interval_us}/1:send")
    assert len(taken(desk)) == jobs
    assert desk.due("turn") == {"r:send": NOON + due}


@pytest.mark.parametrize(
    ("intervals", "told"), [([200], [100]), ([200, 500], [100]), ([500, 200], [100]), ([500], [400])]
)
@pytest.mark.audit(unfinished=True)
def test_a_sleeping_executor_is_told_of_the_first_alarm(
    desk: Desk, server_clock: ServerClock, intervals: list[int], told: list[int]
) -> None:
    server_clock.stop_at(NOON)
    for interval in intervals:
        send(desk, f"{interval}.1", f"{interval}.2", gates=f"r{interval}000/1:every{interval}")
    desk.sleep("berta")
    with desk.subscribed("berta") as heard:
        assert len(taken(desk)) == len(intervals)
        assert heard() == [("berta", f"due {ms}") for ms in told]
        send(desk, "300.1", "300.2", gates="r300000/1:every300")
        desk.sleep("berta")
        heard()
        taken(desk)
        assert heard() == ([("berta", "due 200")] if told == [400] else [])


@pytest.mark.audit(unfinished=True)
def test_an_alarm_that_is_later_than_a_retry_of_the_same_call_does_not_hide_it(
    desk: Desk, server_clock: ServerClock
) -> None:
    server_clock.stop_at(NOON)
    send(desk, "0", gates="r3600000000/1:send")
    assert taken(desk) == ["0"]
    send(desk, "1", gates="c1:a")
    runs = desk.take()
    send(desk, "2", gates="c1:a r3600000000/1:send")
    desk.sleep("berta")
    with desk.subscribed("berta") as heard:
        assert desk.finish(runs, retried(0.05, FAILURE)) == [1]
        assert set(desk.due("turn")) == {"r:send"}
        assert heard() == [("berta", "due 50")]


def test_a_rate_that_only_refusals_stop_writes_nothing_when_a_job_starts(desk: Desk) -> None:
    send(desk, "1", gates="r0/1:host")
    (run,) = desk.take()
    assert desk.redis.exists(f"{desk.keys.prefix}rate:r:host") == 0
    desk.finish([run])


@pytest.mark.audit(unfinished=True)
def test_jobs_that_start_count_once_for_those_that_are_let_in_by_the_same_fetch(desk: Desk) -> None:
    for key in ("a1", "b1", "a2", "a3", "a4"):
        send(desk, key, gates=f"c4:all t1:tenant/{key[0]}")
    assert taken(desk) == ["a1", "b1", "a2", "a3"]


@pytest.mark.parametrize("priority", ["normal", "high"])
def test_a_job_in_quarantine_that_was_refused_waits_in_the_line_of_its_own_lane(
    desk: Desk, priority: Priority
) -> None:
    send(desk, "1", gates="r0/1:host", priority=priority)
    desk.redelivered("1", 3, QUARANTINE)
    if priority == "high":
        desk.redis.hset(desk.keys.record("1"), "m", LANES[priority])
    (run,) = desk.fetch(lanes=(QUARANTINE,)).deliveries
    desk.finish([run], rate_limited(60))
    assert in_line(desk, "r:host", LANES[priority]) == ["1"]


def test_a_job_that_was_refused_by_another_service_stops_its_rate(desk: Desk) -> None:
    send(desk, "1", "2", gates="r0/1:host")
    (first, _) = desk.take(free=2)
    desk.finish([first], rate_limited(60))
    send(desk, "3", gates="r0/1:host")
    assert in_line(desk, "r:host") == ["1", "3"]
    assert taken(desk) == []
    assert "n" not in desk.record("1")
    # The reply was lost.
    assert desk.finish([first], rate_limited(60)) == [2]


def test_a_job_that_was_refused_by_another_service_gives_its_slots_back(desk: Desk) -> None:
    send(desk, "1", gates="c1:account/17 r0/1:host")
    (first,) = desk.take()
    send(desk, "2")
    desk.finish([first], rate_limited(86_400_000))
    assert taken(desk) == ["2"]
    assert in_line(desk, "c:account/17+r:host") == ["1"]


def test_a_job_in_its_lane_goes_back_to_its_line_when_its_rate_is_stopped_meanwhile(desk: Desk) -> None:
    send(desk, "1", "2", gates="r1000/2:host")
    (first,) = desk.take(free=1)
    assert desk.waiting("s") == ["1", "2"]
    assert desk.finish([first], rate_limited(60_000)) == [1]
    assert taken(desk) == []
    assert in_line(desk, "r:host") == ["2", "1"]


def test_a_job_that_goes_back_to_its_line_keeps_its_lane_and_gives_its_other_slots_to_the_next(
    desk: Desk,
) -> None:
    send(desk, "1", "2", gates="c2:all r1000/2:host", priority="high")
    send(desk, "3", "4", gates="c2:all")
    (first,) = desk.take(free=1)
    assert desk.finish([first], rate_limited(60_000)) == [1]
    assert (desk.waiting("s:high"), desk.waiting("s"), in_line(desk, "c:all")) == (["2"], ["3"], ["4"])
    assert [*taken(desk), *taken(desk)] == ["3", "4"]
    assert in_line(desk, "c:all+r:host", "s:high") == ["2", "1"]
    assert [desk.record(key)["m"] for key in "12"] == ["s:high", "s:high"]


def test_a_job_without_a_rate_that_was_refused_by_another_service_is_snoozed(desk: Desk) -> None:
    send(desk, "1", "2")
    (first,) = desk.take()
    assert desk.finish([first], rate_limited(60_000)) == [1]
    assert (desk.record("1")["p"], [*desk.due()], in_line(desk)) == ("sched", ["1"], [])
    assert taken(desk) == ["2"]


@pytest.mark.audit(skip="a slot is taken away by hand")
def test_a_job_whose_slot_another_has_waits_again_when_it_is_delivered_a_second_time(desk: Desk) -> None:
    send(desk, "1")
    assert taken(desk) == ["1"]
    desk.redis.delete(desk.keys.slots("c:account/17"))
    send(desk, "2")
    assert taken(desk) == ["2"]
    desk.redis.xgroup_setid(desk.keys["s"], GROUP, "0")
    assert taken(desk) == ["2"]
    assert (desk.record("1")["s"], in_line(desk)) == ("Q", ["1"])


def test_a_job_that_starts_again_does_not_end_the_stop_by_another_service(desk: Desk) -> None:
    send(desk, "1", "2", gates="r1000/2:host")
    first, second = desk.take(free=2)
    desk.finish([first], rate_limited(60_000))
    desk.release([second])
    assert taken(desk) == ["2"]
    assert desk.redis.pttl(desk.keys.rate("r:host")) > 59_000_000


def test_tenants_take_turns(desk: Desk) -> None:
    send(desk, "1", "2", "3", gates="t1:tenant/a")
    send(desk, "4", gates="t1:tenant/b")
    assert taken(desk, 1) == ["1"]
    assert taken(desk, 1) == ["4"]
    assert taken(desk, 10) == ["2", "3"]
    assert desk.keys_of_limits() == []


def test_a_single_job_of_a_tenant_starts_after_one_job_of_each_other_tenant(desk: Desk) -> None:
    """L9. However many jobs of one tenant wait."""
    desk.enqueue(*(a_job(f"large.{number}", gates="t1:tenant/large") for number in range(5000)))
    desk.enqueue(
        *(a_job(f"{name}.{number}", gates=f"t1:tenant/{name}") for name in range(300) for number in (1, 2))
    )
    send(desk, "single.1", gates="t1:tenant/single")
    tenants = [run.key.partition(".")[0] for run in desk.take(free=302)]
    assert tenants == ["large", *map(str, range(300)), "single"]


def test_cancel_takes_a_job_out_of_its_line(desk: Desk) -> None:
    send(desk, "1", "2", "3")
    assert desk.cancel("2") == [1]
    assert in_line(desk) == ["3"]
    assert desk.cancel("1") == [1]
    assert taken(desk) == ["3"]
    assert desk.cancel("3") == [2]


def test_a_job_that_is_gone_from_its_line_cannot_be_cancelled(desk: Desk) -> None:
    """Its record says that it waits there, but it was taken out by hand."""
    send(desk, "1", "2", "3")
    desk.redis.zrem(f"{desk.keys.prefix}line:c:account/17@s", "2")
    assert desk.cancel("2") == [0]
    assert in_line(desk) == ["3"]
    assert desk.record("2")["p"] == "line"
    desk.redis.delete(desk.keys.record("2"))


def test_purge_takes_no_more_jobs_than_it_may_although_they_are_in_several_lines(desk: Desk) -> None:
    for gate in "abc":
        send(desk, *(f"{gate}{number}" for number in range(4)), gates=f"c1:{gate}")
    assert desk.do(verbs.queues.purge, LIFETIMES, 3) == 3
    assert desk.do(verbs.queues.purge, LIFETIMES, 4) == 4
    assert sum(len(in_line(desk, f"c:{gate}")) for gate in "abc") == 2


def test_purge_takes_the_lines_first(desk: Desk) -> None:
    send(desk, "1", "2", "3")
    assert [desk.do(verbs.queues.purge, LIFETIMES, 100) for _ in range(3)] == [2, 1, 0]
    assert desk.keys_of_limits() == []


def test_a_lower_job_that_waits_in_its_lane_does_not_keep_a_higher_one_out(desk: Desk) -> None:
    """L10. No inversion: the start decides, and the lower one goes back to the front of its line."""
    send(desk, "1", "2", priority="low")
    send(desk, "3", priority="high")
    assert (desk.waiting("s:low"), desk.waiting("s:high")) == (["1"], ["3"])
    assert taken(desk) == ["3"]
    assert in_line(desk, lane="s:low") == ["1", "2"]
    assert desk.stats()["stepped_back"] == 1


@pytest.mark.parametrize("deliveries", [1, 2])
def test_a_job_that_goes_back_to_its_line_keeps_the_number_of_its_deliveries(
    desk: Desk, deliveries: int
) -> None:
    send(desk, "1", priority="low")
    desk.redelivered("1", deliveries, "s:low")
    send(desk, "2", priority="high")
    runs = desk.take()
    assert ([run.key for run in runs], in_line(desk, lane="s:low")) == (["2"], ["1"])
    assert desk.record("1").get("d") == (None if deliveries == 1 else "2")
    desk.finish(runs)
    (run,) = desk.take()
    assert (run.key, run.deliveries) == ("1", deliveries)


def test_a_job_that_was_handed_back_keeps_its_slot(desk: Desk) -> None:
    send(desk, "1", "2")
    desk.release(desk.take())
    assert (desk.waiting("s"), in_line(desk)) == (["1"], ["2"])
    assert taken(desk) == ["1"]
    assert "stepped_back" not in desk.stats()


def test_a_recovered_job_keeps_its_slot_and_a_dead_one_gives_it_back(desk: Desk) -> None:
    send(desk, "1", "2")
    for _ in range(3):
        assert [one.key for one in desk.fetch(lanes=[*READ, "iso"]).deliveries] == ["1"]
        desk.recover()
        assert in_line(desk) == ["2"]
    assert [one.key for one in desk.fetch(lanes=[*READ, "iso"]).deliveries] == ["1"]
    desk.recover()
    assert desk.waiting("dlq") == ["1"]
    assert taken(desk) == ["2"]


def test_a_replayed_job_enters_like_a_new_one(desk: Desk) -> None:
    send(desk, "1")
    desk.finish(desk.take(), DEAD)
    send(desk, "2", "3")
    ((entry, _),) = desk.entries("dlq")
    assert desk.do(verbs.dead.replay, [entry]) == [1]
    assert (desk.waiting("s"), in_line(desk)) == (["2"], ["3", "1"])


def test_a_scheduled_job_enters_when_it_is_due(desk: Desk) -> None:
    send(desk, "1")
    send(desk, "2", at_ms=1)
    desk.do(verbs.queues.promote, 100)
    assert (desk.waiting("s"), in_line(desk)) == (["1"], ["2"])


def test_an_expired_job_gives_its_turn_on_when_it_comes(desk: Desk) -> None:
    send(desk, "1", "2")
    send(desk, "3", expires_ms=1)
    desk.redis.hset(desk.keys.record("1"), "E", 1)
    assert taken(desk) == ["2"]
    assert desk.record("1")["y"] == "expired"


def test_a_job_takes_all_its_slots_or_none(desk: Desk) -> None:
    send(desk, "1", gates="c1:a")
    send(desk, "2", gates="c1:b c1:a")
    send(desk, "3", gates="c1:b")
    assert sorted(taken(desk)) == ["1", "3"]
    assert in_line(desk, "c:b+c:a") == ["2"]


@pytest.mark.audit(skip="a key has a wrong type on purpose")
def test_jobs_whose_slots_cannot_be_read_are_dead_and_name_the_key_and_the_others_run(desk: Desk) -> None:
    """L5. The script goes on, and with it the executor."""
    key = f"{desk.keys.prefix}slots:c:account/17"
    desk.redis.set(key, "what?")
    send(desk, "1", "2")
    send(desk, "3", gates="c1:other")
    desk.enqueue(a_job("4"))
    assert taken(desk) == ["3", "4"]
    problem = f"{key} is a string and should be a zset: rename or delete it"
    assert [(one["i"], one["y"], one["m"]) for _, one in desk.entries("dlq")] == [
        ("1", "broken", problem),
        ("2", "broken", problem),
    ]


@pytest.mark.audit(skip="a key has a wrong type on purpose")
def test_a_job_whose_rate_cannot_be_read_is_dead_and_names_the_key(desk: Desk) -> None:
    key = desk.keys.rate("r:send")
    desk.redis.rpush(key, "what?")
    send(desk, "1", gates="c1:a r1000/1:send")
    assert taken(desk) == []
    ((_, entry),) = desk.entries("dlq")
    assert (entry["i"], entry["m"]) == (
        "1",
        f"{key} is a list and should be a string: rename or delete it",
    )


@pytest.mark.audit(skip="a key was changed by hand")
def test_a_job_whose_rate_is_no_time_is_dead_and_says_what_failed(desk: Desk) -> None:
    desk.redis.set(f"{desk.keys.prefix}rate:r:send", "what?")
    send(desk, "1", gates="c1:a")
    desk.redis.hset(desk.keys.record("1"), "g", "r1000/1:send")
    desk.enqueue(a_job("2"))
    assert taken(desk) == ["2"]
    ((_, entry),) = desk.entries("dlq")
    assert (entry["i"], entry["y"]) == ("1", "broken")
    assert "number expected" in entry["m"]


@pytest.mark.parametrize("key", ["lines", "turn", "limits", "line:c:account/17@s", "wait:c:account/17"])
@pytest.mark.audit(skip="a key has a wrong type on purpose")
def test_a_damaged_key_of_limits_does_not_stop_other_jobs(desk: Desk, key: str) -> None:
    desk.redis.set(desk.keys.prefix + key, "what?")
    send(desk, "1", "2")
    send(desk, "3", gates="c1:other")
    desk.enqueue(a_job("4"))
    runs = desk.take()
    assert {"1", "3", "4"} <= {run.key for run in runs} | set(desk.waiting("dlq"))
    assert desk.finish(runs) == [1] * len(runs)


@pytest.mark.audit(skip="a key has a wrong type on purpose")
def test_a_damaged_gate_of_the_next_job_does_not_make_the_job_that_lets_it_in_a_broken_one(
    desk: Desk,
) -> None:
    """1 passes its gate, and lets in 2, whose other gate cannot be read."""
    send(desk, "0", gates="c1:bad")
    assert taken(desk) == ["0"]
    send(desk, "1", gates="t1:a")
    send(desk, "2", gates="t1:a c1:bad")
    desk.redis.set(f"{desk.keys.prefix}wait:c:bad", "what?")
    (run,) = desk.take(free=1)
    assert (run.key, desk.finish([run])) == ("1", [1])
    assert taken(desk) == []
    ((_, entry),) = desk.entries("dlq")
    assert (entry["i"], entry["m"].partition(":")[0]) == ("2", desk.keys.prefix.partition(":")[0])
    assert entry["m"].endswith("wait:c:bad is a string and should be a zset: rename or delete it")


@pytest.mark.audit(skip="a key has a wrong type on purpose")
def test_a_job_gives_its_slots_back_although_those_of_another_gate_cannot_be_read(desk: Desk) -> None:
    send(desk, "1", gates="t1:a c1:account/17")
    (run,) = desk.take()
    send(desk, "2")
    desk.redis.set(f"{desk.keys.prefix}slots:t:a@s", "what?")
    assert desk.finish([run]) == [1]
    assert taken(desk) == ["2"]


@pytest.mark.audit(skip="a key has a wrong type on purpose")
def test_a_gate_that_cannot_be_opened_is_counted_and_the_others_are_opened(desk: Desk) -> None:
    send(desk, "1", gates="c1:a c1:b")
    (run,) = desk.take()
    send(desk, "2", gates="c1:b")
    desk.redis.set(f"{desk.keys.prefix}wait:c:a", "what?")
    assert desk.finish([run]) == [1]
    assert desk.stats()["open_failed"] == 1
    assert taken(desk) == ["2"]


def test_a_line_that_gets_a_further_job_in_the_same_call_keeps_its_turn(desk: Desk) -> None:
    gates = {"x": "c1:all", "a": "c1:all c5:a", "b": "c1:all c5:b"}
    desk.enqueue(*(a_job(key, gates=gates[key[0]]) for key in ("x", "a1", "b1", "a2")))
    desk.finish(desk.take())
    assert taken(desk) == ["a1"]


def test_lines_at_one_gate_take_turns(desk: Desk) -> None:
    send(desk, "0", gates="c1:all")
    for tenant in "ab":
        send(desk, f"{tenant}1", f"{tenant}2", gates=f"c1:all c9:{tenant}")
    started = list[str]()
    while runs := desk.take():
        started += [run.key for run in runs]
        desk.finish(runs)
    assert started == ["0", "a1", "b1", "a2", "b2"]


def test_a_line_keeps_its_turn_when_its_gate_is_looked_at_and_is_still_shut(desk: Desk) -> None:
    send(desk, "x", gates="c1:all")
    (run,) = desk.take()
    send(desk, "a", gates="c1:all c5:a")
    send(desk, "b", gates="c1:all c5:b")
    desk.do(verbs.queues.limit, "c:all", "1")
    desk.do(verbs.queues.promote, 100)
    desk.finish([run])
    assert taken(desk) == ["a"]


def test_a_job_that_has_crashed_its_executors_goes_from_its_line_to_quarantine(desk: Desk) -> None:
    send(desk, "1", "2")
    desk.redis.hset(desk.keys.record("2"), "d", 3)
    desk.finish(desk.take())
    assert (desk.waiting(QUARANTINE), desk.waiting()) == (["2"], [])


def test_a_job_that_went_from_its_line_into_its_lane_counts_its_next_deliveries_anew(desk: Desk) -> None:
    send(desk, "1", "2")
    desk.redis.hset(desk.keys.record("2"), "d", 2)
    desk.finish(desk.take())
    (run,) = desk.take()
    assert (run.key, run.deliveries) == ("2", 2)
    send(desk, "3")
    desk.finish([run], retried(0, FAILURE))
    desk.do(verbs.queues.promote, 100)
    assert in_line(desk) == ["2"]
    desk.finish(desk.take())
    (run,) = desk.take()
    assert (run.key, run.deliveries) == ("2", 1)


@pytest.mark.parametrize("damage", [("p", "dlq/1-1"), ("g", None)])
@pytest.mark.audit(skip="a record was changed by hand")
def test_a_job_in_a_line_whose_record_says_otherwise_does_not_stop_the_next(
    desk: Desk, damage: tuple[str, str | None]
) -> None:
    send(desk, "1", "2", "3")
    field, value = damage
    if value is None:
        desk.redis.hdel(desk.keys.record("2"), field)
    else:
        desk.redis.hset(desk.keys.record("2"), field, value)
    desk.finish(desk.take())
    assert taken(desk) == ["3"]
    assert in_line(desk) == []


@pytest.mark.audit(skip="a slot is held by a job that has not come yet")
def test_a_job_whose_slot_is_there_before_it_comes_takes_no_second_one(desk: Desk) -> None:
    desk.redis.zadd(desk.keys.slots("c:account/17"), {"1": 2})
    assert desk.enqueue(*(a_job(key, gates="c2:account/17") for key in "123")) == [1, 1, 1]
    assert (desk.waiting("s"), in_line(desk)) == (["1", "2"], ["3"])


@pytest.mark.audit(skip="a key has a wrong type on purpose")
def test_a_script_that_fails_at_a_later_job_has_let_in_the_next_of_a_line(desk: Desk) -> None:
    send(desk, "1", "2")
    desk.enqueue(a_job("later", delay_ms=60_000))
    desk.redis.delete(desk.keys["sched"])
    desk.redis.set(desk.keys["sched"], "what?")
    with pytest.raises(ReplyError):
        desk.cancel("1", "later")
    desk.redis.delete(desk.keys["sched"])
    assert taken(desk) == ["2"]


def test_a_batch_that_frees_many_slots_of_a_gate_lets_in_as_many_lines(desk: Desk) -> None:
    desk.enqueue(*(a_job(f"runs{n}", gates="c150:all") for n in range(150)))
    runs = desk.take(free=150)
    desk.enqueue(*(a_job(f"{n}", gates=f"c150:all t1:key/{n}") for n in range(160)))
    desk.finish(runs)
    assert len(taken(desk, free=200)) == 150


def test_a_job_that_uses_up_one_of_its_gates_does_not_keep_the_next_line_from_another(desk: Desk) -> None:
    send(desk, "x", "y", gates="c2:all")
    runs = desk.take()
    send(desk, "a", gates="c1:a c2:all")
    send(desk, "b", gates="c2:all c9:b")
    assert taken(desk) == []
    assert desk.finish(runs) == [1, 1]
    assert taken(desk) == ["a", "b"]


@pytest.mark.audit(skip="the other gates are shut by hand")
def test_a_batch_looks_at_1000_lines_at_most_and_the_promoter_at_the_others(desk: Desk) -> None:
    """Each line goes on to another gate, which is shut: no job is let in, and the first gate stays open."""
    send(desk, *map(str, range(11)), gates="c11:account")
    runs = desk.take(free=11)
    with desk.redis.pipeline() as pipe:
        for number in range(1100):
            pipe.zadd(desk.keys.slots(f"c:b/{number}"), {"another job": 0})
        pipe.execute()
    desk.enqueue(*(a_job(f"j{number}", gates=f"c11:account c1:b/{number}") for number in range(1100)))
    wait = f"{desk.keys.prefix}wait:c:account"
    assert desk.redis.zcard(wait) == 1100
    desk.sleep("berta")
    with desk.subscribed("berta") as heard:
        assert desk.finish(runs) == [1] * 11
        assert heard() == [("berta", "due 0")]
    assert desk.redis.zcard(wait) == 100
    assert set(desk.due("turn")) == {"c:account"}
    for _ in range(2):
        desk.do(verbs.queues.promote, 100)
        assert desk.redis.zcard(wait) == 0
    assert desk.due("turn") == {}


def test_a_batch_that_frees_many_slots_counts_the_jobs_that_are_through_once(desk: Desk) -> None:
    """It opens each gate once, at its end: otherwise each job of a long line would cost a further command."""
    send(desk, *(str(number) for number in range(64)), gates="c32:line")
    runs = desk.take()
    before = calls(desk, "zcount")
    desk.finish(runs)
    assert (len(runs), len(in_line(desk, "c:line"))) == (32, 0)
    assert calls(desk, "zcount") - before == 1


def test_a_job_that_starts_again_and_again_does_not_let_the_next_of_its_rate_start_early(desk: Desk) -> None:
    send(desk, "1", "2", gates="r3600000000/1:send")
    for _ in range(3):
        desk.release(desk.take())
    assert taken(desk) == ["1"]
    desk.do(verbs.queues.limit, "r:send", "")
    assert desk.do(verbs.queues.promote, 100)[0] == 0
    assert taken(desk) == []


def test_the_number_of_jobs_in_lines_is_counted(desk: Desk) -> None:
    send(desk, *"1234")
    assert desk.stats()["parked"] == 3
    desk.cancel("3")
    assert desk.stats()["parked"] == 2
    while runs := desk.take():
        desk.finish(runs)
    assert "parked" not in desk.stats()


def test_a_record_with_limits_is_for_workers_that_know_them(desk: Desk) -> None:
    send(desk, "1")
    desk.enqueue(a_job("2"))
    assert (desk.record("1")["v"], "v" in desk.record("2")) == ("2", False)


def test_an_unlimited_job_pays_nothing_for_limits(desk: Desk) -> None:
    """The scripts use the same commands as for a queue without any."""

    def run() -> None:
        desk.enqueue(a_job(str(desk.now())))
        desk.finish(desk.take())

    used = desk.commands_of(run)
    assert used.keys().isdisjoint({"zcount", "zscore", "zrem", "zrange", "hscan"})


def test_a_job_of_a_lower_priority_takes_no_slot_from_a_higher_one_of_the_same_batch(desk: Desk) -> None:
    lanes = ("high", "low", "high")
    jobs = [a_job(str(n), gates="c2:account", priority=lane) for n, lane in enumerate(lanes)]
    assert desk.enqueue(*jobs) == [1, 1, 1]
    assert desk.in_lines() == []
