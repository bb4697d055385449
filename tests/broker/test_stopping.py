"""What becomes of a running job that was asked to stop: it does not run again, and only its success counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from fennelq.broker import verbs
from fennelq.broker.verbs.executors import Beat
from fennelq.model.job import Delivery
from fennelq.model.outcome import Outcome, cancelled, died, not_known, retried, snoozed, succeeded
from tests.broker.desk import DONE, FAILURE, LIFETIMES, Desk, a_job, about, shown, some_jobs
from tests.kit.server import Server

pytestmark = pytest.mark.both_servers

HOUR = 3_600_000
CANCELLED = '{"cancelled":"no longer needed"}'
IN_HAND = pytest.mark.audit(unfinished=True)


def stopping(desk: Desk) -> set[str]:
    """The running jobs that were asked to stop."""
    return {shown(job) for job in cast("set[bytes]", desk.redis.smembers(desk.keys["stop"]))}


def asked(desk: Desk, *keys: str) -> list[Delivery]:
    """These jobs (or one) run at anna, and were asked to stop."""
    running = desk.executing(*map(a_job, keys or "1"))
    assert desk.cancel(*(one.key for one in running), why="no longer needed") == [2] * len(running)
    return running


def is_cancelled(desk: Desk, key: str = "1") -> None:
    record = desk.record(key)
    assert (record["s"], record["y"]) == ("K", "no longer needed")
    assert desk.result(key) == [CANCELLED]
    assert desk.record_ttl(key) == about(LIFETIMES.failure_ms)
    assert desk.result_ttl(key) == about(LIFETIMES.failure_ms)
    assert (desk.everywhere(), stopping(desk)) == ([], set())


# Its outcome


NOT_SUCCEEDED = {
    "R": retried(60, FAILURE),
    "Z": snoozed(60),
    "U": not_known(FAILURE, 0, HOUR),
    "D": died(FAILURE, 1, LIFETIMES.failure_ms),
}


@pytest.mark.parametrize("outcome", NOT_SUCCEEDED.values(), ids=NOT_SUCCEEDED)
def test_a_job_that_did_not_succeed_is_cancelled_whatever_its_handler_made_of_it(
    desk: Desk, outcome: Outcome
) -> None:
    assert desk.finish(asked(desk), outcome) == [1]
    is_cancelled(desk)
    assert desk.stats() == {"K": 1}


def test_the_failure_of_a_dead_job_decides_how_long_the_result_is_kept(desk: Desk) -> None:
    desk.finish(asked(desk), died(FAILURE, 1, 2 * LIFETIMES.failure_ms))
    assert desk.result_ttl() == about(2 * LIFETIMES.failure_ms)
    assert desk.result() == [CANCELLED]


def test_a_job_that_its_executor_cancels_keeps_that_reason(desk: Desk) -> None:
    assert desk.finish(asked(desk), cancelled("of the executor", LIFETIMES.failure_ms)) == [1]
    assert (desk.record()["y"], stopping(desk)) == ("of the executor", set())


@pytest.mark.parametrize("value", [b"42", b""])
def test_a_success_stands(desk: Desk, value: bytes) -> None:
    assert desk.finish(asked(desk), succeeded(value, 60_000)) == [1]
    assert desk.record()["s"] == ("S" if value else "N")
    assert desk.result() == (['{"ok":42}'] if value else [])
    assert (stopping(desk), desk.stats()) == (set(), {"S": 1} if value else {"N": 1})


def test_the_other_jobs_of_a_batch_keep_their_outcomes(desk: Desk) -> None:
    running = desk.executing(*some_jobs(3))
    desk.cancel("2", why="no longer needed")
    assert desk.finish(running, retried(60, FAILURE)) == [1, 1, 1]
    assert [desk.record(key)["s"] for key in "123"] == ["R", "K", "R"]
    assert stopping(desk) == set()


def test_waiting_clients_are_notified_of_the_cancellation(desk: Desk) -> None:
    running = asked(desk)
    with desk.listening("me") as heard:
        desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES)
        desk.finish(running, retried(60, FAILURE))
        assert heard() == ("me", f"mail:1\n{CANCELLED}".encode())


def test_a_request_that_comes_after_the_outcome_changes_nothing(desk: Desk) -> None:
    desk.finish(desk.executing())
    before = desk.everything()
    assert desk.cancel("1") == [0]
    assert desk.everything() == before


def test_an_outcome_of_a_job_that_was_not_asked_costs_a_success_nothing_and_a_failure_one_look(
    desk: Desk,
) -> None:
    numbers = iter(range(100))

    def looks(outcome: Outcome) -> dict[str, int]:
        return desk.commands_of(lambda: desk.finish(desk.executing(a_job(f"{next(numbers)}")), outcome))

    assert "hget" not in looks(DONE)
    assert "hmget" not in looks(DONE)
    failure = looks(retried(60, FAILURE))
    assert (failure["hget"], failure["hmget"]) == (1, 2)  # with the line of the history, and the leavings


# It changes hands


def test_a_job_that_was_handed_back_is_ended_by_the_next_fetch(desk: Desk) -> None:
    assert desk.release(asked(desk)) == 1
    assert desk.record()["C"] == "no longer needed"
    assert desk.take("berta") == []
    is_cancelled(desk)
    assert desk.stats() == {"K": 1, "released": 1}


def test_a_job_that_was_handed_back_is_cancelled_at_once_by_the_next_request(desk: Desk) -> None:
    """With the first reason, which its code may have seen already."""
    desk.release(asked(desk))
    assert desk.cancel("1", why="really") == [1]
    assert (desk.record()["y"], stopping(desk), desk.everywhere()) == ("no longer needed", set(), [])


def test_a_fetch_ends_only_the_jobs_that_were_asked(desk: Desk) -> None:
    running = desk.executing(a_job("1"), a_job("2"))
    desk.cancel("1", why="no longer needed")
    desk.release(running)
    again = desk.take("berta")
    assert [one.key for one in again] == ["2"]
    desk.finish(again)
    is_cancelled(desk)


def test_recovery_ends_a_job_whose_executor_has_died(desk: Desk) -> None:
    asked(desk)
    sweep = desk.recover(deaths={"anna": "killed by SIGKILL"})
    assert (sweep.requeued, sweep.dead, sweep.vanished) == (0, 0, 0)
    is_cancelled(desk)
    assert desk.stats() == {"K": 1}
    (line,) = desk.history()
    assert (line["what"], line["owner"], line["more"]) == ("recovered", "anna", "killed by SIGKILL")


def test_the_executor_of_a_job_that_recovery_has_ended_learns_that_it_has_lost_the_job(desk: Desk) -> None:
    running = asked(desk)
    desk.recover()
    assert desk.finish(running, DONE) == [0]
    is_cancelled(desk)


def test_recovery_leaves_the_place_of_a_job_that_could_not_be_settled(desk: Desk) -> None:
    asked(desk)
    desk.redis.set(desk.keys.result("1"), "no list")
    desk.recover()
    ((entry, fields),) = desk.entries("dlq")
    assert (fields["i"], desk.record()["p"]) == ("1", f"dlq/{entry}")


def test_a_job_whose_reply_was_lost_is_ended_and_not_started_again(desk: Desk) -> None:
    """Its entry is handed back, because its executor does not know it."""
    running = asked(desk)
    desk.release(running, "stranded")
    assert desk.take() == []
    is_cancelled(desk)


def test_a_job_that_an_earlier_version_lets_fail_is_ended_when_it_is_due(desk: Desk) -> None:
    """That version does not know the field, so the job waits for its next try."""
    (running,) = asked(desk)
    record = desk.keys.record("1")
    desk.redis.hdel(record, "C")
    desk.finish([running], Outcome("R", b"0", b'{"type":"ValueError","message":"","tries":1}'))
    desk.redis.hset(record, "C", "no longer needed")
    desk.do(verbs.queues.promote, 10)
    assert desk.take("berta") == []
    is_cancelled(desk)


def test_a_replay_forgets_the_request(desk: Desk) -> None:
    (entry,) = desk.dead()
    desk.redis.hset(desk.keys.record("1"), "C", "of an earlier version")
    assert desk.do(verbs.dead.replay, [entry]) == [1]
    assert "C" not in desk.record()
    (delivery,) = desk.take()
    desk.finish([delivery])


# The beat as the net


def beat(desk: Desk, held: list[Delivery], consumer: str = "anna") -> Beat:
    return desk.do(verbs.executors.beat, consumer, HOUR, [(one.lane, one.entry) for one in held])


@IN_HAND
def test_a_beat_names_the_jobs_of_this_executor_that_were_asked_and_why(desk: Desk) -> None:
    first, second, other = desk.executing(a_job("1", priority="high"), a_job("2"), a_job("3"))
    desk.cancel("1", why="no longer needed")
    desk.cancel("2", why="two words\tand more")
    found = beat(desk, [first, second, other])
    assert sorted(found.stopping) == sorted(
        [(first.lane, first.entry, "no longer needed"), (second.lane, second.entry, "two words\tand more")]
    )
    assert (found.lost, stopping(desk)) == ([], {"1", "2"})


@IN_HAND
def test_a_beat_does_not_name_the_jobs_of_others(desk: Desk) -> None:
    (mine,) = desk.executing(a_job("mine"))
    desk.enqueue(a_job("theirs"))
    (theirs,) = desk.take("berta")
    desk.cancel("theirs")
    assert beat(desk, [mine]).stopping == []
    assert beat(desk, [theirs], "berta").stopping == [("s", theirs.entry, "cancelled")]


HARM: dict[str, Callable[[Desk], object]] = {
    "without a record": lambda desk: desk.redis.delete(desk.keys.record("1")),
    "of a wrong type": lambda desk: desk.redis.set(desk.keys.record("1"), "what?"),
    "not running": lambda desk: desk.redis.hset(desk.keys.record("1"), "s", "Q"),
    "not asked": lambda desk: desk.redis.hdel(desk.keys.record("1"), "C"),
}


@pytest.mark.parametrize("harm", HARM.values(), ids=HARM)
@pytest.mark.audit(skip="the record is changed by hand")
def test_a_beat_removes_from_the_set_what_runs_no_more(desk: Desk, harm: Callable[[Desk], object]) -> None:
    running = asked(desk)
    harm(desk)
    assert beat(desk, running).stopping == []
    assert stopping(desk) == set()


@pytest.mark.audit(skip="the record is changed by hand")
def test_a_beat_that_cannot_place_a_job_leaves_it(desk: Desk) -> None:
    running = asked(desk)
    for place in ("nowhere", "elsewhere/1-0"):
        desk.redis.hset(desk.keys.record("1"), "p", place)
        assert (beat(desk, running).stopping, stopping(desk)) == ([], {"1"})


@pytest.mark.audit(skip="the set is of a wrong type")
def test_a_set_of_a_wrong_type_does_not_stop_the_renewal(desk: Desk) -> None:
    running = desk.executing()
    desk.redis.set(desk.keys["stop"], "what?")
    found = beat(desk, running)
    assert (found.lost, found.stopping) == ([], [])


@IN_HAND
def test_while_no_job_was_asked_a_beat_looks_at_no_record(desk: Desk) -> None:
    running = desk.executing()
    commands = desk.commands_of(lambda: beat(desk, running))
    assert "hmget" not in commands
    assert commands["srandmember"] == 1


@IN_HAND
def test_of_very_many_requests_each_beat_looks_at_a_page(desk: Desk, server: Server) -> None:
    running = asked(desk)
    desk.redis.sadd(desk.keys["stop"], *(f"gone-{number}" for number in range(2500)))
    sizes = list[int]()
    named = list[bool]()
    while not sizes or sizes[-1] > 1:
        named.append(bool(beat(desk, running).stopping))
        sizes.append(len(stopping(desk)))
        assert len(sizes) < 5
    assert sizes[0] in (1501, 1502)
    assert any(named)
