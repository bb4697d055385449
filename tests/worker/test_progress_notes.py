"""Progress of running jobs: few writes, always the newest, and never at the cost of a job."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.typing import EventDict

from fennelq.broker.broker import ANSWER_TIMEOUT, Broker
from fennelq.broker.connection import address_of
from fennelq.broker.trouble import LinkDown, ReplyError
from fennelq.broker.verb import Verb
from fennelq.model.job import Delivery
from fennelq.model.outcome import Outcome, retried
from fennelq.model.progress import Progress, from_wire
from fennelq.worker.bus import LeasesLost
from fennelq.worker.running.held import Held
from fennelq.worker.running.progress_notes import INTERVAL
from fennelq.worker.running.settler import Settler
from tests.broker.desk import DEAD, DONE, FAILURE, Desk, some_jobs
from tests.kit.waiting import aeventually
from tests.worker.states import published, state_of

pytestmark = pytest.mark.audit(unfinished=True)


class Counting(Broker):
    """Notes the calls of `note`: when, and how many jobs. Refuses as many as there are refusals."""

    def __init__(self, url: str) -> None:
        super().__init__(address_of(url))
        self.calls: list[tuple[float, int]] = []
        self.order: list[str] = []
        self.refusals: list[Exception] = []
        self.refusals_of_finish: list[Exception] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    @property
    def jobs(self) -> list[int]:
        return [jobs for _, jobs in self.calls]

    async def run(self, verb: Verb[Any], within: float = ANSWER_TIMEOUT) -> Any:
        self.order.append(verb.name)
        if verb.name == "note":
            self.calls.append((asyncio.get_running_loop().time(), (len(verb.args) - 2) // 3))
            if self.refusals:
                raise self.refusals.pop(0)
        elif self.refusals_of_finish:
            raise self.refusals_of_finish.pop(0)
        reply = await super().run(verb, within)
        await self.may_answer.wait()
        return reply


class Reports:
    """The notes of an executor, and runs that go on until the test ends."""

    def __init__(self, broker: Counting) -> None:
        self.broker = broker
        self.state = state_of(broker)
        self.settler = Settler(self.state)
        self.notes = self.settler.notes
        self.lost = published(self.state, LeasesLost)

    def runs_of(self, deliveries: list[Delivery]) -> list[Held]:
        return [self._run_of(delivery) for delivery in deliveries]

    def _run_of(self, delivery: Delivery) -> Held:
        held = self.state.held.by_token[delivery.token] = Held(delivery, self.notes)
        held.task = asyncio.create_task(forever(), name=f"run of {delivery.key}")
        return held

    async def interval_of(self, held: Held) -> None:
        """Two reports of a run were written, the second when its interval was over: whatever was due before it has had
        its turn."""
        written = len(self.broker.calls)
        for more in (1, 2):
            held.report(Progress(more))
            await aeventually(lambda: len(self.broker.calls) == written + more)  # noqa: B023

    async def settle(self, held: Held, outcome: Outcome = DONE) -> None:
        held.outcome = outcome
        self.settler.settle_now(held.delivery, outcome)
        await self.settler.drain()


async def forever() -> None:
    await asyncio.Event().wait()


@pytest.fixture
async def reports(redis_url: str) -> AsyncIterator[Reports]:
    broker = Counting(redis_url)
    reports = Reports(broker)
    yield reports
    for held in reports.state.held.by_token.values():
        held.stop("the test is over")
    await broker.close()


@pytest.fixture(autouse=True)
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that has failed is tried again almost at once."""
    monkeypatch.setattr("fennelq.worker.running.progress_notes.AFTER_ERROR", 0.02)


def progress_of(desk: Desk, key: str = "1") -> str | None:
    return desk.record(key).get("P")


def done_of(desk: Desk, key: str = "1") -> float | None:
    reported = from_wire(progress_of(desk, key))
    return reported and reported.progress.done


# How often


async def test_the_first_report_is_written_at_once_and_further_ones_wait_for_their_interval(
    reports: Reports, desk: Desk
) -> None:
    (held,) = reports.runs_of(desk.executing())
    assert held.report(Progress(1))
    await aeventually(lambda: progress_of(desk) == '[1,1,1,null,""]')
    for done in range(2, 1000):
        assert not held.report(Progress(done))
    await aeventually(lambda: progress_of(desk) == '[1,2,999,null,""]')
    (first, _), (second, _) = reports.broker.calls
    assert second - first >= 0.9 * INTERVAL


