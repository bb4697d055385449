"""Time limits of runs: `timeout`, and runs that ignore it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Generator, Iterator
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from fennelq import App, AsyncResult, Depends, JobCancelled, RetryPolicy, Status, TaskFailed, current_job
from fennelq.task import AnyTask
from fennelq.worker.executor import Executor
from fennelq.worker.processes.config import ExecutorConfig
from tests.features.conftest import MakeApp
from tests.kit.waiting import aeventually
from tests.kit.workers import running


async def test_a_run_that_takes_too_long_is_cancelled_and_has_failed(app: App) -> None:
    cancelled: list[str] = []

    @app.task(timeout=0.05, retries=0)
    async def dawdle() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(current_job().id)
            raise

    async with running(app):
        result = await dawdle.delay()
        with pytest.raises(TaskFailed, match=r"longer than its timeout of 0.05 s") as failed:
            await result.get(timeout=30)
        info = await result.info()
    assert cancelled == [result.id]
    assert failed.value.error_type.endswith("TaskTimeout")
    assert info is not None
    assert (info.reason, info.tries) == ("timeout", 1)


async def test_a_timeout_is_retried_like_any_other_failure(app: App) -> None:
    @app.task(timeout=0.05, retry=RetryPolicy.fixed(2, delay=0))
    async def dawdle() -> int:
        if current_job().tries < 3:
            await asyncio.sleep(60)
        return current_job().tries

    async with running(app):
        assert await app.call(dawdle.job(), timeout=30) == 3


async def test_a_run_within_its_time_is_not_disturbed(app: App) -> None:
    @app.task(timeout=timedelta(seconds=30))
    async def quick() -> str:
        await asyncio.sleep(0.01)
        return "done"

    async with running(app):
        assert await app.call(quick.job(), timeout=30) == "done"


async def test_with_none_there_is_no_timeout(app: App) -> None:
    @app.task(timeout=0.05, retries=0)
    async def slow() -> str:
        await asyncio.sleep(0.15)
        return "done"

    async with running(app):
        assert await app.call(slow.options(timeout=None).job(), timeout=30) == "done"
        with pytest.raises(TaskFailed):
            await app.call(slow.job(), timeout=30)


async def test_the_traceback_of_a_timeout_shows_what_the_task_was_waiting_for(app: App) -> None:
    async def ask() -> None:
        await asyncio.sleep(60)

    @app.task(timeout=0.05, retries=0)
    async def slow() -> None:
        await ask()

    async with running(app):
        with pytest.raises(TaskFailed) as failed:
            await app.call(slow.job(), timeout=30)
    head, first, *_ = failed.value.traceback.splitlines()
    assert head == "Traceback (most recent call last):"
    assert first.endswith(", in slow")
    assert "in ask\n    await asyncio.sleep(60)\n" in failed.value.traceback
    assert failed.value.traceback.endswith(
        "\nfennelq.TaskTimeout: the task ran longer than its timeout of 0.05 s\n"
    )


async def test_a_task_may_clean_up_when_its_time_is_over_and_was_late_all_the_same(app: App) -> None:
    tidied = asyncio.Event()

    @app.task(timeout=0.05, retries=0)
    async def tidy() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
            tidied.set()
        return "in time?"

    async with running(app):
        with pytest.raises(TaskFailed, match="longer than its timeout"):
            await app.call(tidy.job(), timeout=30)
    assert tidied.is_set()


async def test_what_a_task_raises_instead_of_its_cancellation_is_its_failure(app: App) -> None:
    @app.task(timeout=0.05, retries=0)
    async def stumble() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise ConnectionError("lost in between") from None

    async with running(app, concurrency=1):
        for _ in range(2):
            with pytest.raises(TaskFailed, match="lost in between"):
                await app.call(stumble.job(), timeout=30)


async def test_a_run_that_ignores_its_timeout_has_timed_out_all_the_same(make_app: MakeApp) -> None:
    """Its slot is taken until it really ends: what it still returns counts for nothing."""
    app = make_app(stop_grace=0.05)
    may_end = asyncio.Event()

    @app.task(timeout=0.05, retries=0)
    async def ignore() -> str:
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue
        return "too late"

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    async with running(app, concurrency=4) as executor:
        result = await ignore.delay()
        with pytest.raises(TaskFailed, match=r"longer than its timeout of 0.05 s"):
            await result.get(timeout=30)
        assert (executor.slots.stuck, executor.slots.taken, executor.slots.free) == (1, 1, 3)
        handles = await double.map(range(20))
        assert [await handle.get(timeout=30) for handle in handles] == [2 * n for n in range(20)]
        may_end.set()
        await aeventually(lambda: executor.slots.taken == 0)
        assert executor.slots.stuck == 0
        info = await result.info()
    assert info is not None
    assert (info.status, info.reason, info.tries) == (Status.DEAD, "timeout", 1)


async def test_a_run_that_ignores_its_timeout_is_retried_like_any_other(make_app: MakeApp) -> None:
    app = make_app(stop_grace=0.02, max_stuck=8)
    may_end = asyncio.Event()

    @app.task(timeout=0.05, retry=RetryPolicy.fixed(1, delay=0))
    async def ignore_once() -> int:
        while current_job().tries == 1 and not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue
        return current_job().tries

    async with running(app):
        assert await app.call(ignore_once.job(), timeout=30) == 2
        may_end.set()


async def test_a_slot_that_is_stuck_is_logged_once_with_the_place_where_it_hangs(make_app: MakeApp) -> None:
    app = make_app(stop_grace=0.02)
    may_end = asyncio.Event()

    async def hang() -> None:
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue

    @app.task(timeout=0.02, retries=0)
    async def ignore() -> None:
        await hang()

    with capture_logs() as lines:
        async with running(app, concurrency=4):
            result = await ignore.delay()
            with pytest.raises(TaskFailed):
                await result.get(timeout=30)
            may_end.set()
    (line,) = [line for line in lines if line["event"] == "slot_stuck"]
    assert line["job_id"] == result.id
    assert "in ignore > " in line["stack"]
    assert "test_timeouts.py" in line["stack"].split(" > ")[1]
    assert "in hang" in line["stack"].split(" > ")[1]


async def test_an_executor_with_too_many_stuck_slots_makes_room_for_a_fresh_one(make_app: MakeApp) -> None:
    """Those that are healthy may finish; nothing waits for the stuck ones."""
    app = make_app(stop_grace=0.02, max_stuck=1)
    may_end = asyncio.Event()
    slow_may_end = asyncio.Event()

    @app.task(timeout=0.02, retries=0)
    async def ignore() -> None:
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue

    @app.task
    async def slow() -> str:
        await slow_may_end.wait()
        return "finished"

    executor = Executor(app, ExecutorConfig(concurrency=4, grace=60))
    life = asyncio.create_task(executor.run())
    healthy = await slow.delay()
    stuck = [await ignore.delay() for _ in range(2)]
    await asyncio.gather(*(handle.get(timeout=30) for handle in stuck), return_exceptions=True)
    await aeventually(lambda: executor.recycled)
    slow_may_end.set()
    async with asyncio.timeout(20):
        await life
    assert await healthy.get(timeout=30) == "finished"
    assert {await handle.status() for handle in stuck} == {Status.DEAD}
    may_end.set()


async def test_a_timeout_of_the_tasks_own_is_an_ordinary_error(app: App) -> None:
    @app.task(timeout=30, retries=0)
    async def ask() -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)

    async with running(app):
        with pytest.raises(TaskFailed) as failed:
            await app.call(ask.job(), timeout=30)
    assert failed.value.error_type == "TimeoutError"


# In threads


async def test_a_plain_function_sees_that_its_time_is_over_and_has_timed_out_whatever_it_returns(
    app: App,
) -> None:
    seen: list[str | None] = []

    @app.task(timeout=0.05, retries=0)
    def dawdle() -> str:
        job = current_job()
        seen.append(job.cancelled)
        while job.cancelled is None:
            time.sleep(0.005)
        seen.append(job.cancelled)
        return "in time?"

    async with running(app) as executor:
        result = await dawdle.delay()
        with pytest.raises(TaskFailed, match=r"longer than its timeout of 0.05 s"):
            await result.get(timeout=30)
        info = await result.info()
        assert (executor.slots.stuck, executor.slots.taken) == (0, 0)
    assert seen == [None, "timeout"]
    assert info is not None
    assert (info.status, info.reason, info.tries) == (Status.DEAD, "timeout", 1)


class Handlers:
    """Tasks that ignore their timeout until they may end: on the loop and in threads, with a result and without."""

    def __init__(self, app: App) -> None:
        self.may_end, self.began = threading.Event(), threading.Semaphore(0)

        def linger() -> None:
            self.began.release()
            self.may_end.wait(30)

        @app.task(name="shop:thread", timeout=0.05, retries=0)
        def in_thread() -> str:
            linger()
            return "too late"

        @app.task(name="shop:thread_without_value", timeout=0.05, retries=0)
        def in_thread_without_value() -> None:
            linger()

        @app.task(name="shop:loop_without_value", timeout=0.05, retries=0)
        async def on_loop() -> None:
            while not self.may_end.is_set():
                try:
                    await asyncio.sleep(0.01)
                except asyncio.CancelledError:
                    continue

        self.tasks: dict[str, AnyTask] = {
            "thread": in_thread,
            "thread, no value": in_thread_without_value,
            "loop, no value": on_loop,
        }


@pytest.fixture
def impatient(make_app: MakeApp) -> App:
    """An app that gives a run up soon, and a stuck executor never."""
    return make_app(stop_grace=0.05, max_stuck=6, concurrency=8)


@pytest.fixture
def handlers(impatient: App) -> Iterator[Handlers]:
    handlers = Handlers(impatient)
    yield handlers
    handlers.may_end.set()


@pytest.mark.parametrize("kind", ["thread", "thread, no value", "loop, no value"])
@pytest.mark.parametrize("sent", ["async", "sync"])
async def test_a_handler_that_goes_on_after_its_timeout_has_timed_out_once_and_keeps_its_slot(
    impatient: App, handlers: Handlers, kind: str, sent: str
) -> None:
    task = handlers.tasks[kind]

    @impatient.task
    def double(n: int) -> int:
        return 2 * n

    async with running(impatient, concurrency=3) as executor:
        key = await task.delay() if sent == "async" else await asyncio.to_thread(task.sync.delay)
        result: AsyncResult[Any] = impatient.result(key.id)
        with pytest.raises(TaskFailed, match=r"longer than its timeout of 0.05 s"):
            await result.get(timeout=30)
        assert (executor.slots.stuck, executor.slots.taken, executor.slots.free) == (1, 1, 2)
        # More calls in threads than there are slots: the thread that is stuck is none of theirs.
        handles = await double.map(range(10))
        assert [await handle.get(timeout=30) for handle in handles] == [2 * n for n in range(10)]
        handlers.may_end.set()
        await aeventually(lambda: executor.slots.taken == 0)
        assert (executor.slots.stuck, executor.state.held.done) == (0, 11)
        info = await result.info()
    assert info is not None
    assert (info.status, info.reason, info.tries) == (Status.DEAD, "timeout", 1)


async def test_a_thread_that_is_stuck_is_logged_once_with_the_calls_of_the_thread(
    impatient: App, handlers: Handlers
) -> None:
    with capture_logs() as lines:
        async with running(impatient, concurrency=3):
            result = await handlers.tasks["thread"].delay()
            with pytest.raises(TaskFailed) as failed:
                await result.get(timeout=30)
            handlers.may_end.set()
    (line,) = [line for line in lines if line["event"] == "slot_stuck"]
    calls = [call.rpartition(" in ")[2] for call in line["stack"].split(" > ")]
    assert calls == ["in_thread", "linger", "wait", "wait"]
    assert line["stack"].startswith(__file__)
    assert line["stack"] in failed.value.traceback


async def test_a_burst_does_not_wait_for_a_run_that_was_given_up(impatient: App, handlers: Handlers) -> None:
    late = await handlers.tasks["thread"].delay()

    @impatient.task
    async def double(n: int) -> int:
        return 2 * n

    quick = await double.delay(21)
    async with asyncio.timeout(15):
        await Executor(impatient, ExecutorConfig(concurrency=4, burst=True)).run()
    assert not handlers.may_end.is_set()
    assert (await late.status(), await quick.get(timeout=30)) == (Status.DEAD, 42)


async def test_a_stop_does_not_wait_for_a_run_that_was_given_up(impatient: App, handlers: Handlers) -> None:
    """Its outcome is written, so nothing of it is left to finish within the grace period."""
    late = await handlers.tasks["thread"].options(timeout=0.2).delay()
    async with asyncio.timeout(15):
        async with running(impatient, grace=60):
            await aeventually(lambda: handlers.began.acquire(blocking=False))
    assert not handlers.may_end.is_set()
    assert await late.status() is Status.DEAD


@pytest.mark.parametrize("kind", ["thread", "thread, no value", "loop, no value"])
async def test_a_handler_that_goes_on_after_a_cancel_is_given_up_in_the_same_way(
    impatient: App, handlers: Handlers, kind: str
) -> None:
    """U4. The request may come from any process; the outcome is CANCELLED, and what the handler returns is dropped."""
    async with running(impatient, concurrency=3) as executor:
        result = await handlers.tasks[kind].options(timeout=None).delay()
        await aeventually(lambda: executor.slots.taken == 1)
        assert await result.cancel("not wanted", wait=5)
        with pytest.raises(JobCancelled):
            await result.get(timeout=30)
        assert (executor.slots.stuck, executor.slots.taken, executor.slots.free) == (1, 1, 2)
        handlers.may_end.set()
        await aeventually(lambda: executor.slots.taken == 0)
        assert (executor.slots.stuck, executor.state.held.done) == (0, 1)
        info = await result.info()
    assert info is not None
    assert (info.status, info.reason) == (Status.CANCELLED, "not wanted")


# Providers


@pytest.mark.parametrize("where", ["loop", "thread"])
@pytest.mark.parametrize("limit", [None, 60.0])
async def test_a_provider_that_hangs_when_it_is_left_and_cannot_be_stopped_is_given_up(
    impatient: App, where: str, limit: float | None
) -> None:
    """U13. Its slot is stuck, and its job has failed: what the provider should have written may be missing."""
    may_end = threading.Event()

    async def on_loop() -> AsyncIterator[str]:
        yield "ready"
        while not may_end.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    def in_thread() -> Generator[str]:
        yield "ready"
        may_end.wait(30)

    @impatient.task(timeout=limit, retries=0)
    async def use_on_loop(value: str = Depends(on_loop)) -> str:
        return value

    @impatient.task(timeout=limit, retries=0)
    def use_in_thread(value: str = Depends(in_thread)) -> str:
        return value

    async with running(impatient, concurrency=3) as executor:
        result = await (use_on_loop if where == "loop" else use_in_thread).delay()
        with pytest.raises(TaskFailed, match="providers of the task did not end within stop_grace"):
            await result.get(timeout=30)
        assert (executor.slots.stuck, executor.slots.taken) == (1, 1)
        may_end.set()
        await aeventually(lambda: executor.slots.taken == 0)
        info = await result.info()
    assert info is not None
    assert (info.status, info.reason, info.tries) == (Status.DEAD, "timeout", 1)


async def test_a_timeout_while_a_provider_is_left_is_the_timeout(impatient: App) -> None:
    """The time of the run is over before that of its providers."""
    may_end = threading.Event()

    def slow() -> Generator[str]:
        yield "ready"
        may_end.wait(30)

    @impatient.task(timeout=0.02, retries=0)
    def use(value: str = Depends(slow)) -> str:
        return value

    async with running(impatient, concurrency=3):
        with pytest.raises(TaskFailed, match=r"longer than its timeout of 0.02 s"):
            await (await use.delay()).get(timeout=30)
        may_end.set()
