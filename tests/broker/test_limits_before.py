"""Executors of the version before limits, beside those of this one.

`before_limits.json` has their scripts as they were. They refuse to start a job with limits, and know no lines. A job
that they cancel, bury or hand back keeps its slot until this version mends the queue.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fennelq.broker import verbs
from tests.broker.before import Before
from tests.broker.desk import DONE, LIFETIMES, Desk, a_job
from tests.broker.test_stopping_before import ADDED

pytestmark = [pytest.mark.both_servers, pytest.mark.audit(unfinished=True)]

ONE = "c1:account/17"


@pytest.fixture
def before(desk: Desk) -> Before:
    return Before(desk, "before_limits.json", ADDED)


def limited(desk: Desk, *keys: str) -> None:
    """Jobs of one account: the first is let in, the others wait in its line."""
    desk.enqueue(*(a_job(key, gates=ONE) for key in keys))


def taken(desk: Desk) -> list[str]:
    return [one.key for one in desk.take("berta")]


def mended(desk: Desk) -> int:
    """The slots that a page of `mend` has given back."""
    return desk.do(verbs.queues.mend, 100).slots


def all_run(desk: Desk) -> list[str]:
    """All jobs run here, to the last one, one at a time."""
    ran = list[str]()
    while True:
        for job in desk.due():
            desk.redis.zadd(desk.keys["sched"], {job: 1})
        desk.do(verbs.queues.promote, 100)
        runs = desk.take("berta")
        if not runs:
            return ran
        assert len(runs) == 1
        ran.append(runs[0].key)
        desk.finish(runs, DONE)


def test_it_hands_limited_jobs_back_and_runs_the_others(desk: Desk, before: Before) -> None:
    """L17. While the job waits for another worker, its slot goes to the next one of the line."""
    limited(desk, "1", "2", "3")
    desk.enqueue(a_job("plain"))
    (plain,) = before.fetch()
    assert (plain.key, desk.record("1")["s"], desk.in_lines()) == ("plain", "L", ["2", "3"])
    assert taken(desk) == []
    assert mended(desk) == 1
    (second,) = desk.take("berta")
    assert second.key == "2"
    # It takes nothing of what waits here, and a page of its own does not disturb the run.
    assert before.fetch() == []
    desk.finish([second])
    assert before.finish([plain], DONE) == [1]
    assert all_run(desk) == ["3", "1"]
    assert desk.keys_of_limits() == []


def test_a_job_that_it_brings_into_the_lane_starts_only_when_there_is_a_slot(
    desk: Desk, before: Before
) -> None:
    """L17. Its `promote` asks no gate. The start does."""
    desk.enqueue(a_job("later", gates=ONE, at_ms=1))
    limited(desk, "1", "2")
    (first,) = desk.take("berta")
    assert before.promote() == 1
    assert desk.waiting() == ["1", "later"]
    assert taken(desk) == []
    assert sorted(desk.in_lines()) == ["2", "later"]
    desk.finish([first])
    assert sorted(all_run(desk)) == ["2", "later"]
    assert desk.keys_of_limits() == []


Ends = Callable[[Desk, Before], object]


def buries(desk: Desk, before: Before) -> None:
    (run,) = desk.take("berta")
    assert before.recover(max_deliveries=1) == (0, 1)
    assert desk.finish([run]) == [0]


ENDS: dict[str, Ends] = {
    "cancels": lambda _, before: before.cancel("1"),
    "purges": lambda _, before: before.purge(),
    "buries": buries,
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_the_slot_of_a_job_that_it_ends_is_given_back_when_the_queue_is_mended(
    desk: Desk, before: Before, end: Ends
) -> None:
    """L17. The jobs in the line are none of its business."""
    limited(desk, "1", "2", "3")
    end(desk, before)
    assert (desk.record("1")["s"] in "KD", desk.in_lines(), taken(desk)) == (True, ["2", "3"], [])
    assert mended(desk) == 1
    assert all_run(desk) == ["2", "3"]
    assert desk.keys_of_limits() == []


def test_a_job_that_it_buried_gives_its_slot_to_the_next_when_it_is_replayed(
    desk: Desk, before: Before
) -> None:
    limited(desk, "1", "2")
    buries(desk, before)
    assert taken(desk) == []
    assert desk.do(verbs.dead.replay, [entry for entry, _ in desk.entries("dlq")]) == [1]
    assert (taken(desk), desk.in_lines()) == (["2"], ["1"])


def test_a_job_that_it_recovers_keeps_its_slot(desk: Desk, before: Before) -> None:
    """L17. It goes on with the slot."""
    limited(desk, "1", "2")
    desk.take("berta")
    assert before.recover() == (1, 0)
    assert (mended(desk), desk.in_lines()) == (0, ["2"])
    assert all_run(desk) == ["1", "2"]
    assert desk.keys_of_limits() == []


def test_a_queue_is_mended_in_each_interval_although_it_is_always_the_first_to_sweep(
    desk: Desk, before: Before
) -> None:
    """L17. Of the executors of this version, the first one that comes learns that jobs wait in lines."""
    limited(desk, "1", "2")
    for _ in range(2):
        before.recover(more=False)
        first, second = (desk.recover(silent=False, more=False) for _ in range(2))
        assert (first.swept, first.lines, second.lines) == (False, True, False)
        assert 0 < desk.ttl(desk.keys["swept"]) <= 1000
        desk.redis.delete(desk.keys["swept"])
    desk.do(verbs.queues.purge, LIFETIMES, 10)
    before.recover(more=False)
    assert not desk.recover(silent=False, more=False).lines