async def test_of_the_reports_of_one_turn_of_the_loop_the_newest_is_written(
    reports: Reports, desk: Desk
) -> None:
    (held,) = reports.runs_of(desk.executing())
    due = [held.report(Progress(done, 100)) for done in range(100)]
    assert due == [True] + [False] * 99
    await aeventually(lambda: progress_of(desk) == '[1,1,99,100,""]')
    assert reports.broker.jobs == [1]


async def test_jobs_of_one_queue_share_calls_of_a_hundred(reports: Reports, desk: Desk, other: Desk) -> None:
    other.enqueue(*some_jobs(2))
    held = reports.runs_of([*desk.executing(*some_jobs(150)), *desk.take(), *other.take()])
    for run in held:
        run.report(Progress(7))
    await aeventually(lambda: sum(reports.broker.jobs) == 152)
    assert reports.broker.jobs == [100, 50, 2]
    names = [str(n + 1) for n in range(150)]
    await aeventually(lambda: {progress_of(desk, name) for name in names} == {'[1,1,7,null,""]'})
    assert {progress_of(other, name) for name in "12"} == {'[1,1,7,null,""]'}
    await reports.interval_of(held[1])
    assert reports.broker.jobs == [100, 50, 2, 1, 1], "what is written is not written again"


async def test_reports_during_a_call_are_the_next_call(reports: Reports, desk: Desk) -> None:
    held = reports.runs_of(desk.executing(*some_jobs(20)))
    reports.broker.may_answer.clear()
    held[0].report(Progress(0))
    await aeventually(lambda: reports.broker.jobs == [1])
    for run in held[1:]:
        run.report(Progress(1))
    for _ in range(5):
        await asyncio.sleep(0)
    assert reports.broker.jobs == [1]
    reports.broker.may_answer.set()
    await aeventually(lambda: reports.broker.jobs == [1, 19])


# Threads


async def test_what_threads_report_last_is_written(reports: Reports, desk: Desk) -> None:
    held = reports.runs_of(desk.executing(*some_jobs(4)))

    def count(run: Held) -> None:
        for done in range(5001):
            assert not run.report(Progress(done))

    threads = [threading.Thread(target=count, args=(run,)) for run in held]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    await aeventually(lambda: {done_of(desk, key) for key in "1234"} == {5000})
    assert sum(reports.broker.jobs) < 4 * 10


async def test_a_thread_that_outlives_its_loop_is_not_disturbed(reports: Reports, desk: Desk) -> None:
    (delivery,) = desk.executing()
    loop = asyncio.new_event_loop()
    held = reports.state.held.by_token[delivery.token] = Held(delivery, reports.notes)
    held.task = loop.create_task(forever())
    loop.close()
    assert not held.report(Progress(1))
    held.task.get_coro().close()
    del reports.state.held.by_token[delivery.token]


# Whose job it is


async def test_a_run_whose_job_was_taken_away_is_lost_and_its_neighbours_are_not(
    reports: Reports, desk: Desk
) -> None:
    """U6."""
    deliveries = desk.executing(*some_jobs(3))
    held = reports.runs_of(deliveries)
    desk.release([deliveries[2]])
    for run in held:
        run.report(Progress(1))
    await aeventually(lambda: reports.lost != [])
    assert reports.lost == [LeasesLost([deliveries[2].token])]
    assert [progress_of(desk, key) for key in "123"] == ['[1,1,1,null,""]', '[1,1,1,null,""]', None]
    assert reports.notes.open.keys() == {deliveries[0].token, deliveries[1].token}


async def test_all_runs_of_a_lost_lease_are_forgotten(reports: Reports, desk: Desk) -> None:
    held = reports.runs_of(desk.executing(*some_jobs(3)))
    for run in held:
        run.report(Progress(1))
    reports.state.bus.publish(LeasesLost([run.delivery.token for run in held[:2]]))
    assert reports.notes.open.keys() == {held[2].delivery.token}
    await aeventually(lambda: progress_of(desk, "3") is not None)
    assert (reports.broker.jobs, progress_of(desk, "1"), progress_of(desk, "2")) == ([1], None, None)


async def test_a_run_that_is_not_held_any_more_reports_nothing(reports: Reports, desk: Desk) -> None:
    one, two, three = reports.runs_of(desk.executing(*some_jobs(3)))
    one.outcome = DONE
    del reports.state.held.by_token[two.delivery.token]
    assert three.task is not None
    three.task.cancel()
    await asyncio.wait([three.task])
    for held in (one, two, three):
        assert not held.report(Progress(1))
    assert reports.notes.open == {}
    assert not Held(one.delivery).report(Progress(1))


