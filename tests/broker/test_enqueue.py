"""enqueue: creates each job once and puts it in its place."""

from __future__ import annotations

import hashlib

import pytest

from fennelq.broker.trouble import ReplyError, Trouble, classify
from tests.broker.desk import DEAD, Desk, a_job, about, some_jobs
from tests.kit.server import Server
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.both_servers, pytest.mark.audit(unfinished=True)]

DAY = 86_400_000


def test_a_job_is_created_in_the_normal_lane_and_its_record_names_the_entry(desk: Desk) -> None:
    before = desk.now()
    assert desk.enqueue(a_job("7")) == [1]
    ((entry, fields),) = desk.entries("s")
    record = desk.record("7")
    assert fields == {"i": "7"}
    assert before <= int(record.pop("c")) <= desk.now()
    assert record == {"t": "app:welcome", "a": "[42]", "p": f"s/{entry}"}
    assert desk.record_ttl("7") == -1


def test_jobs_of_one_call_keep_their_order(desk: Desk) -> None:
    assert desk.enqueue(*some_jobs(5)) == [1] * 5
    assert desk.waiting() == ["1", "2", "3", "4", "5"]


def test_a_repeated_call_makes_no_second_job(desk: Desk) -> None:
    desk.enqueue(a_job())
    before = desk.everything()
    assert desk.enqueue(a_job()) == [0]
    assert desk.everything() == before


def test_a_repeat_within_one_call_makes_no_second_job(desk: Desk) -> None:
    assert desk.enqueue(a_job(), a_job()) == [1, 0]
    assert desk.waiting() == ["1"]


@pytest.mark.parametrize("end", ["executing", "succeeded", "dead", "cancelled"])
def test_a_repeat_finds_the_job_wherever_it_has_got_to(desk: Desk, end: str) -> None:
    desk.enqueue(a_job())
    if end == "cancelled":
        desk.cancel("1")
    else:
        deliveries = desk.take()
        if end == "succeeded":
            desk.finish(deliveries)
        if end == "dead":
            desk.finish(deliveries, DEAD)
    assert desk.enqueue(a_job()) == [0]
    assert desk.waiting() == (["1"] if end == "executing" else [])


def test_a_job_sent_before_any_worker_came_is_delivered_to_the_first(desk: Desk) -> None:
    desk.enqueue(a_job())
    assert [delivery.key for delivery in desk.take()] == ["1"]


@pytest.mark.parametrize(("priority", "lane"), [("high", "s:high"), ("low", "s:low")])
def test_a_priority_has_a_lane_of_its_own(desk: Desk, priority: str, lane: str) -> None:
    desk.enqueue(a_job(priority=priority))
    ((entry, _),) = desk.entries(lane)
    assert desk.record()["p"] == f"{lane}/{entry}"
    assert desk.waiting("s") == []


def test_a_delayed_job_is_due_that_much_after_the_servers_now(desk: Desk) -> None:
    before = desk.now()
    assert desk.enqueue(a_job(delay_ms=DAY)) == [1]
    due = desk.due()["1"]
    assert before + DAY <= due <= desk.now() + DAY
    assert desk.record().items() >= {"s": "L", "p": "sched", "t": "app:welcome", "a": "[42]"}.items()
    assert desk.waiting() == []


def test_a_job_for_a_moment_is_due_at_that_moment(desk: Desk) -> None:
    moment = desk.now() + DAY
    desk.enqueue(a_job(at_ms=moment))
    assert desk.due() == {"1": moment}


