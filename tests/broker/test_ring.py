"""ring: a new entry wakes one executor that sleeps and reads its lane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from fennelq.broker import lua_files, scripts, verbs
from fennelq.broker.keys import GROUP, LANES, STREAMS
from fennelq.broker.verbs.dead import Restored
from fennelq.broker.verbs.runs import Settled
from fennelq.model.outcome import Outcome, failure_to_wire, not_known, retried, snoozed
from tests.broker.desk import DONE, FAILURE, LIFETIMES, READ, Desk, a_job, some_jobs
from tests.kit.server import Server

pytestmark = [pytest.mark.both_servers, pytest.mark.audit(unfinished=True)]

DAY = 86_400_000
HIGH = ("s:high",)

Act = Callable[[], object]


def ring(desk: Desk, *lanes: str) -> int:
    return desk.do(verbs.runs.ring, lanes)


def fall_asleep(desk: Desk, *executors: str, lanes: Sequence[str] = READ) -> None:
    for executor in executors:
        assert desk.fetch(executor, lanes=lanes, sleeps=True).drained


# Each script that adds entries


def enqueued(desk: Desk, **given: Any) -> Act:
    return lambda: desk.enqueue(a_job(**given))


def displaced(desk: Desk, **given: Any) -> Act:
    return lambda: desk.do(verbs.jobs.displace, [a_job(**given)], 100, LIFETIMES)


def promoted(desk: Desk, **given: Any) -> Act:
    desk.enqueue(a_job(at_ms=1, **given))
    return lambda: desk.do(verbs.queues.promote, 100)


def released(desk: Desk, **given: Any) -> Act:
    held = desk.executing(a_job(**given))
    return lambda: desk.release(held)


def recovered(desk: Desk, **given: Any) -> Act:
    desk.executing(a_job(**given))
    desk.silence()
    return lambda: desk.recover(silent=False)


def replayed(desk: Desk, **given: Any) -> Act:
    (entry,) = desk.dead(a_job(**given))
    return lambda: desk.do(verbs.dead.replay, [entry])


def run_at_once(desk: Desk, **given: Any) -> Act:
    desk.enqueue(a_job(delay_ms=DAY, **given))
    return lambda: desk.do(verbs.jobs.run_now, ["1"])


def called_by_finish(desk: Desk, **given: Any) -> Act:
    """Job 1 waits for the slot of job 0, which runs."""
    (holder,) = desk.executing(a_job("0", gates="c1:account"))
    desk.enqueue(a_job(gates="c1:account", **given))
    return lambda: desk.finish([holder])


def called_by_mend(desk: Desk, **given: Any) -> Act:
    """The same, and job 0 has vanished."""
    (holder,) = desk.executing(a_job("0", gates="c1:account"))
    desk.enqueue(a_job(gates="c1:account", **given))
    desk.redis.delete(desk.keys.record("0"))
    desk.redis.xack(desk.keys["s"], GROUP, holder.entry)
    desk.redis.xdel(desk.keys["s"], holder.entry)
    return lambda: desk.do(verbs.queues.mend, 100)


ADDING: Final[dict[str, Callable[..., Act]]] = {
    "enqueue": enqueued,
    "displace": displaced,
    "promote": promoted,
    "release": released,
    "recover": recovered,
    "replay": replayed,
    "run_now": run_at_once,
    "finish": called_by_finish,
    "mend": called_by_mend,
}
NOT_BESIDE_SLEEPERS: Final = {
    "cancel": "a job in a lane that no executor has taken",
    "fetch": "the same",
    "purge": "the same, and it takes the jobs of the lines first",
    "watch": "the same: it ends a job that has expired",
}
"""These scripts call a job into a lane too, but they take the slot from a job that has kept the executors awake."""
ADDING_NONE: Final = {"restore": "a job of an export holds no slot, so its end calls no job"}
WITHOUT_ITS_CALLER: Final = {"double"}
"""The caller itself is not woken: see `test_double.py`."""
SCRIPTS: Final = sorted(path.stem for path in (Path(scripts.__file__).parent / "lua").glob("*.lua"))
every_adding_script = pytest.mark.parametrize("script", ADDING)
every_priority = pytest.mark.parametrize("priority", LANES)


def includes(script: str, fragment: str) -> bool:
    return fragment in {file.name for file in lua_files.with_pasted(lua_files.lua_file(script))}


def test_every_script_that_adds_an_entry_is_tested_here() -> None:
    assert {script for script in SCRIPTS if includes(script, "lib/entries")} == {
        *ADDING,
        *NOT_BESIDE_SLEEPERS,
        *ADDING_NONE,
        *WITHOUT_ITS_CALLER,
    }


@every_priority
def test_a_job_that_is_called_by_a_cancel_wakes_an_executor_of_its_lane(desk: Desk, priority: str) -> None:
    lane = LANES[priority]
    desk.enqueue(
        a_job("0", gates="c1:account", priority="high"), a_job(gates="c1:account", priority=priority)
    )
    with desk.subscribed("berta") as heard:
        desk.sleep("berta", lane=lane)
        assert desk.cancel("0") == [1]
        assert heard() == [("berta", f"look {lane}")]
    assert desk.waiting(lane) == ["1"]


def test_a_restored_job_calls_no_job_and_wakes_no_executor(desk: Desk) -> None:
    desk.executing(a_job("0", gates="c1:account"))
    desk.enqueue(a_job("1", gates="c1:account"))
    fields = {"task": "app:welcome", "arguments": "[[],{}]", "lane": "s", "gates": "c1:account"}
    with desk.subscribed("berta") as heard:
        desk.sleep("berta")
        assert desk.do(
            verbs.dead.restore, [Restored("2", failure_to_wire(FAILURE, 1), "", fields)], LIFETIMES
        ) == [1]
        assert heard() == []
    assert desk.waiting() == ["0"], "it runs"


@every_adding_script
@every_priority
def test_a_new_entry_wakes_an_executor_that_sleeps(desk: Desk, script: str, priority: str) -> None:
    """L15. Also a job that the script lets in from a line."""
    act = ADDING[script](desk, priority=priority)
    with desk.subscribed("berta") as heard:
        desk.sleep("berta")
        act()
        assert heard() == [("berta", f"look {LANES[priority]}")]
    assert desk.sleepers() == set()
    assert desk.waiting(LANES[priority]) == ["1"]


@every_adding_script
@every_priority
def test_a_new_entry_wakes_an_executor_that_reads_its_lane_only(
    desk: Desk, script: str, priority: str
) -> None:
    act, lane = ADDING[script](desk, priority=priority), LANES[priority]
    with desk.subscribed(*READ) as heard:
        for one in READ:
            desk.sleep(one, lane=one)
        act()
        assert heard() == [(lane, f"look {lane}")]
    assert {one: desk.sleepers(one) for one in READ} == {one: {one} - {lane} for one in READ}


@every_adding_script
def test_a_script_goes_on_to_the_next_name_when_one_has_no_subscriber(desk: Desk, script: str) -> None:
    act = ADDING[script](desk)
    with desk.subscribed("berta") as heard:
        desk.sleep("berta", *(f"killed-{number}" for number in range(99)))
        act()
        assert heard() == [("berta", "look s")]
    assert "berta" not in desk.sleepers()


@every_adding_script
@pytest.mark.parametrize("lanes", [READ, ("s",)], ids=["all lanes", "some lanes"])
def test_it_wakes_an_executor_that_has_found_its_lanes_empty(
    desk: Desk, script: str, lanes: Sequence[str]
) -> None:
    act = ADDING[script](desk)
    with desk.subscribed("berta") as heard:
        fall_asleep(desk, "berta", lanes=lanes)
        act()
        assert heard() == [("berta", "look s")]
    assert [delivery.key for delivery in desk.fetch("berta", lanes=lanes).deliveries] == ["1"]


@every_adding_script
@pytest.mark.parametrize("lane", ["", "s"])
@pytest.mark.audit(skip="the set has a wrong type on purpose")
def test_a_set_of_a_wrong_type_breaks_no_script(desk: Desk, script: str, lane: str) -> None:
    act = ADDING[script](desk)
    desk.redis.set(desk.sleepers_key(lane), "what?")
    act()
    assert desk.waiting() == ["1"]
    assert [delivery.key for delivery in desk.fetch(lanes=READ, sleeps=True).deliveries] == ["1"]


@every_adding_script
def test_without_a_sleeper_it_writes_no_set(desk: Desk, script: str) -> None:
    ADDING[script](desk)()
    assert [desk.redis.exists(desk.sleepers_key(lane)) for lane in ("", *STREAMS)] == [0] * 5


@pytest.mark.parametrize("script", ["promote", "release", "recover"])
def test_over_maxmemory_a_script_that_the_server_allows_wakes_an_executor(
    desk: Desk, server: Server, script: str
) -> None:
    act = ADDING[script](desk)
    desk.sleep("berta")
    with desk.subscribed("berta") as heard, server.configured(maxmemory="1"):
        act()
        assert heard() == [("berta", "look s")]


@every_adding_script
@pytest.mark.parametrize("lane", ["", "s"])
def test_a_user_without_channels_adds_entries(desk: Desk, server: Server, script: str, lane: str) -> None:
    """Then no message arrives, and executors look by themselves."""
    act = ADDING[script](desk)
    desk.sleep("berta", lane=lane)
    with desk.subscribed("berta") as heard, desk.as_user(server, channels=False):
        act()
        assert heard() == []
    assert desk.waiting() == ["1"]


@every_adding_script
@pytest.mark.parametrize("lane", ["", "s"])
def test_no_executor_loses_its_place_to_a_user_without_channels(
    desk: Desk, server: Server, script: str, lane: str
) -> None:
    """The next one who may publish wakes it."""
    act, names = ADDING[script](desk), {"berta", "clara", "dora"}
    desk.sleep(*names, lane=lane)
    with desk.subscribed(*names) as heard:
        with desk.as_user(server, channels=False):
            act()
        assert desk.sleepers(lane) == names
        desk.enqueue(a_job("2"))
        ((woken, message),) = heard()
    assert message == "look s"
    assert desk.sleepers(lane) == names - {woken}


def test_a_user_without_channels_passes_no_message_on(desk: Desk, server: Server) -> None:
    desk.sleep("berta")
    desk.sleep("clara", lane="s")
    with desk.subscribed("berta", "clara") as heard:
        with desk.as_user(server, channels=False):
            assert ring(desk, "s") == 0
        assert (desk.sleepers(), desk.sleepers("s")) == ({"berta"}, {"clara"})
        assert ring(desk, "s") == 1
        assert heard() == [("berta", "look s")]


def test_executors_whose_names_are_out_of_date_are_not_removed_by_a_user_without_channels(
    desk: Desk, server: Server
) -> None:
    """He cannot know that they are."""
    names = {f"killed-{number}" for number in range(20)}
    desk.sleep(*names)
    with desk.as_user(server, channels=False):
        desk.enqueue(a_job("1"), a_job("2", delay_ms=DAY))
    assert desk.sleepers() == names


@pytest.mark.parametrize("free", [0, 1])
@pytest.mark.parametrize("denied", ["exists", "xrange", "spop", "spublish", "sadd"])
def test_a_fetch_of_a_user_without_a_command_of_the_ring_strands_no_entry(
    desk: Desk, server: Server, denied: str, free: int
) -> None:
    desk.make_lanes()
    desk.enqueue(*some_jobs(3))
    desk.sleep("berta")
    with desk.subscribed("berta") as heard:
        with desk.as_user(server, denied, channels=denied != "sadd"):
            catch = desk.fetch("anna", free=free, sleeps=True)
            assert heard() == []
        assert ([delivery.key for delivery in catch.deliveries], catch.problem) == (["1"][:free], "")
        assert list(desk.pending()) == [delivery.entry for delivery in catch.deliveries]
        if denied != "sadd":
            assert desk.sleepers() == {"berta"}
            assert [delivery.key for delivery in desk.take("anna", free=1)] == [str(free + 1)]
            assert heard() == [("berta", "look s")]


@pytest.mark.parametrize("denied", ["srandmember", "spublish", "srem"])
def test_a_fetch_that_puts_off_a_job_strands_no_entry_without_a_command_of_the_ring(
    desk: Desk, server: Server, denied: str
) -> None:
    desk.enqueue(*some_jobs(2))
    desk.redis.hset(desk.keys.record("1"), "v", "3")
    desk.sleep("killed")
    with desk.as_user(server, denied):
        assert [delivery.key for delivery in desk.take("anna")] == ["2"]
    assert desk.sleepers() == {"killed"}
    assert list(desk.due()) == ["1"]


@pytest.mark.parametrize("group", ["a", "z"])
@pytest.mark.parametrize("begins", ["0", "$"])
def test_another_group_of_a_lane_does_not_matter_for_what_is_left(
    desk: Desk, group: str, begins: str
) -> None:
    desk.enqueue(*some_jobs(2))
    desk.redis.xgroup_create(desk.keys["s"], group, begins)
    desk.take("clara", free=1)
    desk.sleep("berta", "dora")
    with desk.subscribed("berta", "dora") as heard:
        desk.fetch("anna", free=0)
        ((woken, message),) = heard()
        assert message == "look s"
        desk.take(woken, free=1)
        desk.fetch("anna", free=0)
        assert heard() == []
    assert len(desk.sleepers()) == 1
    desk.redis.xgroup_destroy(desk.keys["s"], group)


# How many executors are woken


def test_one_job_wakes_one_executor(desk: Desk) -> None:
    names = [f"e{number}" for number in range(10)]
    with desk.subscribed(*names) as heard:
        fall_asleep(desk, *names)
        desk.enqueue(a_job())
        ((woken, message),) = heard()
        assert message == "look s"
        assert desk.sleepers() == set(names) - {woken}


def test_a_batch_wakes_one_executor_per_lane(desk: Desk) -> None:
    with desk.subscribed("a", "b", "c", "d") as heard:
        fall_asleep(desk, "a", "b", "c", "d")
        desk.enqueue(*some_jobs(50), *(a_job(f"high-{key}", priority="high") for key in range(50)))
        messages = heard()
        assert sorted(message for _, message in messages) == ["look s", "look s:high"]
        assert desk.sleepers() == {"a", "b", "c", "d"} - {who for who, _ in messages}


def test_of_a_batch_that_creates_nothing_no_executor_is_woken(desk: Desk) -> None:
    desk.enqueue(a_job())
    desk.take()
    desk.sleep("berta")
    with desk.subscribed("berta") as heard:
        assert desk.enqueue(a_job()) == [0]
        assert heard() == []


def test_executors_that_leave_jobs_wake_one_after_the_other(desk: Desk) -> None:
    """A burst gets as many executors as it needs."""
    names = {"a", "b", "c", "d", "e"}
    with desk.subscribed(*names) as heard:
        fall_asleep(desk, *sorted(names))
        desk.enqueue(*some_jobs(10))
        order = list[str]()
        while messages := heard():
            ((woken, message),) = messages
            assert message == "look s"
            order.append(woken)
            desk.fetch(woken, free=3, sleeps=True)
        assert len(set(order)) == len(order) == 4
        # The last one had a free slot left, so it sleeps again.
        assert desk.sleepers() == names - set(order[:3])


def test_a_fetch_that_leaves_no_entry_wakes_no_executor(desk: Desk) -> None:
    desk.enqueue(*some_jobs(3))
    desk.sleep("berta")
    with desk.subscribed("berta") as heard:
        catch = desk.fetch("anna", free=3, sleeps=True)
        assert heard() == []
    # All slots are taken, so it has not seen that the lane is empty.
    assert not catch.drained
    assert desk.sleepers() == {"berta"}


@pytest.mark.parametrize("free", [0, 1])
def test_entries_that_another_executor_has_taken_wake_no_executor(desk: Desk, free: int) -> None:
    desk.enqueue(*some_jobs(3), a_job("low", priority="low"))
    assert len(desk.take("clara", free=3)) == 3
    assert len(desk.take("clara", free=3)) == 1
    desk.sleep("berta")
    with desk.subscribed("berta") as heard:
        assert desk.fetch("anna", free=free).deliveries == []
        assert heard() == []


def test_a_fetch_without_a_free_slot_wakes_an_executor_for_each_lane_with_a_job(desk: Desk) -> None:
    desk.enqueue(a_job("1", priority="high"), a_job("2", priority="low"))
    desk.sleep("berta", "clara", "dora")
    with desk.subscribed("berta", "clara", "dora") as heard:
        desk.fetch("anna", free=0)
        assert sorted(message for _, message in heard()) == ["look s:high", "look s:low"]


def test_a_fetch_that_takes_part_of_a_lane_wakes_an_executor_that_reads_what_is_left(desk: Desk) -> None:
    desk.enqueue(*some_jobs(3, priority="high"), a_job("normal"))
    for lane in READ:
        desk.sleep(lane, lane=lane)
    with desk.subscribed(*READ) as heard:
        assert len(desk.fetch("anna", free=2).deliveries) == 2
        assert sorted(heard()) == [("s", "look s"), ("s:high", "look s:high")]


def test_a_fetch_does_not_wake_for_lanes_that_it_does_not_read(desk: Desk) -> None:
    desk.enqueue(*some_jobs(2, priority="high"), a_job("low", priority="low"))
    desk.sleep("berta", "clara")
    with desk.subscribed("berta", "clara") as heard:
        desk.fetch("anna", free=1, lanes=HIGH)
        assert [message for _, message in heard()] == ["look s:high"]


def test_a_fetch_of_many_bytes_wakes_another_executor(desk: Desk) -> None:
    desk.enqueue(*some_jobs(20, args=b"x" * 512 * 1024))
    desk.sleep("berta")
    with desk.subscribed("berta") as heard:
        assert len(desk.take("anna", free=100)) == 8
        assert heard() == [("berta", "look s")]


# Executors that read only some lanes


def test_a_job_passes_over_a_sleeper_that_does_not_read_its_lane(desk: Desk) -> None:
    with desk.subscribed("high", "all") as heard:
        fall_asleep(desk, "high", lanes=HIGH)
        fall_asleep(desk, "all")
        desk.enqueue(a_job("1"))
        assert heard() == [("all", "look s")]
        desk.enqueue(a_job("2", priority="high"))
        assert heard() == [("high", "look s:high")]
        desk.enqueue(a_job("3"))
        assert heard() == []
    assert desk.sleepers() == desk.sleepers("s:high") == set()


def test_executors_that_read_all_lanes_are_woken_first(desk: Desk) -> None:
    with desk.subscribed("high", "all") as heard:
        fall_asleep(desk, "high", lanes=HIGH)
        fall_asleep(desk, "all")
        desk.enqueue(a_job("1", priority="high"))
        assert heard() == [("all", "look s:high")]
    assert desk.sleepers("s:high") == {"high"}


def test_an_executor_of_two_lanes_sleeps_in_both_sets(desk: Desk) -> None:
    fall_asleep(desk, "berta", lanes=("s", "s:low"))
    assert {lane: desk.sleepers(lane) for lane in ("", *STREAMS)} == {
        "": set(),
        "s:high": set(),
        "s": {"berta"},
        "s:low": {"berta"},
        "iso": set(),
    }


def test_the_order_in_which_all_lanes_are_given_does_not_matter(desk: Desk) -> None:
    fall_asleep(desk, "berta", lanes=READ[::-1])
    assert desk.sleepers() == {"berta"}


# Going to sleep


def test_an_executor_that_has_emptied_its_lanes_sleeps_in_the_same_step(desk: Desk) -> None:
    desk.enqueue(*some_jobs(2))
    catch = desk.fetch("berta", free=3, sleeps=True)
    assert (len(catch.deliveries), catch.drained) == (2, True)
    assert desk.sleepers() == {"berta"}


def test_an_executor_that_does_not_ask_for_it_does_not_sleep(desk: Desk) -> None:
    assert desk.fetch("berta").drained
    assert desk.sleepers() == set()


@pytest.mark.parametrize("free", [0, 1, 2])
def test_an_executor_without_a_further_free_slot_does_not_sleep(desk: Desk, free: int) -> None:
    desk.enqueue(*some_jobs(2))
    assert not desk.fetch("berta", free=free, sleeps=True).drained
    assert desk.sleepers() == set()


def test_a_set_of_a_wrong_type_does_not_stop_reading(desk: Desk) -> None:
    desk.redis.set(desk.keys["idle"], "what?")
    desk.enqueue(*some_jobs(2))
    assert [len(desk.fetch("berta", free=free, sleeps=True).deliveries) for free in (1, 2)] == [1, 1]
    desk.redis.delete(desk.keys["idle"])


# Names that are out of date


def test_a_script_gives_up_after_a_hundred_names_and_removes_them(desk: Desk) -> None:
    desk.sleep(*(f"killed-{number}" for number in range(250)))
    desk.enqueue(a_job())
    assert len(desk.sleepers()) == 150
    assert ring(desk, "s") == 0
    assert len(desk.sleepers()) == 50
    with desk.subscribed("berta") as heard:
        desk.sleep("berta")
        assert ring(desk, "s") == 1
        assert heard() == [("berta", "look s")]


def test_after_a_hundred_names_an_executor_of_the_lane_is_woken(desk: Desk) -> None:
    desk.sleep(*(f"killed-{number}" for number in range(250)))
    desk.sleep("berta", lane="s")
    with desk.subscribed("berta") as heard:
        desk.enqueue(a_job())
        assert heard() == [("berta", "look s")]


# The quarantine


@pytest.mark.parametrize("script", ["release", "recover"])
def test_a_job_in_quarantine_wakes_no_executor(desk: Desk, script: str) -> None:
    desk.enqueue(a_job("suspect"))
    desk.redelivered("suspect", 3, "iso")
    held = desk.fetch("isolde", lanes=["iso"]).deliveries
    desk.sleep("berta")
    with desk.subscribed("berta") as heard:
        if script == "release":
            assert desk.release(held) == 1
        else:
            assert desk.recover().quarantined == 1
        assert heard() == []
    assert desk.waiting("iso") == ["suspect"]


def test_a_fetch_in_quarantine_wakes_no_executor_for_the_jobs_it_leaves(desk: Desk) -> None:
    desk.enqueue(*some_jobs(2))
    for key in "12":
        desk.redelivered(key, 3, "iso")
    desk.sleep("berta")
    with desk.subscribed("berta") as heard:
        assert len(desk.fetch("isolde", free=1, lanes=["iso"]).deliveries) == 1
        assert heard() == []
    assert desk.sleepers() == {"berta"}


# Due times


def deferred(desk: Desk) -> Act:
    return lambda: desk.enqueue(a_job(delay_ms=DAY))


def finished(outcome: Outcome) -> Callable[[Desk], Act]:
    def arrange(desk: Desk) -> Act:
        held = desk.executing()
        return lambda: desk.finish(held, outcome)

    return arrange


def too_new(desk: Desk) -> Act:
    desk.enqueue(a_job())
    desk.redis.hset(desk.keys.record("1"), "v", "3")
    return lambda: desk.fetch("anna")


def deferred_in_a_bound(desk: Desk) -> Act:
    return displaced(desk, delay_ms=DAY)


DEFERRING: Final[dict[str, tuple[str, Callable[[Desk], Act], int]]] = {
    "enqueued for later": ("enqueue", deferred, DAY),
    "enqueued for later in a queue with a bound": ("displace", deferred_in_a_bound, DAY),
    "retried": ("finish", finished(retried(86_400, FAILURE)), DAY),
    "snoozed": ("finish", finished(snoozed(86_400)), DAY),
    "unknown": ("finish", finished(not_known(FAILURE, 0, DAY)), 500),
    "too new": ("fetch", too_new, 500),
}


def test_every_script_that_makes_a_job_wait_for_its_time_is_tested_here() -> None:
    """All scripts that settle contain the outcomes that defer, and two of them write such an outcome."""
    deferring = {script for script in SCRIPTS if includes(script, "lib/carried")} | {"fetch", "finish"}
    assert deferring == {script for script, _, _ in DEFERRING.values()}


@pytest.mark.parametrize("how", DEFERRING)
@pytest.mark.parametrize("lane", ["", *READ])
def test_a_sleeper_is_told_when_the_next_job_is_due_and_sleeps_on(desk: Desk, how: str, lane: str) -> None:
    _, arrange, wait = DEFERRING[how]
    act = arrange(desk)
    desk.sleep("berta", lane=lane)
    with desk.subscribed("berta") as heard:
        act()
        assert heard() == [("berta", f"due {wait}")]
    assert desk.sleepers(lane) == {"berta"}


@pytest.mark.parametrize("how", DEFERRING)
@pytest.mark.parametrize("lane", ["", "s:low"])
def test_a_user_without_channels_announces_no_due_time_and_removes_no_name(
    desk: Desk, server: Server, how: str, lane: str
) -> None:
    act, names = DEFERRING[how][1](desk), {"berta", "clara", "dora"}
    desk.sleep(*names, lane=lane)
    with desk.subscribed(*names) as heard:
        with desk.as_user(server, channels=False):
            act()
        assert heard() == []
        assert desk.sleepers(lane) == names
        desk.enqueue(a_job("sooner", at_ms=1))
        assert [message for _, message in heard()] == ["due 0"]
    assert [*desk.due("sched"), *desk.due("retry")][0] == "sooner"


@pytest.mark.parametrize("how", DEFERRING)
def test_a_job_that_is_due_after_another_one_is_not_announced(desk: Desk, how: str) -> None:
    _, arrange, _ = DEFERRING[how]
    act = arrange(desk)
    for place in ("sched", "retry"):
        desk.redis.zadd(desk.keys[place], {"sooner": desk.now() + 100})
    desk.sleep("berta")
    with desk.subscribed("berta") as heard:
        act()
        assert heard() == []
    desk.redis.zrem(desk.keys["sched"], "sooner")
    desk.redis.zrem(desk.keys["retry"], "sooner")


@pytest.mark.parametrize("how", DEFERRING)
def test_names_without_a_subscriber_are_removed_until_one_is_told(desk: Desk, how: str) -> None:
    _, arrange, wait = DEFERRING[how]
    act = arrange(desk)
    desk.sleep(*(f"killed-{number}" for number in range(20)))
    desk.sleep("berta", lane="s:low")
    with desk.subscribed("berta") as heard:
        act()
        assert heard() == [("berta", f"due {wait}")]
    assert desk.sleepers() == set()


@pytest.mark.parametrize("how", DEFERRING)
@pytest.mark.parametrize("lane", ["", "s"])
@pytest.mark.audit(skip="the set has a wrong type on purpose")
def test_due_times_are_written_although_a_set_has_a_wrong_type(desk: Desk, how: str, lane: str) -> None:
    act = DEFERRING[how][1](desk)
    desk.redis.set(desk.sleepers_key(lane), "what?")
    act()
    assert [*desk.due("sched"), *desk.due("retry")] == ["1"]


def test_a_job_that_was_due_long_ago_is_due_now(desk: Desk) -> None:
    desk.sleep("berta")
    with desk.subscribed("berta") as heard:
        desk.enqueue(a_job(at_ms=1))
        assert heard() == [("berta", "due 0")]


def test_one_sleeper_of_many_is_told(desk: Desk) -> None:
    names = [f"e{number}" for number in range(20)]
    desk.sleep(*names)
    with desk.subscribed(*names) as heard:
        desk.enqueue(*(a_job(f"{delay}", delay_ms=delay) for delay in (3 * DAY, DAY, 2 * DAY)))
        ((_, message),) = heard()
    assert message == f"due {DAY}"
    assert desk.sleepers() == set(names)


def test_entries_and_due_times_of_one_call_are_both_announced(desk: Desk) -> None:
    desk.sleep("berta", "clara")
    with desk.subscribed("berta", "clara") as heard:
        desk.enqueue(a_job("1"), a_job("2", delay_ms=DAY))
        (first, looks), (second, due) = heard()
    assert (looks, due) == ("look s", f"due {DAY}")
    assert {first, second} == {"berta", "clara"}
    assert desk.sleepers() == {second}


# Passing a message on


def test_a_message_is_passed_on_to_another_executor(desk: Desk) -> None:
    with desk.subscribed("berta", "clara") as heard:
        fall_asleep(desk, "berta", "clara")
        desk.enqueue(a_job())
        ((first, _),) = heard()
        assert ring(desk, "s") == 1
        ((second, message),) = heard()
        assert message == "look s"
        assert {first, second} == {"berta", "clara"}
        assert ring(desk, "s") == 0
        assert heard() == []


def test_it_returns_how_many_lanes_have_woken_an_executor(desk: Desk) -> None:
    desk.sleep("berta", "clara")
    with desk.subscribed("berta", "clara") as heard:
        assert ring(desk, "s:high", "s", "s:low") == 2
        assert [message for _, message in heard()] == ["look s:high", "look s"]
        assert ring(desk) == 0


def test_a_ring_writes_nothing_but_the_sets(desk: Desk) -> None:
    desk.enqueue(a_job())
    before = desk.everything()
    desk.sleep("killed")
    assert ring(desk, "s") == 0
    assert desk.everything() == before


# Finishing


def test_the_end_of_a_job_wakes_no_executor(desk: Desk) -> None:
    held = desk.executing(*some_jobs(2))
    desk.sleep("berta")
    with desk.subscribed("berta") as heard:
        desk.finish(held, DONE)
        desk.enqueue(a_job("3", delay_ms=DAY))
        assert heard() == [("berta", f"due {DAY}")]
        desk.cancel("3")
        desk.do(verbs.queues.purge, LIFETIMES, 100)
        assert heard() == []


def test_of_several_runs_that_are_put_off_in_one_call_the_first_that_is_due_is_announced(desk: Desk) -> None:
    first, later = desk.executing(*some_jobs(2))
    desk.sleep("berta")
    with desk.subscribed("berta") as heard:
        desk.settle([Settled(first, snoozed(60)), Settled(later, retried(86_400, FAILURE))])
        (message,) = [message for _, message in heard()]
    assert message == "due 60000"