async def test_nothing_is_written_for_a_run_that_its_executor_stops(reports: Reports, desk: Desk) -> None:
    held, neighbour = reports.runs_of(desk.executing(*some_jobs(2)))
    held.report(Progress(1))
    await aeventually(lambda: progress_of(desk) is not None)
    held.report(Progress(2))
    held.stop("stopped")
    await reports.interval_of(neighbour)
    assert progress_of(desk) == '[1,1,1,null,""]'


# Before the outcome


@pytest.mark.parametrize("outcome", [DONE, DEAD, retried(60.0, FAILURE)], ids=["done", "dead", "retried"])
async def test_what_is_pending_is_written_before_the_outcome(
    reports: Reports, desk: Desk, outcome: Outcome
) -> None:
    (held,) = reports.runs_of(desk.executing())
    held.report(Progress(1, 9))
    await aeventually(lambda: progress_of(desk) is not None)
    held.report(Progress(9, 9))
    await reports.settle(held, outcome)
    assert progress_of(desk) == '[1,2,9,9,""]'
    assert reports.broker.order == ["note", "note", "finish"]
    assert reports.notes.open == {}


async def test_a_report_under_way_is_written_again_before_the_outcome(reports: Reports, desk: Desk) -> None:
    """Its reply may be that the server does not know the script: sent again, it would come after the outcome."""
    (held,) = reports.runs_of(desk.executing())
    held.report(Progress(9, 9))
    await reports.settle(held)
    assert done_of(desk) == 9
    assert reports.broker.order[-1] == "finish"
    assert reports.lost == []


async def test_a_job_whose_progress_is_written_is_settled_in_one_call(reports: Reports, desk: Desk) -> None:
    held = reports.runs_of(desk.executing(*some_jobs(2)))
    for run in held:
        run.report(Progress(9, 9))
    notes = list(reports.notes.open.values())
    await aeventually(lambda: all(note.written is not None for note in notes))
    for run in held:
        await reports.settle(run)
    assert reports.broker.order == ["note", "finish", "finish"]
    assert reports.notes.open == {}


@pytest.mark.parametrize(
    "error", [LinkDown("gone"), ReplyError("OOM no"), ReplyError("NOPERM no"), ReplyError("ERR no")]
)
async def test_an_outcome_is_written_although_the_last_report_cannot_be(
    reports: Reports, desk: Desk, logged: list[EventDict], error: Exception
) -> None:
    (held,) = reports.runs_of(desk.executing())
    held.report(Progress(1))
    await aeventually(lambda: progress_of(desk) is not None)
    held.report(Progress(2))
    reports.broker.refusals = [error]
    await reports.settle(held)
    assert desk.record()["s"] == "S"
    assert progress_of(desk) == '[1,1,1,null,""]'
    of_one_queue = str(error).startswith(("NOPERM", "ERR"))  # others are logged as trouble of Redis
    expected = [("progress", "mail")] if of_one_queue else []
    assert [(line["what"], line["queue"]) for line in logged if line["event"] == "trouble"] == expected


async def test_a_write_that_has_failed_is_not_tried_again_after_the_outcome(
    reports: Reports, desk: Desk
) -> None:
    ended, other = reports.runs_of(desk.executing(*some_jobs(2)))
    reports.broker.refusals = [LinkDown("gone")]
    ended.report(Progress(1))
    await aeventually(lambda: reports.broker.jobs == [1])
    await reports.settle(ended)
    await reports.interval_of(other)
    assert reports.broker.order == ["note", "note", "finish", "note", "note"]
    assert reports.lost == []


