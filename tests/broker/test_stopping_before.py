"""Executors of the version before, whose scripts know no request to stop, beside those of this one.

`before_stopping.json` has their scripts as they were. They let a job that was asked to stop finish, and nothing breaks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from fennelq.broker import verbs
from fennelq.model.job import Delivery
from fennelq.model.outcome import Outcome, died, retried
from tests.broker.before import Added, Before
from tests.broker.desk import DONE, FAILURE, LIFETIMES, Desk, a_job, shown

pytestmark = pytest.mark.both_servers


def with_due_times(reply: Any) -> list[Any]:
    """A reply of that version's `fetch`, with what this version's has: the time, and for further runs the due time."""
    flat, *others = reply
    for i in range(5, len(flat), 6):
        if flat[i]:
            *counts, options = flat[i].split(b" ", 3)
            flat[i] = b" ".join([*counts, b"", options])
    return [flat, *others, 0]


ADDED: Added = {"fetch": with_due_times, "recover": lambda reply: [*reply, 0]}


@pytest.fixture
def before(desk: Desk) -> Before:
    return Before(desk, "before_stopping.json", ADDED)


def asked(desk: Desk, before: Before, *keys: str) -> list[Delivery]:
    """These jobs (or one) run at an executor of that version, and were asked to stop."""
    desk.enqueue(*map(a_job, keys or "1"))
    running = before.fetch()
    with desk.subscribed("anna") as heard:
        assert desk.cancel(*(one.key for one in running), why="no longer needed") == [2] * len(running)
        assert len(heard()) == len(running)  # it ignores these
    return running


def stopping(desk: Desk) -> set[str]:
    """The running jobs that were asked to stop."""
    return {shown(job) for job in cast("set[bytes]", desk.redis.smembers(desk.keys["stop"]))}


def is_cancelled(desk: Desk) -> None:
    assert (desk.record()["s"], desk.record()["y"]) == ("K", "no longer needed")
    assert desk.result() == ['{"cancelled":"no longer needed"}']
    assert (desk.everywhere(), stopping(desk)) == ([], set())


def test_a_job_that_succeeds_there_has_succeeded_and_a_beat_forgets_the_request(
    desk: Desk, before: Before
) -> None:
    assert before.finish(asked(desk, before), DONE) == [1]
    assert (desk.record()["s"], desk.result()) == ("S", ['{"ok":42}'])
    assert desk.record_ttl() > 0
    assert desk.do(verbs.executors.beat, "berta", 0, []).stopping == []
    assert stopping(desk) == set()


def test_a_job_that_fails_there_does_not_run_again(desk: Desk, before: Before) -> None:
    running = asked(desk, before)
    assert before.finish(running, Outcome("R", b"0", retried(0, FAILURE).error)) == [1]
    assert desk.record()["s"] == "R"
    desk.do(verbs.queues.promote, 10)
    assert desk.take("berta") == []
    is_cancelled(desk)


def test_a_job_that_dies_there_is_dead_and_runs_again_when_it_is_replayed(desk: Desk, before: Before) -> None:
    before.finish(asked(desk, before), died(FAILURE, 1, LIFETIMES.failure_ms))
    ((entry, _),) = desk.entries("dlq")
    assert desk.do(verbs.dead.replay, [entry]) == [1]
    (delivery,) = desk.take("berta")
    assert "C" not in desk.record()
    assert desk.finish([delivery]) == [1]
    desk.do(verbs.executors.beat, "berta", 0, [])
    assert stopping(desk) == set()


Lose = Callable[[Before, list[Delivery]], int]
LOSE: dict[str, Lose] = {
    "released": lambda before, running: before.release(running),
    "recovered": lambda before, _: before.recover()[0],
}


@pytest.mark.parametrize("lose", LOSE.values(), ids=LOSE)
def test_a_job_that_it_hands_back_is_ended_here(desk: Desk, before: Before, lose: Lose) -> None:
    assert lose(before, asked(desk, before)) == 1
    assert desk.take("berta") == []
    is_cancelled(desk)


def test_a_job_that_was_handed_back_here_may_run_there_once_more(desk: Desk, before: Before) -> None:
    (delivery,) = desk.executing()
    desk.cancel("1", why="no longer needed")
    desk.release([delivery])
    (again,) = before.fetch()
    assert again.key == "1"
    assert before.finish([again], DONE) == [1]
    assert desk.record()["s"] == "S"
    desk.do(verbs.executors.beat, "berta", 0, [])
    assert stopping(desk) == set()