def test_a_sleeper_is_told_of_a_job_that_is_due_before_all_others(desk: Desk) -> None:
    desk.sleep("anna")
    with desk.subscribed("anna") as heard:
        desk.enqueue(a_job("1", delay_ms=DAY))
        assert heard() == [("anna", f"due {DAY}")]
        desk.enqueue(a_job("2", delay_ms=2 * DAY))
        assert heard() == []
        desk.enqueue(a_job("3", delay_ms=DAY // 2))
        assert heard() == [("anna", f"due {DAY // 2}")]
        desk.enqueue(a_job("4", at_ms=1))
        assert heard() == [("anna", "due 0")]
    assert desk.sleepers() == {"anna"}


def test_of_a_batch_only_the_soonest_job_is_announced(desk: Desk) -> None:
    desk.sleep("anna")
    with desk.subscribed("anna") as heard:
        desk.enqueue(*(a_job(f"{delay}", delay_ms=delay) for delay in (3 * DAY, DAY, 2 * DAY)))
        assert heard() == [("anna", f"due {DAY}")]


def test_a_delayed_job_remembers_its_lane(desk: Desk) -> None:
    desk.enqueue(a_job(delay_ms=DAY, priority="high"))
    assert desk.record()["m"] == "s:high"


def test_a_repeated_delayed_job_keeps_its_first_due_time(desk: Desk) -> None:
    desk.enqueue(a_job(delay_ms=DAY))
    due = desk.due()
    assert desk.enqueue(a_job(delay_ms=2 * DAY)) == [0]
    assert desk.due() == due


def test_the_options_of_a_call_are_in_the_record(desk: Desk) -> None:
    desk.enqueue(a_job(options='{"r":3}', expires_ms=DAY, max_deliveries=7))
    record = desk.record()
    assert record["o"] == '{"r":3}'
    assert int(record["E"]) == int(record["c"]) + DAY
    assert record["M"] == "7"


# A job id given by the client


def test_a_nonce_distinguishes_the_callers_own_repeat_of_an_id_from_anothers(desk: Desk) -> None:
    assert desk.enqueue(a_job("order-7", nonce="mine")) == [1]
    assert desk.enqueue(a_job("order-7", nonce="mine")) == [0]
    assert desk.enqueue(a_job("order-7", nonce="theirs")) == [2]
    assert desk.waiting() == ["order-7"]


@pytest.mark.parametrize("other", [{"args": b"[43]"}, {"task": "app:bill"}])
def test_an_id_that_belongs_to_another_call_is_refused(desk: Desk, other: dict[str, object]) -> None:
    desk.enqueue(a_job("order-7", nonce="mine"))
    before = desk.everything()
    assert desk.enqueue(a_job("order-7", nonce="theirs", **other)) == [-1]
    assert desk.everything() == before


def test_an_id_is_compared_with_a_digest_that_outlives_the_arguments(desk: Desk) -> None:
    desk.finish(desk.executing(a_job("order-7", nonce="mine")))
    assert desk.record("order-7")["a"] == ""
    assert desk.record("order-7")["h"] == hashlib.sha1(b"[42]").hexdigest()
    assert desk.enqueue(a_job("order-7", nonce="theirs")) == [2]
    assert desk.enqueue(a_job("order-7", nonce="theirs", args=b"[43]")) == [-1]


def test_an_id_given_by_a_client_does_not_meet_one_that_was_not(desk: Desk) -> None:
    desk.enqueue(a_job("7"))
    assert desk.enqueue(a_job("7", nonce="mine")) == [-1]


@pytest.mark.audit(lost={"mail:7"})
def test_an_id_whose_key_is_not_a_record_is_refused(desk: Desk) -> None:
    desk.redis.set(desk.keys.record("7"), "what?")
    assert desk.enqueue(a_job("7", nonce="mine")) == [-1]


# Idempotency keys


def test_the_first_call_with_a_key_takes_it_for_as_long_as_its_record_lives(desk: Desk) -> None:
    assert desk.enqueue(a_job("1", idempotency="app:welcome:42")) == [1]
    assert desk.holder("app:welcome:42") == "1"
    assert desk.ttl(desk.keys.idempotency("app:welcome:42")) == -1
    assert desk.record()["k"] == "=app:welcome:42"


def test_further_calls_with_a_key_are_answered_with_its_holder(desk: Desk) -> None:
    desk.enqueue(a_job("1", idempotency="app:welcome:42"))
    before = desk.everything()
    assert desk.enqueue(a_job("2", idempotency="app:welcome:42")) == [b"1"]
    assert desk.everything() == before


def test_a_repeat_of_the_call_that_took_the_key_does_not_count_as_a_further_call(desk: Desk) -> None:
    desk.enqueue(a_job("1", idempotency="app:welcome:42"))
    assert desk.enqueue(a_job("1", idempotency="app:welcome:42")) == [0]


def test_of_two_calls_in_one_batch_the_first_takes_the_key(desk: Desk) -> None:
    both = [a_job(key, idempotency="app:welcome:42") for key in ("1", "2")]
    assert desk.enqueue(*both) == [1, b"1"]
    assert desk.waiting() == ["1"]


def test_a_job_that_has_ended_holds_its_key_while_its_record_lives(desk: Desk) -> None:
    desk.finish(desk.executing(a_job("1", idempotency="app:welcome:42")))
    assert desk.enqueue(a_job("2", idempotency="app:welcome:42")) == [b"1"]


def test_the_key_of_a_holder_that_is_gone_is_taken_over(desk: Desk) -> None:
    desk.finish(desk.executing(a_job("1", idempotency="app:welcome:42")))
    desk.redis.delete(desk.keys.record("1"), desk.keys.result("1"))
    assert desk.enqueue(a_job("2", idempotency="app:welcome:42")) == [1]
    assert desk.holder("app:welcome:42") == "2"
    assert desk.ttl(desk.keys.idempotency("app:welcome:42")) == -1


def test_a_window_frees_the_key_although_the_job_lives(desk: Desk) -> None:
    desk.enqueue(a_job("1", idempotency="app:welcome:42", window_ms=DAY))
    assert desk.ttl(desk.keys.idempotency("app:welcome:42")) == about(DAY)
    assert desk.record()["k"] == "~app:welcome:42"
    assert desk.enqueue(a_job("2", idempotency="app:welcome:42", window_ms=DAY)) == [b"1"]
    desk.redis.pexpire(desk.keys.idempotency("app:welcome:42"), 1)
    eventually(lambda: desk.holder("app:welcome:42") is None)
    assert desk.enqueue(a_job("3", idempotency="app:welcome:42", window_ms=DAY)) == [1]
    assert desk.waiting() == ["1", "3"]


def test_a_delayed_job_takes_its_key_at_once(desk: Desk) -> None:
    desk.enqueue(a_job("1", idempotency="app:welcome:42", delay_ms=DAY))
    assert desk.enqueue(a_job("2", idempotency="app:welcome:42")) == [b"1"]


def test_a_key_of_a_wrong_type_holds_nothing(desk: Desk) -> None:
    desk.redis.rpush(desk.keys.idempotency("app:welcome:42"), "what?")
    assert desk.enqueue(a_job("1", idempotency="app:welcome:42"), a_job("2")) == [1, 1]
    assert desk.holder("app:welcome:42") == "1"


# Bad days


def test_over_maxmemory_nothing_is_created_and_the_caller_gets_an_error(desk: Desk, server: Server) -> None:
    desk.enqueue(a_job("before"))
    before = desk.everything()
    with server.configured(maxmemory="1"), pytest.raises(ReplyError) as refused:
        desk.enqueue(a_job("1", idempotency="app:welcome:42"), a_job("2", delay_ms=DAY))
    assert classify(refused.value) is Trouble.CAPACITY
    assert desk.everything() == before


@pytest.mark.parametrize(
    "hostile",
    [
        b"\"]] return redis.call('FLUSHALL') --",
        b"\"'; redis.call('FLUSHALL') --\n\r\n$5\r\n",
        b"\x00\xff\xfe]]==]",
        b"",
    ],
)
def test_arguments_are_data_whatever_they_contain(desk: Desk, hostile: bytes) -> None:
    desk.enqueue(a_job("bystander"), a_job(f"x{hostile.hex()}", args=hostile, task=repr(hostile)))
    assert [(d.args, d.task) for d in desk.take()] == [(b"[42]", "app:welcome"), (hostile, repr(hostile))]


def test_a_lane_of_a_wrong_type_is_an_error_and_takes_no_idempotency_key(desk: Desk) -> None:
    """No rollback in Redis: what can fail comes before what cannot be taken back."""
    desk.redis.delete(desk.keys["s:low"])
    desk.redis.set(desk.keys["s:low"], "what?")
    with pytest.raises(ReplyError, match="WRONGTYPE"):
        desk.enqueue(a_job("1", priority="low"))
    assert desk.record("1") == {}
    desk.redis.delete(desk.keys["s:low"])
    assert desk.enqueue(a_job("1", priority="low")) == [1]
