"""Events: `app.on(JobDied)` calls a function of yours with what happens in this process, and changes nothing."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from fennelq import (
    App,
    ConfigurationError,
    ExecutorStarted,
    ExecutorStopped,
    Job,
    JobDied,
    JobFailure,
    JobFinished,
    JobRetried,
    JobSent,
    JobStarted,
    JobStopped,
    LeaseLost,
    Reject,
    Retry,
    RetryPolicy,
    Snooze,
    TaskFailed,
    current_job,
)
from fennelq.model import events
from fennelq.model.events import EVENTS, AnyEvent
from fennelq.subscribers import MOST_WAITING
from fennelq.worker.bus import LeasesLost
from tests.features.conftest import MakeApp
from tests.kit.waiting import aeventually
from tests.kit.workers import running

Events = list[AnyEvent]


def hearing(app: App, *kinds: type[AnyEvent]) -> Events:
    """The events of these kinds, of all without any, from now on."""
    heard: Events = []
    for kind in kinds or EVENTS:
        app.on(kind)(heard.append)
    return heard


def names(heard: Events) -> list[str]:
    return [type(event).__name__ for event in heard]


# What is told


async def test_the_events_of_a_job_that_succeeds(app: App) -> None:
    heard = hearing(app)

    @app.task(name="shop:welcome", queue="mail")
    async def welcome() -> int:
        return current_job().tries

    async with running(app) as executor:
        result = await welcome.delay()
        await result.get(timeout=30)
        await aeventually(lambda: JobFinished in map(type, heard))
    finished = next(event for event in heard if isinstance(event, JobFinished))
    assert finished.seconds is not None
    assert 0 <= finished.seconds < 5
    job: dict[str, Any] = {"id": result.id, "task": "shop:welcome", "queue": "mail"}
    told = [
        JobSent(**job),
        JobStarted(**job, tries=1),
        JobFinished(**job, tries=1, outcome="success", seconds=finished.seconds),
    ]
    assert heard[0] == ExecutorStarted(executor=executor.name)
    assert heard[-1] == ExecutorStopped(executor=executor.name)
    assert sorted(heard[1:-1], key=str) == sorted(told, key=str)


async def test_the_events_of_a_job_that_is_retried_and_dies(app: App) -> None:
    heard = hearing(app, JobFinished, JobRetried, JobDied)

    @app.task(retry=RetryPolicy.fixed(1, delay=0.01))
    async def charge() -> None:
        raise ConnectionError("no reply")

    async with running(app):
        result = await charge.delay()
        with pytest.raises(TaskFailed):
            await result.get(timeout=30)
        await aeventually(lambda: JobDied in map(type, heard))
    assert names(heard) == ["JobFinished", "JobRetried", "JobFinished", "JobDied"]
    (first, retried, last, died) = heard
    assert isinstance(first, JobFinished)
    assert isinstance(retried, JobRetried)
    assert isinstance(last, JobFinished)
    assert isinstance(died, JobDied)
    assert (first.tries, first.outcome, last.tries, last.outcome) == (1, "retry", 2, "dead")
    assert (retried.tries, retried.delay) == (1, 0.01)
    assert (died.id, died.tries) == (result.id, 2)
    for error in (retried.error, died.error):
        assert isinstance(error, JobFailure)
        assert (error.error_type, error.message, error.reason) == ("ConnectionError", "no reply", "failed")
        assert 'raise ConnectionError("no reply")' in error.traceback


@pytest.mark.parametrize(
    ("raised", "outcome"), [(partial(Snooze, 0), "snoozed"), (partial(Retry, 0), "retry"), (Reject, "dead")]
)
async def test_the_outcome_of_a_run_is_told_in_a_word(
    app: App, raised: Callable[[], Exception], outcome: str
) -> None:
    heard = hearing(app, JobFinished)
    first = True

    @app.task
    async def choose() -> None:
        nonlocal first
        if first:
            first = False
            raise raised()

    async with running(app):
        result = await choose.delay()
        if outcome == "dead":
            with pytest.raises(TaskFailed):
                await result.get(timeout=30)
        else:
            await result.get(timeout=30)
        await aeventually(lambda: len(heard) == (1 if outcome == "dead" else 2))
    assert isinstance(heard[0], JobFinished)
    assert heard[0].outcome == outcome


async def test_a_job_that_is_cancelled_while_it_runs_has_finished_and_not_died(app: App) -> None:
    heard = hearing(app, JobFinished, JobDied, JobStopped)
    begun = asyncio.Event()

    @app.task
    async def hold() -> None:
        begun.set()
        await asyncio.Event().wait()

    async with running(app):
        result = await hold.delay()
        await begun.wait()
        assert await result.cancel("not needed any more")
        await aeventually(lambda: heard)
    (finished,) = heard
    assert isinstance(finished, JobFinished)
    assert (finished.id, finished.outcome) == (result.id, "cancelled")


async def test_a_run_that_is_given_up_has_finished_without_a_duration(make_app: MakeApp) -> None:
    app, may_end = make_app(stop_grace=0.02), asyncio.Event()
    heard = hearing(app, JobFinished)

    @app.task(timeout=0.02, retries=0)
    async def ignore() -> None:
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue

    async with running(app):
        result = await ignore.delay()
        await aeventually(lambda: heard)
        may_end.set()
    assert heard == [
        JobFinished(id=result.id, task=ignore.name, queue="default", tries=1, outcome="dead", seconds=None)
    ]


@pytest.mark.audit(unfinished=True)
async def test_a_job_that_is_handed_back_has_stopped(app: App) -> None:
    heard = hearing(app, JobStarted, JobStopped, JobFinished)
    begun = asyncio.Event()

    @app.task
    async def hold() -> None:
        begun.set()
        await asyncio.Event().wait()

    async with running(app, grace=0):
        result = await hold.delay()
        await begun.wait()
    assert names(heard) == ["JobStarted", "JobStopped"]
    assert heard[1] == JobStopped(id=result.id, task=hold.name, queue="default", tries=1)


@pytest.mark.audit(unfinished=True)
async def test_a_run_that_another_executor_has_taken_over_has_lost_its_lease(app: App) -> None:
    heard = hearing(app, LeaseLost, JobFinished)
    begun = asyncio.Event()

    @app.task
    async def hold() -> None:
        begun.set()
        await asyncio.Event().wait()

    async with running(app, grace=0) as executor:
        result = await hold.delay()
        await begun.wait()
        executor.state.bus.publish(LeasesLost(executor.state.held.tokens()))
        assert heard == [LeaseLost(id=result.id, task=hold.name, queue="default", tries=1)]


async def test_jobs_that_a_schedule_sends_and_those_without_a_loop_are_told_too(app: App) -> None:
    heard = hearing(app, JobSent)

    @app.every(0.05, name="sweep")
    async def sweep() -> None: ...

    async with running(app):
        await aeventually(lambda: heard)
    by_schedule = {event.id for event in heard if isinstance(event, JobSent)}
    assert all(":cron.sweep." in job for job in by_schedule)
    result = await asyncio.to_thread(sweep.sync.delay)
    assert heard[-1] == JobSent(id=result.id, task=sweep.name, queue="default")
    assert await app.result(result.id).cancel()


async def test_a_call_that_got_the_job_of_an_earlier_one_has_sent_none(app: App) -> None:
    heard = hearing(app, JobSent)

    @app.task
    async def welcome() -> None: ...

    for once in (welcome.options(key="once"), welcome.options(job_id="once")):
        heard.clear()
        first, second = await once.delay(), await once.delay()
        assert (second.id, second.deduplicated) == (first.id, True)
        assert heard == [JobSent(id=first.id, task=welcome.name, queue="default")]
        assert await first.cancel()


async def test_a_subscriber_that_comes_while_an_executor_runs_is_called_too(app: App) -> None:
    @app.task
    async def welcome() -> None: ...

    async with running(app):
        await app.call(welcome.job(), timeout=30)
        heard = hearing(app, JobFinished)
        await app.call(welcome.job(), timeout=30)
        await aeventually(lambda: heard)
    assert names(heard) == ["JobFinished"]


async def test_async_subscribers_receive_all_events_in_order_also_the_last_one(app: App) -> None:
    heard: list[str] = []

    @app.on(JobStarted)
    async def started(event: JobStarted) -> None:
        await asyncio.sleep(0)
        heard.append(event.id)

    @app.on(ExecutorStopped)
    async def stopped(_: ExecutorStopped) -> None:
        await asyncio.sleep(0)
        heard.append("stopped")

    @app.task
    async def welcome(n: int) -> None: ...

    async with running(app, concurrency=1):
        results = await welcome.map(range(20))
        await results[-1].get(timeout=30)
    assert heard == [*(result.id for result in results), "stopped"]


def test_an_event_cannot_be_changed() -> None:
    event = ExecutorStarted(executor="anna")
    with pytest.raises(FrozenInstanceError):
        event.executor = "bob"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


# What a subscriber cannot do


async def test_without_a_subscriber_no_event_is_made(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in EVENTS:
        monkeypatch.setattr(events, kind.__name__, None)
    monkeypatch.setattr("fennelq.client.JobSent", None)
    monkeypatch.setattr("fennelq.worker.duties.ticker.JobSent", None)

    ran: set[int] = set()

    @app.every(0.02)
    async def sweep(n: int = 0) -> int:
        ran.add(n)
        return n

    async with running(app):
        assert await app.call(sweep.job(1), timeout=30) == 1
        await aeventually(lambda: ran == {0, 1})


ERRORS = [ValueError, asyncio.CancelledError, SystemExit, KeyboardInterrupt, GeneratorExit]


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_what_a_subscriber_raises_changes_no_outcome(
    app: App, error: type[BaseException], kind: str
) -> None:
    """U14. For every event: the executor, the ticker and the sending code go on."""
    called = Counter[str]()

    def fail(event: AnyEvent) -> None:
        called.update([type(event).__name__])
        raise error

    async def fail_later(event: AnyEvent) -> None:
        fail(event)

    for event in EVENTS:
        app.on(event)(fail if kind == "plain" else fail_later)
    after = hearing(app, JobFinished)

    @app.task(retry=RetryPolicy.fixed(1, delay=0))
    async def welcome(n: int) -> int:
        if current_job().tries == 1:
            raise ConnectionError
        return n

    with capture_logs() as lines:
        async with running(app):
            results = await welcome.map(range(5))
            assert [await result.get(timeout=30) for result in results] == [0, 1, 2, 3, 4]
            await aeventually(lambda: len(after) == 10)
    assert called == {
        "ExecutorStarted": 1,
        "JobSent": 5,
        "JobStarted": 10,
        "JobFinished": 10,
        "JobRetried": 5,
        "ExecutorStopped": 1,
    }
    failed = [line for line in lines if line["event"] == "subscriber_failed"]
    assert {line["to"] for line in failed} == set(called)
    assert {line["subscriber"].rpartition(".")[2] for line in failed} == {
        "fail" if kind == "plain" else "fail_later"
    }


async def test_a_signal_that_arrives_during_a_subscriber_of_a_program_is_not_swallowed(app: App) -> None:
    @app.on(JobSent)
    def interrupted(_: JobSent) -> None:
        raise KeyboardInterrupt

    @app.task
    async def welcome() -> None: ...

    with pytest.raises(KeyboardInterrupt):
        await asyncio.to_thread(welcome.sync.delay)
    (job,) = await app.queues.peek("default")
    assert await app.result(job.id).cancel()


async def test_a_subscriber_that_blocks_changes_no_outcome_and_the_watchdog_shows_its_line(
    make_app: MakeApp,
) -> None:
    """U14."""
    app, blocked = make_app(lease=1.0), False

    @app.on(JobFinished)
    def block(_: JobFinished) -> None:
        nonlocal blocked
        if not blocked:
            blocked = True
            time.sleep(1.5)

    @app.task
    async def welcome(n: int) -> int:
        return n

    with capture_logs() as lines:
        async with running(app):
            results = await welcome.map(range(10))
            assert [await result.get(timeout=30) for result in results] == [*range(10)]
    infos = [await result.info() for result in results]
    assert [info.deliveries for info in infos if info is not None] == [1] * 10
    (line,) = [line for line in lines if line["event"] == "loop_blocked"]
    assert line["at"].startswith(f"{__file__}:")
    assert line["at"].endswith(" in block")


async def test_a_flood_of_events_is_bounded_counted_and_changes_no_outcome(app: App) -> None:
    received = 0
    go_on = asyncio.Event()

    @app.on(JobSent)
    async def slow(_: JobSent) -> None:
        nonlocal received
        received += 1
        await go_on.wait()

    @app.task
    async def welcome(n: int) -> int:
        return n

    event = JobSent(id="default:1", task="shop:welcome", queue="default")
    with capture_logs() as lines:
        async with running(app):
            app.subscribers.tell(event)
            await aeventually(lambda: received == 1)
            for _ in range(100_000):
                app.subscribers.tell(event)
            go_on.set()
            assert await app.call(welcome.job(7), timeout=30) == 7
            await aeventually(lambda: received == 1 + MOST_WAITING + 1)
    dropped = [line for line in lines if line["event"] == "events_dropped"]
    assert {line["why"] for line in dropped} == {"it is too slow: 1,000 events wait for it"}
    assert [line["times"] for line in dropped] == [1, 100_000 - MOST_WAITING - 1]


async def test_an_async_subscriber_cannot_hear_what_happens_without_a_loop_and_that_is_logged(
    app: App,
) -> None:
    @app.on(JobSent)
    async def note(_: JobSent) -> None: ...

    @app.task
    async def welcome() -> None: ...

    with capture_logs() as lines:
        result = await asyncio.to_thread(welcome.sync.delay)
    (line,) = [line for line in lines if line["event"] == "events_dropped"]
    assert line["times"] == 1
    assert line["why"].startswith("no event loop runs")
    assert await app.result(result.id).cancel()


# Mistakes


def unknown(_: Any) -> None: ...


@pytest.mark.parametrize(
    ("event", "rule"),
    [
        ("JobDied", "'JobDied' is not one; did you mean the class JobDied?"),
        (JobFailure, "JobFailure is not one; did you mean the class"),
        (Job, "Job is not one; "),
        (5, "an int object is not one; known: JobSent, "),
        (None, "None is not one; known: JobSent, "),
    ],
)
def test_an_unknown_event_is_refused(event: Any, rule: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"app\.on takes an event, and {rule.replace('?', '[?]')}"):
        App("shop").on(event)


@pytest.mark.parametrize("bad", [None, 5, lambda: None, JobDied])
def test_what_cannot_be_called_with_an_event_is_no_subscriber(bad: Any) -> None:
    on: Callable[[Any], Any] = App("shop").on(JobDied)
    with pytest.raises(ConfigurationError, match=r"app\.on\(JobDied\) takes a function of the event, not "):
        on(bad)
