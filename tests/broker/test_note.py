"""note: the progress of a run is written for as long as the run owns its job."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fennelq.broker import verbs
from fennelq.broker.trouble import ReplyError
from fennelq.broker.verbs.runs import Report
from fennelq.model.job import Delivery
from fennelq.model.outcome import Outcome, retried, snoozed, succeeded
from fennelq.model.progress import Progress, Reported, to_wire
from tests.broker.desk import DEAD, DONE, FAILURE, LIFETIMES, Desk, a_job, about, some_jobs
from tests.kit.server import Server

pytestmark = [pytest.mark.both_servers, pytest.mark.audit(unfinished=True)]

ROWS = Progress(3, 10, "rows")
WRITTEN = '[1,1,3,10,"rows"]'


def note(desk: Desk, *deliveries: Delivery, progress: Progress = ROWS, number: int = 1) -> list[int]:
    reports = [Report(delivery, to_wire(delivery.fence, number, progress)) for delivery in deliveries]
    return desk.do(verbs.runs.note, reports)


def test_the_progress_of_a_running_job_is_in_its_record(desk: Desk) -> None:
    (delivery,) = desk.executing()
    before = desk.record()
    assert note(desk, delivery) == [1]
    assert desk.record() == before | {"P": WRITTEN}
    assert desk.do(verbs.jobs.progress, "1") == Reported((1, 1), ROWS)
    known = desk.do(verbs.jobs.record, "1")
    assert known is not None
    assert known.progress == ROWS


def test_the_newest_progress_takes_the_place_of_the_one_before(desk: Desk) -> None:
    (delivery,) = desk.executing()
    for done in range(10):
        note(desk, delivery, progress=Progress(done, 9), number=done + 1)
    assert desk.record()["P"] == '[1,10,9,9,""]'


def test_a_report_that_arrives_late_does_not_replace_a_newer_one(desk: Desk) -> None:
    (delivery,) = desk.executing()
    desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES, follows=True)
    note(desk, delivery, progress=Progress(9), number=10)
    before = desk.everything()
    with desk.listening("me") as heard:
        assert note(desk, delivery, progress=Progress(8), number=9) == [1]
        assert heard(0.05) is None
    assert desk.everything() == before
    desk.release([delivery])
    (again,) = desk.take()
    assert note(desk, again, progress=Progress(1), number=1) == [1]
    assert desk.record()["P"] == '[2,1,1,null,""]'


def test_the_same_report_twice_is_as_good_as_once(desk: Desk) -> None:
    (delivery,) = desk.executing()
    assert [note(desk, delivery), note(desk, delivery)] == [[1], [1]]
    assert desk.record()["P"] == WRITTEN


def test_what_a_record_holds_instead_of_progress_is_replaced(desk: Desk) -> None:
    (delivery,) = desk.executing()
    desk.redis.hset(desk.keys.record("1"), "P", "what?")
    assert note(desk, delivery) == [1]
    assert desk.record()["P"] == WRITTEN


def test_a_job_that_reports_nothing_has_no_progress(desk: Desk) -> None:
    desk.executing()
    assert desk.do(verbs.jobs.progress, "1") is None
    assert desk.do(verbs.jobs.progress, "missing") is None


Taken = Callable[[Desk, list[Delivery]], object]
TAKEN: dict[str, Taken] = {
    "released": lambda desk, deliveries: desk.release(deliveries),
    "recovered": lambda desk, _: desk.recover(),
    "run by another": lambda desk, deliveries: (desk.release(deliveries), desk.take("bert")),
    "succeeded": lambda desk, deliveries: desk.finish(deliveries, DONE),
    "dead": lambda desk, deliveries: desk.finish(deliveries, DEAD),
    "retries": lambda desk, deliveries: desk.finish(deliveries, retried(60, FAILURE)),
    "snoozed": lambda desk, deliveries: desk.finish(deliveries, snoozed(60)),
    "deleted": lambda desk, _: desk.redis.delete(desk.keys.record("1")),
}


@pytest.mark.parametrize("taken_away", TAKEN.values(), ids=TAKEN)
@pytest.mark.audit(skip="a record is deleted in one of the cases")
def test_a_run_that_does_not_own_its_job_any_more_writes_nothing(desk: Desk, taken_away: Taken) -> None:
    """U6. What was written before stays as it is."""
    deliveries = desk.executing()
    note(desk, *deliveries)
    taken_away(desk, deliveries)
    before = desk.everything()
    assert note(desk, *deliveries, progress=Progress(9, 10), number=2) == [0]
    assert desk.everything() == before


def test_each_run_has_its_own_answer(desk: Desk) -> None:
    one, two, three = desk.executing(*some_jobs(3))
    desk.release([two])
    assert note(desk, one, two, three) == [1, 0, 1]
    assert [desk.record(key).get("P") for key in "123"] == [WRITTEN, None, WRITTEN]


@pytest.mark.audit(lost={"mail:1"})
def test_a_record_that_cannot_be_read_is_no_lost_job(desk: Desk) -> None:
    deliveries = desk.executing(*some_jobs(2))
    desk.redis.set(desk.keys.record("1"), "what?")
    assert note(desk, *deliveries) == [-1, 1]


@pytest.mark.parametrize("outcome", [retried(0.0, FAILURE), DEAD, DONE], ids=["retries", "dead", "succeeds"])
def test_progress_stays_with_the_record_whatever_becomes_of_the_run(desk: Desk, outcome: Outcome) -> None:
    (delivery,) = desk.executing()
    note(desk, delivery)
    assert desk.finish([delivery], outcome) == [1]
    assert desk.record()["P"] == WRITTEN


def test_progress_outlives_a_release_a_recovery_and_a_replay(desk: Desk) -> None:
    (delivery,) = desk.executing()
    note(desk, delivery)
    desk.release([delivery])
    desk.take()
    desk.recover()
    desk.finish(desk.take(), DEAD)
    desk.do(verbs.dead.replay, [entry for entry, _ in desk.entries("dlq")])
    assert desk.record()["P"] == WRITTEN
    (again,) = desk.take()
    assert note(desk, again, progress=Progress(1, 10)) == [1]
    assert desk.do(verbs.jobs.progress, "1") == Reported((4, 1), Progress(1, 10))


def test_progress_ends_with_the_record(desk: Desk) -> None:
    deliveries = desk.executing(*some_jobs(2))
    note(desk, *deliveries)
    desk.finish(deliveries[:1], DONE)
    desk.finish(deliveries[1:], DEAD)
    assert desk.record_ttl() == about(LIFETIMES.record_ms)
    desk.do(verbs.dead.forget, [entry for entry, _ in desk.entries("dlq")])
    assert desk.record("2") == {}


def test_a_job_without_progress_that_has_succeeded_has_no_further_field(desk: Desk) -> None:
    desk.finish(desk.executing(), succeeded(b"", 0))
    assert sorted(desk.record()) == ["a", "c", "p", "s", "t", "w", "z"]


# Those who follow


def test_followers_get_each_report_and_waiters_get_none(desk: Desk) -> None:
    """A client of an earlier version would take any message on its channel for the end of the job."""
    (delivery,) = desk.executing()
    desk.do(verbs.jobs.watch, "waiter", ["1"], LIFETIMES)
    for follower in ("one", "two"):
        desk.do(verbs.jobs.watch, follower, ["1"], LIFETIMES, follows=True)
    with desk.listening("waiter", "one", "two") as heard:
        note(desk, delivery)
        assert sorted([heard(), heard()], key=str) == [
            ("one", b"+mail:1\n" + WRITTEN.encode()),
            ("two", b"+mail:1\n" + WRITTEN.encode()),
        ]
        desk.finish([delivery])
        ends = [heard(), heard(), heard()]
        assert sorted(ends, key=str) == [(name, b'mail:1\n{"ok":42}') for name in ("one", "two", "waiter")]
        assert heard(0) is None


def test_a_report_of_a_run_that_was_taken_away_is_not_published(desk: Desk) -> None:
    (delivery,) = desk.executing()
    desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES, follows=True)
    desk.release([delivery])
    with desk.listening("me") as heard:
        assert note(desk, delivery) == [0]
        assert heard(0.05) is None


def test_a_user_without_channels_writes_progress_all_the_same(desk: Desk, server: Server) -> None:
    (delivery,) = desk.executing()
    desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES, follows=True)
    with desk.as_user(server, channels=False):
        assert note(desk, delivery) == [1]
    assert desk.record()["P"] == WRITTEN


def test_over_maxmemory_progress_is_refused_and_the_outcome_is_not(desk: Desk, server: Server) -> None:
    (delivery,) = desk.executing(a_job())
    with server.configured(maxmemory="1"):
        with pytest.raises(ReplyError, match="OOM"):
            note(desk, delivery)
        assert desk.finish([delivery]) == [1]
    assert "P" not in desk.record()