@pytest.mark.parametrize(("error", "attempts"), [(LinkDown("gone"), 2), (ReplyError("ERR no"), 1)])
async def test_the_last_report_is_tried_again_with_the_outcome_if_that_may_help(
    reports: Reports, desk: Desk, error: Exception, attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine, its interval may be over before the outcome is sent.
    monkeypatch.setattr("fennelq.worker.running.progress_notes.INTERVAL", 60.0)
    (held,) = reports.runs_of(desk.executing())
    held.report(Progress(1))
    await aeventually(lambda: progress_of(desk) is not None)
    held.report(Progress(2))
    reports.broker.refusals, reports.broker.refusals_of_finish = [error], [LinkDown("gone")]
    await reports.settle(held)
    assert done_of(desk) == attempts
    tried = ["note", "finish"] * attempts if attempts == 2 else ["note", "finish", "finish"]
    assert reports.broker.order == ["note", *tried]


async def test_the_last_reports_of_a_page_of_outcomes_share_a_call(reports: Reports, desk: Desk) -> None:
    held = reports.runs_of(desk.executing(*some_jobs(30)))
    for run in held[:20]:
        run.report(Progress(1))
    await aeventually(lambda: progress_of(desk, "20") is not None)
    for run in held[:20]:
        run.report(Progress(2))
    for run in held:
        run.outcome = DONE
        reports.settler.settle_now(run.delivery, DONE)
    await reports.settler.drain()
    assert reports.broker.order == ["note", "note", "finish"]
    assert reports.broker.jobs == [20, 20]


async def test_nothing_is_written_after_the_outcome(reports: Reports, desk: Desk) -> None:
    held, neighbour = reports.runs_of(desk.executing(*some_jobs(2)))
    held.report(Progress(1))
    await aeventually(lambda: progress_of(desk) is not None)
    held.report(Progress(2))
    await reports.settle(held)
    assert not held.report(Progress(3))
    await reports.interval_of(neighbour)
    # On a slow machine, the second report may be due before the outcome. After it there are only the neighbour's.
    ended = reports.broker.order.index("finish")
    assert set(reports.broker.order[:ended]) == {"note"}
    assert reports.broker.order[ended + 1 :] == ["note", "note"]
    assert reports.lost == []


# Faults


@pytest.mark.parametrize(
    "error", [LinkDown("gone"), TimeoutError(), ReplyError("ERR no"), ReplyError("NOPERM no")]
)
async def test_a_write_that_fails_is_repeated_with_the_newest_value(
    reports: Reports, desk: Desk, error: Exception
) -> None:
    (held,) = reports.runs_of(desk.executing())
    reports.broker.refusals = [error, error]
    held.report(Progress(1))
    await aeventually(lambda: reports.broker.jobs == [1, 1])
    held.report(Progress(2))
    await aeventually(lambda: progress_of(desk) == '[1,3,2,null,""]')
    assert reports.lost == []


async def test_after_an_error_a_run_is_left_alone_for_longer(
    reports: Reports, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fennelq.worker.running.progress_notes.AFTER_ERROR", 600.0)
    refused, other = reports.runs_of(desk.executing(*some_jobs(2)))
    reports.broker.refusals = [LinkDown("gone")]
    refused.report(Progress(1))
    await aeventually(lambda: reports.broker.jobs == [1])
    await reports.interval_of(other)
    assert progress_of(desk, "1") is None
    assert done_of(desk, "2") == 2


async def test_the_first_write_that_succeeds_ends_the_outage(
    reports: Reports, desk: Desk, logged: list[EventDict]
) -> None:
    (held,) = reports.runs_of(desk.executing())
    reports.broker.refusals = [ReplyError("OOM no")]
    held.report(Progress(1))
    await aeventually(lambda: len(logged) == 2)
    assert [line["event"] for line in logged] == ["redis_trouble", "redis_is_back"]
    assert done_of(desk) == 1


async def test_that_a_run_has_lost_its_job_is_not_published_when_its_executor_stops(
    reports: Reports, desk: Desk
) -> None:
    """Other code stops it already."""
    deliveries = desk.executing()
    (held,) = reports.runs_of(deliveries)
    desk.release(deliveries)
    reports.broker.may_answer.clear()
    held.report(Progress(1))
    (note,) = reports.notes.open.values()
    await aeventually(lambda: reports.broker.jobs == [1])
    held.stop("stopped")
    reports.broker.may_answer.set()
    await aeventually(lambda: note.written is not None)
    assert reports.lost == []


async def test_an_error_of_one_queue_leaves_the_others_alone(
    reports: Reports, desk: Desk, other: Desk, logged: list[EventDict]
) -> None:
    other.enqueue(*some_jobs(1))
    held = reports.runs_of([*desk.executing(), *other.take()])
    reports.broker.refusals = [ReplyError("NOPERM this user has no permissions")] * 3
    for run in held:
        run.report(Progress(1))
    await aeventually(lambda: progress_of(desk) is not None and progress_of(other) is not None)
    warned = [line for line in logged if line["event"] == "trouble"]
    assert {line["what"] for line in warned} == {"progress"}
    assert len(warned) == len({line["queue"] for line in warned})


async def test_a_job_that_cancels_every_task_does_not_stop_the_progress_of_others(
    reports: Reports, desk: Desk
) -> None:
    (held,) = reports.runs_of(desk.executing())
    reports.broker.may_answer.clear()
    held.report(Progress(1))
    await aeventually(lambda: reports.broker.jobs == [1])
    for task in asyncio.all_tasks():
        if task.get_name() == "progress":
            task.cancel()
    reports.broker.may_answer.set()
    held.report(Progress(2))
    await aeventually(lambda: done_of(desk) == 2)
