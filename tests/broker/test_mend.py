"""mend: slots that no job holds, and lines that no script would call, are put right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import pytest

from fennelq.broker import verbs
from fennelq.broker.keys import QUARANTINE
from fennelq.broker.trouble import ReplyError
from tests.broker.desk import Desk, a_job
from tests.broker.limited import send, taken

pytestmark = [pytest.mark.both_servers, pytest.mark.audit(unfinished=True)]


def test_after_a_cursor_that_redis_refuses_a_queue_is_mended_from_the_beginning(desk: Desk) -> None:
    send(desk, *"123")
    (run,) = desk.take()
    desk.redis.delete(f"{desk.keys.prefix}wait:c:account/17")
    desk.finish([run])
    desk.redis.hset(f"{desk.keys.prefix}sweep", "lines", "what?")
    with pytest.raises(ReplyError):
        desk.do(verbs.queues.mend, 100)
    desk.do(verbs.queues.mend, 100)
    assert taken(desk) == ["2"]


@pytest.mark.audit(lost=["mail:1"])
def test_a_vanished_holder_gives_its_slot_back_when_the_queue_is_mended(desk: Desk) -> None:
    send(desk, *"1234")
    desk.take()
    desk.redis.delete(desk.keys.record("1"))
    assert taken(desk) == []
    mended = desk.do(verbs.queues.mend, 100)
    assert (mended.slots, mended.gates) == (1, ["c:account/17"])
    assert desk.stats()["slots_mended"] == 1
    assert taken(desk) == ["2"]
    assert desk.do(verbs.queues.mend, 100).slots == 0


@pytest.mark.audit(skip="a record was changed by hand")
def test_a_job_that_runs_with_no_gates_in_its_record_holds_no_slot(desk: Desk) -> None:
    send(desk, *"12")
    assert taken(desk) == ["1"]
    desk.redis.hdel(desk.keys.record("1"), "g")
    assert desk.do(verbs.queues.mend, 100).slots == 1
    assert taken(desk) == ["2"]


@pytest.mark.audit(skip="slots were changed by hand")
def test_a_job_of_another_limit_holds_no_slot(desk: Desk) -> None:
    send(desk, "1")
    send(desk, "2", "3", gates="c1:other")
    desk.redis.delete(desk.keys.slots("c:other"))
    desk.redis.zadd(desk.keys.slots("c:other"), {"1": 0})
    mended = desk.do(verbs.queues.mend, 100)
    assert (mended.slots, mended.gates) == (1, ["c:other"])


def test_a_job_in_quarantine_keeps_its_slot_when_the_queue_is_mended(desk: Desk) -> None:
    send(desk, *"12")
    desk.redelivered("1", 3, QUARANTINE)
    assert desk.do(verbs.queues.mend, 100).slots == 0
    (run,) = desk.fetch(lanes=(QUARANTINE,)).deliveries
    assert desk.do(verbs.queues.mend, 100).slots == 0
    assert (run.key, taken(desk)) == ("1", [])


@pytest.mark.audit(lost=["mail:x"])
def test_a_gate_that_was_asked_for_another_line_is_opened_once_its_slots_are_put_right(desk: Desk) -> None:
    """Mending the first line asks the second gate, which is shut until its own slots are put right."""
    desk.enqueue(
        a_job("x", gates="c1:a c1:b"), a_job("both", gates="c1:a c1:b"), a_job("second", gates="c1:b")
    )
    desk.take()
    desk.redis.delete(desk.keys.record("x"))
    assert desk.do(verbs.queues.mend, 100).slots == 2
    assert taken(desk) == ["second"]


def gone_by_hand(desk: Desk) -> None:
    """Two accounts with three and with one job in their lines; then the longer line is deleted."""
    desk.enqueue(
        *(a_job(f"{name}{n}", gates=f"c1:{name}") for name in "ab" for n in range(2 if name == "b" else 4))
    )
    assert desk.stats()["parked"] == 4
    desk.redis.delete(f"{desk.keys.prefix}line:c:a@s")


@pytest.mark.audit(lost=["mail:a1", "mail:a2", "mail:a3", "mail:b1"])
def test_the_number_of_jobs_in_lines_is_right_again_after_a_line_was_deleted(desk: Desk) -> None:
    gone_by_hand(desk)
    assert desk.do(verbs.jobs.enqueue, [a_job("x")], 6) == [[6]]
    desk.do(verbs.queues.mend, 100)
    assert desk.stats()["parked"] == 1
    assert desk.do(verbs.jobs.enqueue, [a_job("x")], 6) == [1]
    desk.redis.hset(desk.keys["stats"], "parked", -5)
    desk.do(verbs.queues.mend, 100)
    assert desk.stats()["parked"] == 1
    desk.redis.delete(f"{desk.keys.prefix}line:c:b@s")
    desk.do(verbs.queues.mend, 100)
    assert "parked" not in desk.stats()


def walk(desk: Desk, *between: Callable[[], object]) -> int:
    """Mends the queue a page at a time, with these acts after the first pages. Returns how many pages it took."""
    acts = [*between]
    for page in range(1, 100):
        if not desk.do(verbs.queues.mend, 1).more:
            return page
        if acts:
            acts.pop(0)()
    raise AssertionError("the walk does not end")


@pytest.fixture
def small_pages(desk: Desk) -> Iterator[None]:
    """Redis gives the fields of a hash in pages also when it has only some."""
    name = "hash-max-listpack-entries"
    before = cast("dict[str, str]", desk.redis.config_get(name))[name]
    desk.redis.config_set(name, 4)
    yield
    desk.redis.config_set(name, before)


def many_lines(desk: Desk) -> None:
    """Twenty lines of two jobs."""
    desk.enqueue(*(a_job(f"{n}.{place}", gates=f"c1:{n}") for n in range(20) for place in range(3)))
    assert desk.stats()["parked"] == 40


@pytest.mark.usefixtures("small_pages")
def test_jobs_are_counted_over_all_pages_of_a_walk(desk: Desk) -> None:
    many_lines(desk)
    for wrong in (55, 3):
        desk.redis.hset(desk.keys["stats"], "parked", wrong)
        assert walk(desk) > 1
        assert desk.stats()["parked"] == 40


@pytest.mark.parametrize("number", [None, "many"])
def test_a_number_of_jobs_in_lines_that_is_lost_is_counted_anew_and_one_that_is_none_stops_nothing(
    desk: Desk, number: str | None
) -> None:
    many_lines(desk)
    desk.redis.hdel(desk.keys["stats"], "parked")
    if number is not None:
        desk.redis.hset(desk.keys["stats"], "parked", number)
    assert walk(desk) >= 1
    assert desk.redis.hget(desk.keys["stats"], "parked") == (number.encode() if number else b"40")


@pytest.mark.usefixtures("small_pages")
def test_a_walk_that_was_not_counted_from_its_beginning_corrects_nothing(desk: Desk) -> None:
    """A worker of an earlier version has walked a page."""
    many_lines(desk)
    desk.redis.hset(desk.keys["stats"], "parked", 55)
    walk(desk, lambda: desk.redis.hset(f"{desk.keys.prefix}sweep", "parked", "1 0 0 0"))
    assert desk.stats()["parked"] == 55
    walk(desk, lambda: desk.redis.hdel(f"{desk.keys.prefix}sweep", "parked"))
    assert desk.stats()["parked"] == 55


@pytest.mark.audit(skip="a key has a wrong type on purpose")
def test_a_line_that_cannot_be_counted_counts_as_empty(desk: Desk) -> None:
    desk.enqueue(*(a_job(f"{name}{n}", gates=f"c1:{name}") for name in "ab" for n in range(3)))
    desk.redis.delete(f"{desk.keys.prefix}line:c:a@s")
    desk.redis.set(f"{desk.keys.prefix}line:c:a@s", "what?")
    desk.do(verbs.queues.mend, 100)
    assert desk.stats()["parked"] == 2


@pytest.mark.usefixtures("small_pages")
def test_jobs_that_come_and_go_during_a_walk_are_not_taken_for_an_error(desk: Desk) -> None:
    many_lines(desk)
    come = [a_job(f"{n}.new", gates=f"c1:{n}") for n in range(20)]
    walk(desk, lambda: desk.enqueue(*come))
    assert desk.stats()["parked"] == 60
    walk(desk, lambda: desk.cancel(*(job.key for job in come)))
    assert desk.stats()["parked"] == 40


@pytest.mark.usefixtures("small_pages")
def test_pages_that_an_earlier_version_has_walked_are_not_taken_for_empty(desk: Desk) -> None:
    many_lines(desk)

    def pass_over() -> None:
        page = desk.redis.hscan(
            desk.keys["lines"], int(desk.redis.hget(desk.keys["sweep"], "lines") or 0), count=1
        )
        desk.redis.hset(desk.keys["sweep"], "lines", page[0])

    walk(desk, pass_over, pass_over)
    assert desk.stats()["parked"] == 40
    desk.redis.hset(desk.keys["stats"], "parked", 3)
    walk(desk)
    assert desk.stats()["parked"] == 40
    assert not desk.redis.exists(desk.keys["sweep"])


def test_a_line_that_is_registered_nowhere_is_found_when_the_queue_is_mended(desk: Desk) -> None:
    send(desk, *"123")
    (run,) = desk.take()
    desk.redis.delete(f"{desk.keys.prefix}wait:c:account/17")
    desk.finish([run])
    assert taken(desk) == []
    mended = desk.do(verbs.queues.mend, 100)
    assert (mended.slots, mended.gates, "slots_mended" in desk.stats()) == (0, [], False)
    assert taken(desk) == ["2"]


@pytest.mark.audit(lost=["mail:1"])
def test_lines_that_the_mending_of_another_has_emptied_are_no_error(desk: Desk) -> None:
    """All wait at one gate."""
    send(desk, "1")
    assert taken(desk) == ["1"]
    send(desk, "2")
    send(desk, "3", priority="low")
    send(desk, "4", priority="high")
    desk.redis.delete(desk.keys.record("1"))
    desk.redis.hset(desk.keys["limits"], "c:account", "3")
    desk.do(verbs.queues.mend, 100)
    assert "mend_failed" not in desk.stats()
    assert sorted(taken(desk)) == ["2", "3", "4"]
    assert desk.keys_of_limits() == [f"{desk.keys.prefix}slots:c:account/17"]


@pytest.mark.audit(skip="a key has a wrong type on purpose")
def test_a_line_that_cannot_be_mended_is_counted_and_the_others_are_mended(desk: Desk) -> None:
    send(desk, "1", "2", gates="c1:a")
    send(desk, "3", "4", gates="c1:b")
    desk.take()
    desk.redis.delete(desk.keys.record("3"))
    desk.redis.set(f"{desk.keys.prefix}wait:c:a", "what?")
    mended = desk.do(verbs.queues.mend, 100)
    assert (mended.slots, mended.gates) == (1, ["c:b"])
    assert desk.stats()["mend_failed"] == 1
    assert taken(desk) == ["4"]


@pytest.mark.audit(skip="records were deleted on purpose")
def test_twenty_of_the_gates_that_were_mended_are_named(desk: Desk) -> None:
    for number in range(25):
        send(desk, f"{number}", f"{number}.next", gates=f"c1:{number}")
    desk.take()
    desk.redis.delete(*(desk.keys.record(f"{number}") for number in range(25)))
    mended = desk.do(verbs.queues.mend, 100)
    assert (mended.slots, len(set(mended.gates)), mended.more) == (25, 20, False)
