"""Cancelling jobs that run: they are asked to stop, and only a success counts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import pytest

from fennelq import (
    App,
    AsyncResult,
    ConfigurationError,
    JobAnswer,
    JobCancelled,
    Reject,
    ResultTimeout,
    Retry,
    Snooze,
    Status,
    UsageError,
    current_job,
)
from fennelq.result import ASK_AGAIN
from fennelq.sync import waiting as sync_waiting
from tests.features.conftest import MakeApp
from tests.kit.waiting import aeventually, eventually
from tests.kit.workers import running

REASON = "no longer needed"


class Shop:
    """Tasks that run until they are asked to stop, and what they saw of that."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.begun, self.seen = list[str](), list[Any]()
        self.gate = asyncio.Event()

        @app.task
        async def wait() -> int:
            self.begun.append(current_job().id)
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.seen.append(current_job().cancelled)
                raise
            return 42

        @app.task(retries=3)
        async def react(how: str) -> str:
            self.begun.append(current_job().id)
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                if error := REACTIONS[how]:
                    raise error from None
            return how

        @app.task(queue="threads")
        def poll() -> None:
            job = current_job()
            self.begun.append(job.id)
            while job.cancelled is None and not self.gate.is_set():
                threading.Event().wait(0.001)
            self.seen.append(job.cancelled)
            raise ValueError("it stops here")

        self.wait, self.react, self.poll = wait, react, poll

    async def started(self, *results: AsyncResult[Any]) -> None:
        await aeventually(lambda: {result.id for result in results} <= set(self.begun))


REACTIONS: dict[str, BaseException | None] = {
    "returns": None,
    "raises": ValueError("while cleaning up"),
    "retries": Retry(0.01),
    "snoozes": Snooze(0.01),
    "rejects": Reject("never again"),
    "exits": SystemExit(1),
}


@pytest.fixture
def shop(app: App) -> Shop:
    return Shop(app)


@pytest.fixture
async def work(shop: Shop) -> AsyncIterator[None]:
    async with running(shop.app):
        yield
        shop.gate.set()


pytestmark = pytest.mark.usefixtures("work")


async def cancelled(result: AsyncResult[Any], reason: str = REASON) -> None:
    with pytest.raises(JobCancelled) as error:
        await result.get(timeout=30)
    info = await result.info()
    assert info is not None
    assert (error.value.reason, info.status, info.reason) == (reason, Status.CANCELLED, reason)
    assert info.stopping is None


async def test_a_running_job_gets_a_cancelled_error_and_is_cancelled(shop: Shop) -> None:
    result, other = await shop.wait.delay(), await shop.wait.delay()
    await shop.started(result, other)
    assert await result.cancel(REASON)
    assert shop.seen == [REASON]
    await cancelled(result)
    shop.gate.set()
    assert await other.get(timeout=30) == 42


async def test_a_cancelled_run_does_not_count_as_a_try(shop: Shop) -> None:
    result = await shop.wait.delay()
    await shop.started(result)
    running = await result.info()
    assert running is not None
    assert (running.tries, running.deliveries) == (1, 1)
    assert await result.cancel(REASON)
    ended = await result.info()
    assert ended is not None
    assert (ended.status, ended.tries, ended.deliveries) == (Status.CANCELLED, 0, 1)


async def test_a_function_in_a_thread_sees_that_it_is_to_stop(shop: Shop) -> None:
    result = await shop.poll.delay()
    await shop.started(result)
    assert await result.cancel(REASON)
    assert shop.seen == [REASON]
    await cancelled(result)


@pytest.mark.parametrize("how", ["raises", "retries", "snoozes", "rejects", "exits"])
async def test_a_job_that_does_not_succeed_is_cancelled_whatever_it_raises(shop: Shop, how: str) -> None:
    result = await shop.react.delay(how)
    await shop.started(result)
    assert await result.cancel(REASON)
    await cancelled(result)
    assert len(shop.begun) == 1


async def test_a_job_that_succeeds_nevertheless_has_succeeded(shop: Shop) -> None:
    result = await shop.react.delay("returns")
    await shop.started(result)
    assert not await result.cancel(REASON)
    assert await result.get(timeout=30) == "returns"
    info = await result.info()
    assert info is not None
    assert (info.status, info.stopping, info.reason) == (Status.SUCCESS, None, None)


async def test_a_job_that_is_asked_twice_is_asked_once_and_has_the_first_reason(shop: Shop) -> None:
    result = await shop.wait.delay()
    await shop.started(result)
    answers = await asyncio.gather(*(shop.app.result(result.id).cancel(f"{n}") for n in range(10)))
    assert answers == [True] * 10
    assert len(shop.seen) == 1
    await cancelled(result, shop.seen[0])


async def test_without_waiting_it_is_asked_and_the_answer_is_false(shop: Shop) -> None:
    result = await shop.poll.delay()
    await shop.started(result)
    assert await result.cancel(REASON, wait=0) is False
    await cancelled(result)


async def test_a_job_that_has_ended_or_is_unknown_is_not_cancelled(shop: Shop) -> None:
    shop.gate.set()
    result = await shop.wait.delay()
    await result.get(timeout=30)
    assert [await result.cancel(), await shop.app.result("default:unknown").cancel()] == [False, False]
    assert await shop.app.jobs.cancel(result.id) == JobAnswer(result.id, False, "too late: SUCCESS")


async def test_a_reason_arrives_as_it_was_given(shop: Shop) -> None:
    reason = '  100 % «fertig» \\ / {} "é" 🙂 stop s 1-1 ' + "x" * 450
    later, result = await shop.wait.options(delay=600).delay(), await shop.wait.delay()
    await shop.started(result)
    assert [await one.cancel(reason) for one in (later, result)] == [True, True]
    assert shop.seen == [reason]
    for one in (later, result):
        await cancelled(one, reason)


