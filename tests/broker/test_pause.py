"""pause: executors start no jobs of a queue, or callers create none, until it is resumed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final, cast

import pytest
from redis.exceptions import ResponseError

from fennelq import clock
from fennelq.broker import verbs
from fennelq.broker.trouble import ReplyError
from fennelq.model.outcome import retried
from fennelq.model.pause import QueuePause, QueueSide
from tests.broker.desk import FAILURE, LIFETIMES, READ, Desk, a_job, some_jobs
from tests.kit.server import Server

pytestmark = [pytest.mark.both_servers, pytest.mark.audit(unfinished=True)]

HAND_OVER: Final = {"keep_ms": 86_400_000}


def nothing_starts(desk: Desk, *executors: str, lanes: Sequence[str] = READ) -> None:
    for executor in executors or ("anna",):
        catch = desk.fetch(executor, lanes=lanes, sleeps=True)
        assert (catch.deliveries, catch.drained, catch.problem) == ([], True, "")


# Consuming


def test_nothing_starts_and_nothing_is_moved(desk: Desk) -> None:
    desk.enqueue(*some_jobs(3), a_job("4", priority="high"))
    desk.pause("consume")
    before = desk.everything()
    nothing_starts(desk, "anna", "berta")
    assert desk.halted() == {"anna", "berta"}
    desk.redis.delete(desk.keys["halted"])
    assert desk.everything() == before


def test_an_executor_that_does_not_sleep_enters_no_set(desk: Desk) -> None:
    desk.pause("consume")
    desk.enqueue(a_job())
    assert desk.fetch("anna", sleeps=False).deliveries == []
    assert desk.halted() == set()


def test_the_executors_that_sleep_are_halted(desk: Desk) -> None:
    desk.sleep("anna", "berta")
    desk.sleep("clara", lane="s:high")
    desk.sleep("dora", lane="s")
    desk.sleep("dora", lane="s:low")
    desk.pause("consume")
    assert desk.halted() == {"anna", "berta", "clara", "dora"}
    assert [desk.sleepers(lane) for lane in ("", *READ)] == [set()] * 4


def test_no_job_wakes_an_executor(desk: Desk) -> None:
    """However a job enters a lane."""
    (running,) = desk.executing()
    (failing,) = desk.executing(a_job("2"))
    (entry,) = desk.dead(a_job("3"))
    desk.enqueue(a_job("4", at_ms=1))
    with desk.subscribed("anna", "berta", "clara") as heard:
        desk.sleep("anna")
        desk.sleep("clara", lane="s:high")
        desk.pause("consume")
        nothing_starts(desk, "berta")
        desk.enqueue(*some_jobs(3), a_job("5", priority="high"))
        desk.release([running])
        desk.finish([failing], retried(0, FAILURE))
        assert desk.do(verbs.queues.promote, 100)[0] == 2
        desk.do(verbs.dead.replay, [entry])
        desk.do(verbs.runs.ring, READ)
        assert heard() == []
    assert sorted(desk.waiting()) == ["1", "2", "3", "4"]


def test_jobs_that_run_go_on_and_end(desk: Desk) -> None:
    held = desk.executing(*some_jobs(2))
    desk.pause()
    assert desk.do(verbs.executors.beat, "anna", 0, [(one.lane, one.entry) for one in held]).lost == []
    assert desk.finish(held) == [1, 1]


def test_the_next_due_time_is_still_told(desk: Desk) -> None:
    desk.enqueue(a_job(delay_ms=86_400_000))
    desk.pause("consume")
    assert 0 < desk.fetch().due_ms <= 86_400_000


def test_jobs_in_quarantine_wait_and_call_for_no_executor(desk: Desk) -> None:
    desk.enqueue(a_job())
    desk.redelivered("1", 3, "iso")
    assert desk.do(verbs.executors.beat, "anna", 0, []).quarantined == 1
    desk.pause("consume")
    assert desk.do(verbs.executors.beat, "anna", 0, []).quarantined == 0
    nothing_starts(desk, "isolde", lanes=["iso"])
    desk.resume()
    assert desk.do(verbs.executors.beat, "anna", 0, []).quarantined == 1


def test_a_queue_that_takes_no_jobs_calls_for_an_executor_of_those_in_quarantine(desk: Desk) -> None:
    desk.enqueue(a_job())
    desk.redelivered("1", 3, "iso")
    desk.pause("enqueue")
    assert desk.do(verbs.executors.beat, "anna", 0, []).quarantined == 1


def test_an_executor_that_ends_or_leaves_the_queue_is_not_halted_any_more(desk: Desk) -> None:
    desk.pause("consume")
    nothing_starts(desk, "anna", "berta", "clara")
    desk.do(verbs.executors.close_consumer, "anna")
    desk.do(verbs.executors.stay_awake, "berta")
    assert desk.halted() == {"clara"}
    desk.gc()  # clara has no subscription: she was killed
    assert desk.halted() == set()


# Enqueuing


def refused(desk: Desk) -> list[bytes]:
    """The answer about a job that a pause has refused."""
    return [cast("bytes", desk.redis.get(desk.keys["paused"]))]


def test_callers_create_no_job_and_learn_of_the_pause(desk: Desk) -> None:
    desk.pause("enqueue", who="anna@web-1", why="the mail server is down")
    before = desk.everything()
    jobs = [a_job("1"), a_job("2", delay_ms=1000), a_job("3", priority="high", idempotency="app:welcome:a")]
    assert desk.enqueue(*jobs) == [refused(desk)] * 3
    assert desk.everything() == before
    pause = QueuePause.from_wire(refused(desk)[0])
    assert (pause.who, pause.why) == ("anna@web-1", "the mail server is down")


def test_a_call_that_is_repeated_after_a_lost_reply_finds_its_job(desk: Desk) -> None:
    jobs = [a_job("1"), a_job("2", nonce="mine"), a_job("3", idempotency="app:welcome:a")]
    assert desk.enqueue(*jobs) == [1, 1, 1]
    desk.pause()
    assert desk.enqueue(*jobs) == [0, 0, 0]
    assert desk.enqueue(a_job("2", nonce="theirs")) == [2]
    assert desk.enqueue(a_job("2", nonce="theirs", args=b"[43]")) == [-1]
    assert desk.enqueue(a_job("4", idempotency="app:welcome:a")) == [b"3"]
    assert desk.enqueue(a_job("4", idempotency="app:welcome:b")) == [refused(desk)]
    assert desk.holder("app:welcome:b") is None


def test_hand_overs_are_created(desk: Desk) -> None:
    desk.pause()
    assert desk.enqueue(a_job("1"), a_job("2", **HAND_OVER), a_job("3")) == [refused(desk), 1, refused(desk)]
    assert desk.waiting() == ["2"]


def test_executors_go_on_and_are_woken(desk: Desk) -> None:
    desk.enqueue(a_job("1"))
    with desk.subscribed("berta") as heard:
        desk.sleep("berta")
        desk.pause("enqueue")
        assert (desk.sleepers(), desk.halted()) == ({"berta"}, set())
        desk.enqueue(a_job("2", **HAND_OVER))
        assert heard() == [("berta", "look s")]
    assert [delivery.key for delivery in desk.take()] == ["1", "2"]


# What is stored


def test_who_when_and_why_are_stored(desk: Desk) -> None:
    began = desk.now()
    pause = desk.pause("consume", who="anna@web-1", why="the mail server is down")
    since = pause.since
    assert pause == QueuePause(
        consuming=True, enqueuing=False, who="anna@web-1", since=since, why="the mail server is down"
    )
    assert since is not None
    assert clock.from_ms(began) <= since <= clock.from_ms(desk.now())
    assert desk.do(verbs.queues.paused) == pause
    assert desk.ttl(desk.keys["paused"]) == -1


@pytest.mark.parametrize("first", [("consume",), ("enqueue",), ("consume", "enqueue")])
@pytest.mark.parametrize("second", [("consume",), ("enqueue",), ("consume", "enqueue")])
def test_a_second_pause_adds_to_the_first_and_keeps_its_time(
    desk: Desk, first: Sequence[QueueSide], second: Sequence[QueueSide]
) -> None:
    desk.redis.set(desk.keys["paused"], f"{verbs.queues.letters_of(first)}\nanna\n1700000000000\nslow")
    desk.sleep("dora")
    pause = desk.pause(*second, who="berta", why="down\nfor good")
    both = {*first, *second}
    assert pause == QueuePause(
        consuming="consume" in both,
        enqueuing="enqueue" in both,
        who="berta",
        since=datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
        why="down\nfor good",
    )
    assert desk.halted() == ({"dora"} if "consume" in both else set())


@pytest.mark.parametrize(
    "value", ["c", "c\n", "ce", "ce\nanna\nyesterday\nwhy?", "ce\nanna\n99999999999999999999"]
)
def test_a_pause_that_was_written_by_hand_is_a_pause(desk: Desk, value: str) -> None:
    desk.enqueue(a_job())
    desk.redis.set(desk.keys["paused"], value)
    nothing_starts(desk)
    pause = desk.do(verbs.queues.paused)
    assert pause is not None
    assert (pause.consuming, pause.enqueuing, pause.since) == (True, value.startswith("ce"), None)
    assert "paused" in str(pause)


@pytest.mark.parametrize("value", ["", "\n", "C", "ec", "no", "cat", "paused", "\xff"])
@pytest.mark.audit(skip="the value was written by hand")
def test_a_value_that_describes_no_pause_pauses_nothing(desk: Desk, value: str) -> None:
    desk.redis.set(desk.keys["paused"], value.encode("latin-1"))
    assert desk.enqueue(a_job()) == [1]
    assert len(desk.take()) == 1
    assert desk.do(verbs.queues.paused) is None
    assert desk.pause("enqueue").what == "enqueuing"


# Damage and little memory

WRITING: Final[dict[str, Callable[[Desk], object]]] = {
    "pause": lambda desk: desk.pause(),
    "resume": lambda desk: desk.resume(),
    "enqueue": lambda desk: desk.enqueue(a_job("2")),
    "fetch": lambda desk: desk.take(),
}


@pytest.mark.parametrize("act", WRITING.values(), ids=WRITING)
@pytest.mark.audit(skip="the key has a wrong type on purpose")
def test_a_key_of_a_wrong_type_is_an_error_that_names_it_and_changes_nothing(
    desk: Desk, act: Callable[[Desk], object]
) -> None:
    desk.enqueue(a_job())
    desk.redis.rpush(desk.keys["paused"], "what?")
    before = desk.everything()
    named = rf"WRONGTYPE .*{desk.keys['paused']} should be a string; rename or delete it"
    with pytest.raises(ReplyError, match=named.replace("{", r"\{").replace("}", r"\}")):
        act(desk)
    assert desk.everything() == before
    (sentence,) = [found for look in verbs.queues.damage(desk.keys) if (found := desk.broker.ask(look))]
    assert sentence == f"{desk.keys['paused']} is a list and should be a string: rename or delete it"


@pytest.mark.audit(skip="the key has a wrong type on purpose")
def test_with_a_key_of_a_wrong_type_leases_are_renewed_and_outcomes_are_written(desk: Desk) -> None:
    held = desk.executing(*some_jobs(3))
    desk.enqueue(a_job("4"))
    desk.redelivered("4", 3, "iso")
    desk.redis.rpush(desk.keys["paused"], "what?")
    beat = desk.do(verbs.executors.beat, "anna", 0, [(one.lane, one.entry) for one in held])
    assert (beat.lost, beat.quarantined) == ([], 1)
    assert desk.finish(held[:1]) == [1]
    assert desk.release(held[1:2]) == 1
    assert desk.cancel("4") == [1]
    assert desk.recover().requeued == 1
    assert desk.do(verbs.queues.purge, LIFETIMES, 100) == 2


@pytest.mark.parametrize("name", ["halted", "idle", "idle:s"])
@pytest.mark.audit(skip="the set has a wrong type on purpose")
def test_a_set_of_a_wrong_type_does_not_keep_a_queue_from_being_paused(desk: Desk, name: str) -> None:
    for lane in ("", "s:high", "s"):
        desk.sleep("anna", lane=lane)
    desk.redis.delete(desk.keys.prefix + name)
    desk.redis.set(desk.keys.prefix + name, "what?")
    assert desk.pause("consume").consuming
    assert desk.redis.get(desk.keys.prefix + name) == b"what?"
    if name == "halted":
        assert [desk.sleepers(lane) for lane in ("", "s:high", "s")] == [{"anna"}] * 3
    desk.enqueue(a_job())
    nothing_starts(desk, "anna")
    if name != "halted":
        assert desk.halted() == {"anna"}
        assert desk.sleepers("s:high") == set()
    assert desk.resume().before is not None
    assert len(desk.take()) == 1


def test_over_maxmemory_a_queue_can_be_paused_and_resumed(desk: Desk, server: Server) -> None:
    desk.sleep("anna")
    with server.configured(maxmemory="1"):
        desk.pause()
        nothing_starts(desk, "berta")
        assert desk.halted() == {"anna", "berta"}
        with pytest.raises((ReplyError, ResponseError), match="OOM"):
            desk.enqueue(a_job())
        desk.resume()
    assert desk.do(verbs.queues.paused) is None


def test_another_queue_is_not_paused(desk: Desk, server: Server) -> None:
    with Desk.opened(server, "other") as other:
        desk.pause()
        assert other.enqueue(a_job()) == [1]
        assert len(other.take()) == 1
