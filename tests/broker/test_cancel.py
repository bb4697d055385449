"""cancel: ends jobs that have not started, and asks running ones to stop."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from fennelq.broker import verbs
from fennelq.broker.verbs.jobs import Chosen
from fennelq.model.outcome import Outcome, retried, snoozed
from fennelq.model.query import State
from tests.broker.desk import DEAD, FAILURE, LIFETIMES, Desk, a_job, about, shown, some_jobs
from tests.broker.limited import send
from tests.kit.server import Server

pytestmark = pytest.mark.both_servers

DAY = 86_400_000
IN_HAND = pytest.mark.audit(unfinished=True)


def cancelled(desk: Desk, key: str = "1") -> None:
    record = desk.record(key)
    assert (record["s"], record["y"]) == ("K", "cancelled")
    assert desk.result(key) == ['{"cancelled":"cancelled"}']
    assert desk.record_ttl(key) == about(LIFETIMES.failure_ms)
    assert desk.result_ttl(key) == about(LIFETIMES.failure_ms)
    assert desk.everywhere() == []


def stopping(desk: Desk) -> set[str]:
    """The running jobs that were asked to stop."""
    return {shown(job) for job in cast("set[bytes]", desk.redis.smembers(desk.keys["stop"]))}


@pytest.mark.parametrize("priority", ["high", "normal", "low"])
def test_a_queued_job_is_cancelled_and_its_entry_is_gone(desk: Desk, priority: str) -> None:
    desk.enqueue(a_job(priority=priority))
    assert desk.cancel("1") == [1]
    cancelled(desk)
    assert desk.stats() == {"K": 1}
    assert desk.take() == []


def test_a_scheduled_job_is_cancelled(desk: Desk) -> None:
    desk.enqueue(a_job(delay_ms=DAY))
    assert desk.cancel("1") == [1]
    cancelled(desk)


@pytest.mark.parametrize("outcome", [retried(86_400, FAILURE), snoozed(86_400)], ids="RZ")
def test_a_job_that_waits_for_its_next_run_is_cancelled(desk: Desk, outcome: Outcome) -> None:
    desk.finish(desk.executing(), outcome)
    assert desk.cancel("1") == [1]
    cancelled(desk)


def test_a_job_that_was_handed_back_is_cancelled(desk: Desk) -> None:
    desk.release(desk.executing())
    assert desk.cancel("1") == [1]
    cancelled(desk)


def test_the_reason_is_in_the_record_and_the_result(desk: Desk) -> None:
    desk.enqueue(a_job())
    desk.cancel("1", why='the user said "no"')
    assert desk.record()["y"] == 'the user said "no"'
    assert desk.result() == ['{"cancelled":"the user said \\"no\\""}']


def test_waiting_clients_are_notified(desk: Desk) -> None:
    desk.enqueue(a_job())
    with desk.listening("me") as heard:
        desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES)
        desk.cancel("1")
        assert heard() == ("me", b'mail:1\n{"cancelled":"cancelled"}')


def test_a_job_that_was_read_and_did_not_start_is_taken_from_its_executor(desk: Desk) -> None:
    desk.enqueue(a_job())
    read = desk.read()
    assert desk.cancel("1") == [1]
    assert desk.pending() == {}
    assert desk.release(read) == 0
    cancelled(desk)


@IN_HAND
@pytest.mark.parametrize("priority", ["high", "normal", "low"])
def test_a_running_job_is_asked_to_stop_and_its_executor_is_told_the_token(desk: Desk, priority: str) -> None:
    (running,) = desk.executing(a_job(priority=priority))
    before = desk.record()
    with desk.subscribed("anna", "berta") as heard:
        assert desk.cancel("1", why="it takes too long") == [2]
        assert heard() == [("anna", f"stop {running.lane} {running.entry} it takes too long")]
    assert desk.record() == {**before, "C": "it takes too long", "z": ""}
    assert stopping(desk) == {"1"}
    assert (desk.result(), desk.stats()) == ([], {})
    assert desk.pending(running.lane) == {running.entry: "anna"}


@IN_HAND
def test_a_running_job_in_quarantine_is_asked_to_stop(desk: Desk) -> None:
    desk.enqueue(a_job())
    desk.redelivered("1", 3, "iso")
    (running,) = desk.fetch("isolde", lanes=["iso"]).deliveries
    with desk.subscribed("isolde") as heard:
        assert desk.cancel("1") == [2]
        assert heard() == [("isolde", f"stop iso {running.entry} cancelled")]


@IN_HAND
def test_a_request_that_is_repeated_keeps_its_first_reason_and_is_sent_again(desk: Desk) -> None:
    (running,) = desk.executing()
    with desk.subscribed("anna") as heard:
        assert desk.cancel("1", why="first") == [2]
        assert desk.cancel("1", why="second") == [2]
        assert heard() == [("anna", f"stop s {running.entry} first")] * 2
    assert desk.record()["C"] == "first"


@IN_HAND
def test_without_the_right_to_publish_the_request_is_recorded(desk: Desk, server: Server) -> None:
    desk.executing()
    with desk.as_user(server, channels=False):
        assert desk.cancel("1") == [2]
    assert (desk.record()["C"], stopping(desk)) == ("cancelled", {"1"})


@pytest.mark.audit(lost={"mail:1"})
def test_a_running_job_whose_record_names_no_place_or_owner_is_asked_in_vain(desk: Desk) -> None:
    desk.redis.hset(desk.keys.record("1"), mapping={"t": "app:welcome", "s": "X"})
    assert desk.cancel("1") == [2]
    desk.redis.hset(desk.keys.record("1"), "p", "s/1-0")
    assert desk.cancel("1") == [2]
    desk.redis.hset(desk.keys.record("1"), mapping={"p": "nowhere", "w": "anna 1 1"})
    assert desk.cancel("1") == [2]


@pytest.mark.audit(leavings_fail=True)
def test_a_set_of_a_wrong_type_does_not_stop_the_request(desk: Desk) -> None:
    running = desk.executing()
    desk.redis.set(desk.keys["stop"], "what?")
    assert desk.cancel("1") == [2]
    assert desk.record()["C"] == "cancelled"
    desk.finish(running, DEAD)
    assert desk.record()["s"] == "K"
    desk.redis.delete(desk.keys["stop"])


@IN_HAND
def test_over_maxmemory_running_jobs_are_asked_to_stop(desk: Desk, server: Server) -> None:
    desk.executing()
    with server.configured(maxmemory="1"):
        assert desk.cancel("1") == [2]
    assert stopping(desk) == {"1"}


@pytest.mark.parametrize("end", ["succeeded", "dead", "cancelled"])
def test_for_a_job_that_has_ended_it_is_too_late(desk: Desk, end: str) -> None:
    if end == "cancelled":
        desk.enqueue(a_job())
        desk.cancel("1")
    elif end == "dead":
        desk.dead(outcome=DEAD)
    else:
        desk.finish(desk.executing())
    before = desk.everything()
    assert desk.cancel("1") == [0]
    assert desk.everything() == before


def test_an_unknown_job_is_unknown(desk: Desk) -> None:
    assert desk.cancel("missing") == [-1]


@pytest.mark.audit(lost={"mail:1"})
def test_a_record_of_a_wrong_type_is_unknown(desk: Desk) -> None:
    desk.redis.set(desk.keys.record("1"), "what?")
    assert desk.cancel("1") == [-1]


@IN_HAND
def test_each_job_of_a_batch_has_its_own_answer(desk: Desk) -> None:
    desk.executing(a_job("running"))
    desk.enqueue(a_job("queued"), a_job("later", delay_ms=DAY))
    assert desk.cancel("running", "queued", "missing", "later", "queued") == [2, 1, -1, 1, 0]
    assert desk.stats() == {"K": 2}


@pytest.mark.parametrize("delay", [0, DAY])
@pytest.mark.audit(lost={"mail:1"})
def test_a_job_whose_entry_vanished_is_not_cancelled_twice(desk: Desk, delay: int) -> None:
    desk.enqueue(a_job(delay_ms=delay))
    desk.redis.delete(desk.keys["s"], desk.keys["sched"])
    assert desk.cancel("1") == [0]
    assert desk.result() == []


@pytest.mark.audit(lost={"mail:1"})
def test_a_retry_whose_member_vanished_is_not_cancelled(desk: Desk) -> None:
    desk.finish(desk.executing(), retried(86_400, FAILURE))
    desk.redis.delete(desk.keys["retry"])
    assert desk.cancel("1") == [0]
    assert desk.record()["s"] == "R"


@pytest.mark.audit(lost={"mail:1"})
def test_a_record_that_names_no_place_is_left_alone(desk: Desk) -> None:
    desk.redis.hset(desk.keys.record("1"), "t", "app:welcome")
    assert desk.cancel("1") == [0]


def test_a_cancelled_job_keeps_its_idempotency_key_while_its_record_lives(desk: Desk) -> None:
    desk.enqueue(a_job(idempotency="app:welcome:42"))
    desk.cancel("1")
    assert desk.ttl(desk.keys.idempotency("app:welcome:42")) == about(LIFETIMES.failure_ms)
    assert desk.enqueue(a_job("2", idempotency="app:welcome:42")) == [b"1"]


def test_against_readers_each_job_is_either_cancelled_or_run(desk: Desk) -> None:
    keys = [str(key) for key in range(300)]
    for start in range(0, 300, 100):
        desk.enqueue(*(a_job(key) for key in keys[start : start + 100]))

    def read(name: str) -> list[str]:
        ran = list[str]()
        for _ in range(40):
            deliveries = desk.take(name, free=random.randint(1, 8))
            ran += [delivery.key for delivery in deliveries]
            desk.finish(deliveries)
        return ran

    def cancel(seed: int) -> list[str]:
        mine = random.Random(seed).sample(keys, 150)
        return [key for key in mine if desk.cancel(key) == [1]]

    with ThreadPoolExecutor(6) as pool:
        runs = [pool.submit(read, name) for name in ("anna", "berta", "clara", "dora")]
        cancels = [pool.submit(cancel, seed) for seed in (1, 2)]
        ran = [key for run in runs for key in run.result()]
        stopped = [key for job in cancels for key in job.result()]
    rest = desk.take(free=300)
    desk.finish(rest)
    ran += [delivery.key for delivery in rest]
    assert len(ran) == len(set(ran))
    assert len(stopped) == len(set(stopped))
    assert sorted(ran + stopped) == sorted(keys)
    assert all(len(desk.result(key)) == 1 for key in keys)


def test_over_maxmemory_jobs_are_cancelled(desk: Desk, server: Server) -> None:
    desk.enqueue(*some_jobs(3))
    with server.configured(maxmemory="1"):
        assert desk.cancel("1", "2", "3") == [1, 1, 1]
    assert desk.everywhere() == []


# Of an operation on many jobs


@IN_HAND
def test_an_operation_cancels_only_what_it_asks_for(desk: Desk) -> None:
    desk.dead(a_job("dead"))
    desk.finish(desk.executing(a_job("retry")), retried(86_400, FAILURE))
    desk.executing(a_job("running"))
    send(desk, "first", "limited")
    desk.enqueue(a_job("waiting"), a_job("scheduled", delay_ms=DAY))
    keys = ["waiting", "limited", "running", "scheduled", "retry", "dead", "unknown"]
    states = [State.WAITING, State.LIMITED, State.RUNNING, State.SCHEDULED, State.RETRY]
    before = {key: desk.record(key) for key in keys}
    for place, state in enumerate(states):
        others = [key for key in keys[:-1] if key != keys[place]]
        assert of_operation(desk, *others, states=[state]) == [-2] * 5
    assert of_operation(desk, "unknown", states=states) == [-1]
    assert {key: desk.record(key) for key in keys} == before
    assert [
        of_operation(desk, key, states=[state])[0] for key, state in zip(keys[:5], states, strict=True)
    ] == [*(1, 1, 2, 1, 1)]


@IN_HAND
def test_an_operation_does_not_cancel_a_job_that_was_sent_later(desk: Desk) -> None:
    desk.enqueue(a_job("1"))
    created = int(desk.record("1")["c"])
    assert of_operation(desk, "1", states=[State.WAITING], until=created - 1) == [-2]
    assert desk.waiting() == ["1"]
    assert of_operation(desk, "1", states=[State.WAITING], until=created) == [1]


def of_operation(desk: Desk, *keys: str, states: list[State], until: int | None = None) -> list[int]:
    return desk.do(verbs.jobs.cancel, keys, LIFETIMES, "why", Chosen(states, until))


@pytest.mark.parametrize("priority", ["high", "normal", "low"])
def test_a_job_in_a_line_of_any_priority_is_cancelled(desk: Desk, priority: str) -> None:
    desk.enqueue(*(a_job(key, gates="c1:account", priority=priority) for key in "12"))
    assert desk.cancel("2") == [1]
    assert (desk.record("2")["s"], desk.in_lines()) == ("K", [])


@pytest.mark.audit(skip="a record was changed by hand")
def test_a_job_in_a_line_whose_record_has_lost_its_limits_is_not_cancelled_and_stops_no_other(
    desk: Desk,
) -> None:
    desk.enqueue(*(a_job(key, gates="c1:account") for key in "123"))
    desk.redis.hdel(desk.keys.record("2"), "g")
    assert desk.cancel("2", "3") == [0, 1]