class OneWait:
    """A deadline that is over after one wait."""

    def __init__(self, _: float) -> None:
        self.left = [5.0]

    def __sub__(self, _: float) -> float:
        return self.left.pop() if self.left else -1.0


async def test_an_end_at_the_last_moment_is_seen(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job ends after the last wait for it, and before it is asked again."""
    result, other = await shop.wait.delay(), await shop.wait.delay()
    await shop.started(result, other)
    for module in ("sync.sync", "result"):  # the first takes the name from the second when it is imported
        monkeypatch.setattr(f"fennelq.{module}.deadline_of", OneWait)

    async def no_end_within(*_: object) -> None:
        with pytest.raises(JobCancelled):
            await asyncio.to_thread(shop.app.sync.result(result.id).get, 5)

    with monkeypatch.context() as patch:
        patch.setattr(shop.app.client, "end_within", no_end_within)
        assert await result.cancel(REASON)
    ends_of, waits = sync_waiting.ends_of, list[float | None]()

    def ends_later(app: App, ids: list[str], timeout: float | None) -> Any:
        waits.append(timeout)
        eventually(lambda: app.sync.result(ids[0]).status() is Status.CANCELLED)
        return ends_of(app, ids if timeout == 0 else [], timeout)

    monkeypatch.setattr(sync_waiting, "ends_of", ends_later)
    assert await asyncio.to_thread(shop.app.sync.result(other.id).cancel, REASON)
    assert waits == [ASK_AGAIN, 0]


async def test_without_an_event_loop_running_jobs_are_cancelled_alike(shop: Shop) -> None:
    sync = shop.app.sync
    results = [await shop.wait.delay() for _ in range(3)]
    swallower = await shop.react.delay("returns")
    await shop.started(*results, swallower)
    assert await asyncio.to_thread(sync.result(results[0].id).cancel, REASON)
    assert not await asyncio.to_thread(sync.result(results[1].id).cancel, REASON, wait=0)
    answer = await asyncio.to_thread(sync.jobs.cancel, results[2].id, REASON)
    assert answer == JobAnswer(results[2].id, True, "cancelled")
    assert not await asyncio.to_thread(sync.result(swallower.id).cancel, REASON)
    assert not await asyncio.to_thread(sync.result("default:unknown").cancel)
    for result in results:
        await cancelled(result)


async def test_a_handler_that_ignores_the_request_is_given_up(make_app: MakeApp) -> None:
    shop = Shop(make_app(namespace="stubborn", stop_grace=0.05))

    @shop.app.task
    async def ignore() -> None:
        shop.begun.append(current_job().id)
        while not shop.gate.is_set():
            try:
                await shop.gate.wait()
            except asyncio.CancelledError:
                shop.seen.append(current_job().cancelled)

    async with running(shop.app) as executor:
        result = await ignore.delay()
        await shop.started(result)
        assert await result.cancel(REASON)
        await cancelled(result)
        assert (shop.seen, executor.slots.stuck) == ([REASON], 1)
        shop.gate.set()
        await aeventually(lambda: executor.slots.taken == 0)


async def test_while_a_job_stops_its_info_and_a_timeout_say_so(shop: Shop) -> None:
    released = threading.Event()

    @shop.app.task(queue="threads")
    def linger() -> None:
        job = current_job()
        shop.begun.append(job.id)
        released.wait(10)
        raise ValueError(job.cancelled)

    result = await linger.delay()
    await shop.started(result)
    try:
        assert await result.cancel(REASON, wait=0.01) is False
        info = await result.info()
        assert info is not None
        assert (info.status, info.stopping) == (Status.EXECUTING, REASON)
        assert await shop.app.jobs.cancel(result.id, wait=0) == JobAnswer(result.id, False, "asked to stop")
        with pytest.raises(ResultTimeout, match=rf"was asked to stop \({REASON}\)"):
            await result.get(timeout=0.01)
    finally:
        released.set()
    await cancelled(result)


async def test_an_executor_that_stops_still_hears_requests(make_app: MakeApp) -> None:
    shop = Shop(make_app(namespace="stops"))
    async with running(shop.app, grace=30) as executor:
        result = await shop.wait.delay()
        await shop.started(result)
        executor.stop()
        assert await result.cancel(REASON)
    await cancelled(result)


Call = Callable[[AsyncResult[Any]], Awaitable[object]]
WRONG: list[tuple[type[Exception], str, Call]] = [
    (ConfigurationError, "reason '' is not valid", lambda result: result.cancel("")),
    (ConfigurationError, "1-500 characters", lambda result: result.cancel("x" * 501)),
    (ConfigurationError, "1-500 characters", lambda result: result.cancel("two\nlines")),
    (ConfigurationError, "control characters", lambda result: result.cancel("\x9b2J")),
    (ConfigurationError, "use another word", lambda result: result.cancel("expired")),
    (ConfigurationError, "reason must be a string", lambda result: result.cancel(cast("Any", 5))),
    (UsageError, "wait is a number of seconds", lambda result: result.cancel(wait=cast("Any", "5"))),
]


@pytest.mark.parametrize(("error", "text", "call"), WRONG)
async def test_a_wrong_reason_or_wait_is_refused_and_the_job_goes_on(
    shop: Shop, error: type[Exception], text: str, call: Call
) -> None:
    result = await shop.wait.delay()
    with pytest.raises(error, match=text):
        await call(result)
    info = await result.info()
    assert info is not None
    assert info.stopping is None
    shop.gate.set()
    assert await result.get(timeout=30) == 42
