"""Time limits of runs: `timeout` for async tasks."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from fennelq import App, ConfigurationError, RetryPolicy, TaskFailed, current_job
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
            await result.get(timeout=5)
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
        assert await app.call(dawdle.job(), timeout=5) == 3


async def test_a_run_within_its_time_is_not_disturbed(app: App) -> None:
    @app.task(timeout=timedelta(seconds=30))
    async def quick() -> str:
        await asyncio.sleep(0.01)
        return "done"

    async with running(app):
        assert await app.call(quick.job(), timeout=5) == "done"


async def test_none_is_no_timeout(app: App) -> None:
    @app.task(timeout=0.05, retries=0)
    async def slow() -> str:
        await asyncio.sleep(0.15)
        return "done"

    async with running(app):
        assert await app.call(slow.options(timeout=None).job(), timeout=5) == "done"
        with pytest.raises(TaskFailed):
            await app.call(slow.job(), timeout=5)


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
            await app.call(tidy.job(), timeout=5)
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
                await app.call(stumble.job(), timeout=5)


async def test_a_timeout_of_the_tasks_own_is_an_ordinary_error(app: App) -> None:
    @app.task(timeout=30, retries=0)
    async def ask() -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)

    async with running(app):
        with pytest.raises(TaskFailed) as failed:
            await app.call(ask.job(), timeout=5)
    assert failed.value.error_type == "TimeoutError"


async def test_a_plain_function_takes_no_timeout_because_a_thread_cannot_be_stopped(app: App) -> None:
    with pytest.raises(ConfigurationError, match="thread"):

        @app.task(timeout=5)
        def block() -> None: ...

    @app.task
    def other() -> None: ...

    with pytest.raises(ConfigurationError, match="thread"):
        other.options(timeout=5)
    other.options(timeout=None)
