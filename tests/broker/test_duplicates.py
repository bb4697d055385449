"""What a further call with the same idempotency key gets, by the mode and the state of the job that has it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

import pytest

from fennelq.broker import verbs
from fennelq.broker.verbs.runs import Catch
from fennelq.model.job import Delivery
from fennelq.model.lifetimes import Lifetimes
from fennelq.model.outcome import Outcome, cancelled, not_known, retried, snoozed
from tests.broker.desk import DEAD, DONE, FAILURE, LIFETIMES, Desk, a_job, about
from tests.kit.clock import ServerClock
from tests.kit.server import Server

pytestmark = [pytest.mark.both_servers, pytest.mark.audit(unfinished=True)]

KEY: Final = "app:welcome:42"
GATE: Final = "c1:latest:welcome/42"
KEYS_OF_GATE: Final = [f"{kind}:c:latest:welcome/42" for kind in ("slots", "wait")]
HOUR, MINUTE = 3_600_000, 60_000
NOON: Final = 1_800_000_000_000
RESULT_MS: Final = 60_000

MODES: Final[dict[str, dict[str, object]]] = {
    "plain": {},
    "until_start": {"dedupe": "<"},
    "replace": {"dedupe": "<", "duplicate": "replace"},
    "until_done": {"dedupe": ">"},
    "throttle": {"window_ms": HOUR},
    "debounce": {"dedupe": "<", "wait_ms": MINUTE, "max_wait_ms": 3 * MINUTE},
    "latest": {"dedupe": "^", "gates": GATE},
}
STATES: Final = ("waiting", "running", "in retry", "done", "dead", "after its window")

# What the second call gets: `handle` of the first job; `replaced`: the same, with the new arguments; or a `new` job.
TABLE: Final = {
    "plain": ("handle", "handle", "handle", "handle", "handle", "new"),
    "until_start": ("handle", "new", "new", "new", "new", "new"),
    "replace": ("replaced", "new", "new", "new", "new", "new"),
    "until_done": ("handle", "handle", "handle", "new", "new", "new"),
    "throttle": ("handle", "handle", "handle", "handle", "handle", "new"),
    "debounce": ("replaced", "new", "new", "new", "new", "new"),
    "latest": ("replaced", "new", "replaced", "new", "new", "new"),
}
CELLS: Final = [(mode, state) for mode in TABLE for state in STATES]


def call(key: str, mode: str, **more: Any) -> Any:
    """A call with arguments of its own: its key."""
    return a_job(key, args=f"[{key}]".encode(), idempotency=KEY, **{**MODES[mode], **more})


def bring(desk: Desk, state: str, mode: str, key: str = "1") -> None:
    """The first call, and its job in this state."""
    assert desk.enqueue(call(key, mode)) == [1]
    if state == "waiting":
        return
    run = start(desk)
    if state == "in retry":
        desk.finish(run, retried(HOUR, FAILURE))
    elif state == "dead":
        desk.finish(run, DEAD)
    elif state != "running":
        desk.finish(run, DONE)
    if state == "after its window":
        desk.redis.delete(desk.keys.record(key), desk.keys.result(key))
        if mode == "throttle":
            desk.redis.delete(desk.keys.idempotency(KEY))


def start(desk: Desk) -> list[Any]:
    """The due times are over, and anna takes what she can."""
    for name in ("sched", "retry"):
        for job in desk.due(name):
            desk.redis.zadd(desk.keys[name], {job: 1})
    desk.do(verbs.queues.promote, 100)
    return desk.take()


@pytest.mark.parametrize(("mode", "state"), CELLS, ids=[f"{mode}, {state}" for mode, state in CELLS])
def test_the_table(desk: Desk, mode: str, state: str) -> None:
    bring(desk, state, mode)
    before = desk.record("1")
    (answer,) = desk.enqueue(call("2", mode))
    expected = TABLE[mode][STATES.index(state)]
    if expected == "new":
        assert answer == 1
        assert desk.record("2")["a"] == "[2]"
        assert desk.record("2")["k"][1:] == desk_name(desk, "2")
        assert desk.record("1") == before
    else:
        assert answer == b"1"
        assert desk.record("2") == {}
        changed = {"a": "[2]", "r": "2"} if expected == "replaced" else {}
        assert desk.record("1") == before | changed


def desk_name(desk: Desk, job: str) -> str:
    """The name of the key, which this job holds."""
    assert desk.holder(KEY) == job
    return KEY


@pytest.mark.parametrize("mode", TABLE)
def test_the_letter_of_the_mode_and_the_version_are_in_the_record(desk: Desk, mode: str) -> None:
    desk.enqueue(call("1", mode))
    letters = {"plain": "=", "throttle": "~", "until_done": ">", "latest": "^"}
    record = desk.record("1")
    assert record["k"] == letters.get(mode, "<") + KEY
    assert record.get("v") == (None if mode in ("plain", "throttle") else "2")
    assert ("B" in record) == (mode == "debounce")
    assert desk.ttl(desk.keys.idempotency(KEY)) == (about(HOUR) if mode == "throttle" else -1)


# Replacing


def test_the_last_of_many_calls_is_the_one_that_runs(desk: Desk) -> None:
    assert desk.enqueue(*(call(str(n), "replace") for n in range(1, 201))) == [1, *[b"1"] * 199]
    (run,) = desk.take()
    assert (run.key, run.args) == ("1", b"[200]")


def test_a_call_that_replaces_brings_its_options_and_its_expiry_and_leaves_the_rest(desk: Desk) -> None:
    desk.enqueue(call("1", "replace", options='{"r":1}', expires_ms=MINUTE, max_deliveries=7, priority="low"))
    desk.enqueue(call("2", "replace", options='{"r":2}', expires_ms=HOUR, priority="high"))
    record = desk.record("1")
    assert (record["o"], int(record["E"])) == ('{"r":2}', about_now(desk, HOUR))
    assert "M" not in record
    assert desk.waiting("s:low") == ["1"]
    desk.enqueue(call("3", "replace"))
    assert {"o", "E", "M"}.isdisjoint(desk.record("1"))
    every: dict[str, Any] = {
        "options": '{"r":4}',
        "expires_ms": HOUR,
        "max_deliveries": 4,
        "gates": "c1:account",
    }
    desk.enqueue(call("4", "replace", **every))
    assert desk.record("1").items() >= {"o": '{"r":4}', "M": "4", "g": "c1:account", "a": "[4]"}.items()
    desk.do(verbs.queues.promote, 10)
    assert desk.waiting("s:low") == ["1"]


def keys_of_gate(desk: Desk) -> list[str]:
    return [desk.keys.prefix + name for name in KEYS_OF_GATE]


def about_now(desk: Desk, ms: int) -> Any:
    return about(desk.now() + ms + 5000)


@pytest.mark.parametrize("holder", ["plain", "until_done", "throttle"])
def test_a_call_that_replaces_leaves_a_job_alone_whose_key_is_held_after_its_start(
    desk: Desk, holder: str
) -> None:
    desk.enqueue(call("1", holder))
    before = desk.record("1")
    assert desk.enqueue(call("2", "replace"), call("3", "debounce")) == [b"1", b"1"]
    assert desk.record("1") == before


@pytest.mark.parametrize("place", ["a lane", "a line", "scheduled"])
def test_a_replaced_job_waits_for_the_gates_of_its_new_arguments(desk: Desk, place: str) -> None:
    old, new = "c1:account/1", "c1:account/2"
    others = [a_job("holder", gates=old), a_job("behind", gates=old)] if place == "a line" else []
    desk.enqueue(*others)
    desk.take(free=1)
    desk.enqueue(call("1", "replace", gates=old, delay_ms=HOUR if place == "scheduled" else 0))
    if place == "a lane":
        desk.enqueue(a_job("behind", gates=old))
        assert desk.waiting() == ["1"]
    assert desk.enqueue(call("2", "replace", gates=new)) == [b"1"]
    assert desk.record("1")["g"] == new
    runs = start(desk)
    if place == "a lane":
        # Its slot went to the next of the gate that it has left.
        assert {run.key for run in runs} == {"1", "behind"}
    else:
        assert [run.key for run in runs] == ["1"]
    desk.finish(runs)
    desk.finish(desk.take())
    if place == "a line":
        assert desk.in_lines() == ["behind"]
        desk.cancel("behind", "holder")
    else:
        assert desk.keys_of_limits() == []


def test_a_replaced_job_may_lose_its_gates_and_get_some(desk: Desk) -> None:
    desk.enqueue(a_job("holder", gates="c1:account/1"))
    desk.take()
    desk.enqueue(call("1", "replace", gates="c1:account/1"))
    assert desk.in_lines() == ["1"]
    desk.enqueue(call("2", "replace"))
    record = desk.record("1")
    assert ("g" in record, record["s"], record["p"]) == (False, "L", "sched")
    assert desk.do(verbs.queues.promote, 10)[0] == 1
    assert desk.waiting() == ["holder", "1"]
    desk.enqueue(call("3", "replace", gates="c1:account/1"))
    desk.do(verbs.queues.promote, 10)
    assert desk.in_lines() == ["1"]


# A caller that repeats its call because the reply was lost


@pytest.mark.parametrize("mode", TABLE)
def test_the_repeat_of_the_first_call_changes_nothing(desk: Desk, mode: str) -> None:
    desk.enqueue(call("1", mode), call("2", mode))
    before = desk.everything()
    assert desk.enqueue(call("1", mode)) == [0]
    assert desk.everything() == before


@pytest.mark.parametrize("mode", ["replace", "debounce", "latest"])
@pytest.mark.parametrize("state", ["waiting", "running", "done", "dead"])
def test_the_repeat_of_a_call_that_has_replaced_another_makes_no_second_run(
    desk: Desk, mode: str, state: str
) -> None:
    desk.enqueue(call("1", mode))
    assert desk.enqueue(call("2", mode)) == [b"1"]
    if state != "waiting":
        run = start(desk)
        if state != "running":
            desk.finish(run, DONE if state == "done" else DEAD)
    before = desk.everything()
    assert desk.enqueue(call("2", mode)) == [b"1"]
    assert desk.everything() == before


# Debounce


def test_each_call_postpones_a_debounced_job_until_it_has_waited_as_long_as_it_may(
    desk: Desk, server_clock: ServerClock
) -> None:
    server_clock.stop_at(NOON)
    desk.enqueue(call("1", "debounce"))
    assert (desk.due(), desk.record("1")["B"]) == ({"1": NOON + MINUTE}, str(NOON + 3 * MINUTE))
    waits = list[int]()
    for n in range(2, 7):
        server_clock.pass_by(40_000)
        desk.enqueue(call(str(n), "debounce"))
        waits.append(desk.due()["1"] - NOON)
    assert waits == [100_000, 140_000, 180_000, 180_000, 180_000]
    (run,) = start(desk)
    assert (run.key, run.args) == ("1", b"[6]")


def test_without_a_bound_a_debounced_job_is_postponed_by_every_call(
    desk: Desk, server_clock: ServerClock
) -> None:
    server_clock.stop_at(NOON)
    for n in range(1, 20):
        desk.enqueue(call(str(n), "debounce", max_wait_ms=0))
        server_clock.pass_by(30_000)
    assert desk.due() == {"1": NOON + 18 * 30_000 + MINUTE}
    assert desk.record("1")["B"] == ""


@pytest.mark.parametrize("gates", ["", "c1:account"])
def test_a_debounced_job_that_is_due_already_is_not_postponed_any_more(desk: Desk, gates: str) -> None:
    desk.enqueue(a_job("holder", gates=gates))
    desk.take()
    desk.enqueue(call("1", "debounce", gates=gates))
    desk.redis.zadd(desk.keys["sched"], {"1": 1})
    desk.do(verbs.queues.promote, 10)
    place = desk.record("1")["p"]
    assert place.partition("/")[0] == ("line" if gates else "s")
    assert desk.enqueue(call("2", "debounce", gates=gates)) == [b"1"]
    assert (desk.record("1")["p"], desk.record("1")["a"], desk.due()) == (place, "[2]", {})


@pytest.mark.parametrize(("first", "second"), [("debounce", "replace"), ("replace", "debounce")])
def test_only_a_debounced_call_postpones_only_a_debounced_job(desk: Desk, first: str, second: str) -> None:
    desk.enqueue(call("1", first, **({"delay_ms": HOUR} if first == "replace" else {})))
    due = desk.due()
    desk.enqueue(call("2", second, **({"delay_ms": HOUR} if second == "replace" else {})))
    assert (desk.due(), desk.record("1")["a"]) == (due, "[2]")


def test_a_sleeper_is_told_of_an_earlier_due_time(desk: Desk) -> None:
    desk.enqueue(call("1", "debounce"))
    desk.sleep("anna")
    with desk.subscribed("anna") as heard:
        desk.enqueue(call("2", "debounce", wait_ms=1000))
        assert heard() == [("anna", "due 1000")]


# Latest


def test_latest_runs_once_more_after_the_run_that_a_call_has_met(desk: Desk) -> None:
    bring(desk, "running", "latest")
    assert desk.enqueue(call("2", "latest"), call("3", "latest")) == [1, b"2"]
    assert desk.take() == []
    assert desk.in_lines() == ["2"]
    desk.redis.persist(desk.keys.record("1"))
    first = running(desk, "1")
    desk.finish([first])
    (second,) = desk.take()
    assert (second.key, second.args) == ("2", b"[3]")
    desk.finish([second])
    assert desk.keys_of_limits() == []


def running(desk: Desk, key: str) -> Any:
    """The delivery of a job that runs."""
    lane, _, entry = desk.record(key)["p"].partition("/")
    return Delivery("mail", lane, entry, key, "app:welcome", b"", b"", 0, 1, 1, 0)


@pytest.mark.parametrize(
    "outcome",
    [retried(HOUR, FAILURE), snoozed(HOUR), not_known(FAILURE, 0, RESULT_MS)],
    ids=["retry", "snooze", "worker too old"],
)
def test_an_older_call_does_not_run_after_a_newer_one(desk: Desk, outcome: Any) -> None:
    bring(desk, "running", "latest")
    desk.enqueue(call("2", "latest"))
    with desk.listening("ends") as heard:
        desk.do(verbs.jobs.watch, "ends", ["1"], LIFETIMES)
        assert desk.finish([running(desk, "1")], outcome) == [1]
        assert heard() == ("ends", b'mail:1\n{"cancelled":"superseded"}')
    assert (desk.record("1")["s"], desk.record("1")["y"]) == ("K", "superseded")
    assert [run.key for run in desk.take()] == ["2"]
    assert (desk.due("retry"), desk.due("sched")) == ({}, {})


def test_a_rate_limited_older_call_does_not_go_back_to_its_line(desk: Desk) -> None:
    bring(desk, "running", "latest")
    desk.enqueue(call("2", "latest"))
    desk.finish([running(desk, "1")], Outcome("G", b"+1000"))
    assert desk.record("1")["y"] == "superseded"
    assert desk.in_lines() == []


def test_an_older_call_that_was_asked_to_stop_ends_for_that_reason(desk: Desk) -> None:
    bring(desk, "running", "latest")
    desk.enqueue(call("2", "latest"))
    desk.cancel("1", why="asked")
    desk.finish([running(desk, "1")], retried(HOUR, FAILURE))
    assert desk.record("1")["y"] == "asked"


def test_an_older_call_that_dies_is_dead_beside_a_newer_one(desk: Desk) -> None:
    bring(desk, "running", "latest")
    desk.enqueue(call("2", "latest"))
    desk.finish([running(desk, "1")], DEAD)
    assert (desk.record("1")["s"], desk.record("1")["y"]) == ("D", "failed")


def test_an_older_call_succeeds_beside_a_newer_one(desk: Desk) -> None:
    bring(desk, "running", "latest")
    desk.enqueue(call("2", "latest"))
    desk.finish([running(desk, "1")])
    assert desk.record("1")["s"] == "S"


@pytest.mark.parametrize("end", ["cancelled", "deleted by hand"])
def test_an_older_call_is_the_latest_again_when_the_newer_job_is_gone(desk: Desk, end: str) -> None:
    bring(desk, "running", "latest")
    desk.enqueue(call("2", "latest"))
    if end == "cancelled":
        desk.cancel("2")
    else:
        lines = [desk.keys.line("c:latest:welcome/42@s"), desk.keys["lines"], *keys_of_gate(desk)[1:]]
        desk.redis.delete(desk.keys.record("2"), *lines)
    desk.finish([running(desk, "1")], retried(HOUR, FAILURE))
    assert (desk.record("1")["s"], desk.holder(KEY)) == ("R", "1")
    assert desk.ttl(desk.keys.idempotency(KEY)) == -1
    assert desk.enqueue(call("3", "latest")) == [b"1"]
    assert desk.record("1")["a"] == "[3]"


def never_begins(desk: Desk, how: str) -> None:
    """The newer job will not run, although its handler has not begun."""
    if how == "expired":
        desk.redis.hset(desk.keys.record("2"), "E", 1)
    elif how == "dropped":
        desk.do(verbs.jobs.displace, [a_job("other")], 1, LIFETIMES)
        assert desk.record("2")["y"] == "dropped"
    else:
        desk.do(verbs.jobs.cancel, ["2"], Lifetimes(record_ms=1, failure_ms=1), "asked")
        desk.redis.delete(desk.keys.record("2"), desk.keys.idempotency(KEY))


def test_an_older_call_whose_executor_may_not_write_the_key_is_tried_again_all_the_same(
    desk: Desk, server: Server
) -> None:
    bring(desk, "running", "latest")
    desk.enqueue(call("2", "latest"))
    desk.cancel("2")
    with desk.as_user(server, "set"):
        desk.finish([running(desk, "1")], retried(HOUR, FAILURE))
    assert (desk.record("1")["s"], desk.pending("s")) == ("R", {})


@pytest.mark.parametrize("how", ["expired", "dropped", "cancelled and forgotten"])
def test_an_older_call_is_tried_again_when_the_newer_one_will_not_run(desk: Desk, how: str) -> None:
    bring(desk, "running", "latest")
    desk.enqueue(call("2", "latest"))
    never_begins(desk, how)
    desk.finish([running(desk, "1")], retried(HOUR, FAILURE))
    assert (desk.record("1")["s"], desk.holder(KEY)) == ("R", "1")
    assert desk.ttl(desk.keys.idempotency(KEY)) == -1
    assert desk.enqueue(call("3", "latest")) == [b"1"]
    assert "1" in [run.key for run in start(desk)]
    assert desk.record("2").get("s") == {"expired": "K", "dropped": "D"}.get(how)


@pytest.mark.parametrize("end", ["runs", "succeeds", "dies", "is cancelled", "waits for its next try"])
def test_an_older_call_does_not_run_after_a_newer_one_has_begun(desk: Desk, end: str) -> None:
    """Both run if the older one was handed back, or its slot was given back by hand."""
    bring(desk, "running", "latest")
    desk.enqueue(call("2", "latest"))
    desk.redis.delete(*keys_of_gate(desk)[:1])
    desk.do(verbs.queues.mend, 10)
    (newer,) = desk.take()
    assert newer.key == "2"
    ends = {
        "succeeds": DONE,
        "dies": DEAD,
        "is cancelled": cancelled("asked", RESULT_MS),
        "waits for its next try": retried(HOUR, FAILURE),
    }
    if end in ends:
        desk.finish([newer], ends[end])
    desk.finish([running(desk, "1")], retried(HOUR, FAILURE))
    assert (desk.record("1")["s"], desk.record("1")["y"]) == ("K", "superseded")
    assert desk.holder(KEY) == "2"


def test_a_retry_with_replaced_arguments_is_due_as_before(desk: Desk) -> None:
    bring(desk, "in retry", "latest")
    due = desk.due("retry")
    desk.enqueue(call("2", "latest"))
    assert desk.due("retry") == due
    (run,) = start(desk)
    assert (run.key, run.args, run.tries) == ("1", b"[2]", 1)


# Who holds a key, and until when


@pytest.mark.parametrize("mode", ["until_start", "until_done", "debounce", "latest"])
@pytest.mark.parametrize("how", ["cancelled", "purged", "expired", "record deleted", "dead of crashes"])
def test_a_job_that_will_not_run_any_more_has_freed_its_key(desk: Desk, mode: str, how: str) -> None:
    desk.enqueue(call("1", mode, max_deliveries=1))
    if how == "cancelled":
        desk.cancel("1")
    elif how == "purged":
        desk.do(verbs.queues.purge, LIFETIMES, 10)
    elif how == "expired":
        desk.redis.hset(desk.keys.record("1"), "E", 1)
        start(desk)
        assert desk.record("1")["y"] == "expired"
    elif how == "record deleted":
        desk.redis.delete(desk.keys.record("1"), desk.keys["sched"], desk.keys["s"], *keys_of_gate(desk))
    else:
        start(desk)
        desk.recover()
        assert desk.record("1")["y"] == "crash_loop"
    assert desk.enqueue(call("2", mode)) == [1]
    assert desk.holder(KEY) == "2"


@pytest.mark.parametrize("mode", ["until_start", "until_done", "debounce", "latest"])
@pytest.mark.parametrize("field", [{"E": 1}, {"C": "asked"}], ids=["expired", "asked to stop"])
def test_a_job_that_waits_only_to_be_cancelled_holds_no_key(
    desk: Desk, mode: str, field: dict[str, Any]
) -> None:
    desk.enqueue(call("1", mode))
    for letter, value in field.items():
        desk.redis.hset(desk.keys.record("1"), letter, value)
    assert desk.enqueue(call("2", mode)) == [1]
    assert desk.record("1")["a"] == "[1]"


@pytest.mark.parametrize("mode", ["until_start", "until_done"])
def test_the_end_of_a_job_does_not_free_the_key_of_the_next_one(desk: Desk, mode: str) -> None:
    bring(desk, "running", mode)
    first = running(desk, "1")
    if mode == "until_done":
        assert desk.cancel("1", why="asked") == [2]
        assert desk.enqueue(call("0", mode)) == [b"1"]
        desk.finish([first], cancelled("asked", RESULT_MS))
    assert desk.enqueue(call("2", mode)) == [1]
    desk.finish([first])
    assert (desk.holder(KEY), desk.ttl(desk.keys.idempotency(KEY))) == ("2", -1)
    assert desk.enqueue(call("3", mode)) == [b"2"]


@pytest.mark.parametrize("mode", ["until_start", "until_done", "debounce", "latest"])
def test_the_key_of_an_ended_job_goes_with_its_record(desk: Desk, mode: str) -> None:
    bring(desk, "done", mode)
    assert [desk.ttl(desk.keys.idempotency(KEY)), desk.record_ttl("1")] == [about(LIFETIMES.record_ms)] * 2
    bring(desk, "dead", mode, "2")
    assert desk.ttl(desk.keys.idempotency(KEY)) == desk.record_ttl("2") == -1
    desk.gc(max_len=0)
    assert (desk.holder(KEY), desk.record("2")) == (None, {})


@pytest.mark.parametrize("why", ["unstarted", "stranded"])
@pytest.mark.parametrize("mode", ["until_start", "replace"])
def test_a_job_whose_handler_did_not_begin_holds_its_key_again(desk: Desk, mode: str, why: Any) -> None:
    bring(desk, "running", mode)
    desk.release([running(desk, "1")], why)
    assert desk.enqueue(call("2", mode)) == [b"1"]
    assert desk.record("1")["a"] == ("[2]" if mode == "replace" else "[1]")


@pytest.mark.parametrize("mode", ["until_start", "replace"])
def test_a_job_that_no_worker_could_run_yet_holds_its_key(desk: Desk, mode: str) -> None:
    bring(desk, "running", mode)
    desk.finish([running(desk, "1")], not_known(FAILURE, 0, RESULT_MS))
    assert desk.record("1")["s"] == "L"
    assert desk.enqueue(call("2", mode)) == [b"1"]


def test_of_two_jobs_that_did_not_begin_the_one_that_took_the_key_last_holds_it(desk: Desk) -> None:
    bring(desk, "running", "replace")
    desk.enqueue(call("2", "replace"))
    desk.release([running(desk, "1")], "unstarted")
    assert desk.enqueue(call("3", "replace")) == [b"2"]
    assert (desk.record("1")["a"], desk.record("2")["a"]) == ("[1]", "[3]")


@pytest.mark.parametrize("how", ["stopped", "recovered"])
def test_a_job_that_is_handed_back_after_its_start_holds_its_key_only_until_done(
    desk: Desk, how: str
) -> None:
    for mode, answer in (("until_start", 1), ("until_done", b"1")):
        desk.redis.flushdb()
        bring(desk, "running", mode)
        if how == "stopped":
            desk.release([running(desk, "1")])
        else:
            desk.recover()
        assert desk.enqueue(call("2", mode)) == [answer]


@pytest.mark.parametrize("how", ["stopped", "recovered"])
def test_the_latest_call_replaces_a_job_that_was_handed_back(desk: Desk, how: str) -> None:
    bring(desk, "running", "latest")
    if how == "stopped":
        desk.release([running(desk, "1")])
    else:
        desk.recover()
    assert desk.enqueue(call("2", "latest")) == [b"1"]
    (run,) = desk.take()
    assert (run.key, run.args) == ("1", b"[2]")


# Replay


def replayed(desk: Desk, key: str = "1") -> list[int]:
    return desk.do(verbs.dead.replay, [entry for entry, fields in desk.entries("dlq") if fields["i"] == key])


@pytest.mark.parametrize("mode", ["until_start", "until_done", "debounce", "latest"])
def test_a_replayed_job_takes_its_key_again(desk: Desk, mode: str) -> None:
    bring(desk, "dead", mode)
    desk.enqueue(call("2", mode))
    desk.cancel("2")
    assert replayed(desk) == [1]
    assert (desk.holder(KEY), desk.ttl(desk.keys.idempotency(KEY))) == ("1", -1)
    assert desk.enqueue(call("3", mode)) == [b"1"]


@pytest.mark.parametrize("mode", ["until_start", "until_done", "debounce", "latest"])
@pytest.mark.parametrize("other", ["waiting", "running", "done"])
def test_a_dead_job_is_not_replayed_while_another_one_holds_its_key(
    desk: Desk, mode: str, other: str
) -> None:
    bring(desk, "dead", mode)
    bring(desk, other, mode, "2")
    held = other == "waiting" or (other == "running" and mode in ("until_done", "latest"))
    assert replayed(desk) == [-1 if held else 1]
    assert desk.record("1")["s"] == ("D" if held else "Q")
    assert desk.holder(KEY) == ("2" if held else "1")


# Between two scripts


def test_a_thousand_interleavings_of_replacing_and_starting_lose_no_call(desk: Desk) -> None:
    """L13. Of each key, the last call runs, in the job that it has replaced or in a new one. No call runs twice,
    although each may be repeated at once because its reply was lost."""
    chance = random.Random(12)
    steps = list[Any]()
    for n in range(1000):
        first, second, third = (
            a_job(
                f"{n}.{place}",
                args=b"[%d]" % place,
                idempotency=f"app:k:{n}",
                dedupe="<",
                duplicate="replace",
            )
            for place in (1, 2, 3)
        )
        rest = [verbs.jobs.enqueue(desk.keys, [one]) for one in (second, third)]
        for _ in range(2):
            rest.insert(chance.randint(0, len(rest)), fetching(desk))
        twice = [step for step in rest for _ in range(chance.choice([1, 1, 2]))]
        steps += [verbs.jobs.enqueue(desk.keys, [first]), *twice]
    replies = desk.broker.send_all([*steps, fetching(desk)])
    ran: dict[str, list[bytes]] = {}
    for reply in replies:
        for run in reply.deliveries if isinstance(reply, Catch) else ():
            ran.setdefault(run.key.partition(".")[0], []).append(run.args)
    assert len(ran) == 1000
    assert {args[-1] for args in ran.values()} == {b"[3]"}
    assert {tuple(args) for args in ran.values()} == {
        (b"[3]",),
        (b"[1]", b"[3]"),
        (b"[2]", b"[3]"),
        (b"[1]", b"[2]", b"[3]"),
    }


def fetching(desk: Desk) -> Any:
    return verbs.runs.fetch(desk.keys, consumer="anna", free=100, lanes=["s"], lifetimes=LIFETIMES)


def test_large_arguments_of_the_holder_are_not_read(desk: Desk) -> None:
    desk.enqueue(a_job("1", args=b"[" + b"1" * 1_000_000 + b"]", idempotency=KEY, dedupe=">"))
    repeat: Callable[[], object] = lambda: desk.enqueue(call("2", "until_done"))  # noqa: E731
    assert desk.commands_of(repeat) == {"exists": 1, "get": 2, "hmget": 1}
