"""Plain functions as tasks: they run in threads and do not block the loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from fennelq import App, RetryPolicy, TaskFailed, current_job
from tests.kit.waiting import aeventually
from tests.kit.workers import running

request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="none")


async def test_a_plain_function_runs_in_a_thread_of_its_own(app: App) -> None:
    @app.task
    def where(n: int) -> tuple[int, str]:
        return n, threading.current_thread().name

    async with running(app):
        n, thread = await app.call(where.job(7), timeout=30)
    assert n == 7
    assert thread != threading.current_thread().name


async def test_a_function_in_a_thread_may_ask_which_job_it_is(app: App) -> None:
    @app.task(retry=RetryPolicy.fixed(1, delay=0))
    def whoami() -> tuple[str, int]:
        if current_job().tries == 1:
            raise ValueError
        return current_job().id, current_job().tries

    async with running(app):
        result = await whoami.delay()
        assert await result.get(timeout=30) == (result.id, 2)


async def test_every_job_has_context_variables_of_its_own(app: App) -> None:
    @app.task
    def by_thread(value: str) -> str:
        before = request_id.get()
        request_id.set(value)
        return before

    @app.task
    async def by_loop(value: str) -> str:
        before = request_id.get()
        request_id.set(value)
        return before

    async with running(app, concurrency=1):
        for task in (by_thread, by_loop, by_thread, by_loop):
            assert await app.call(task.job("changed"), timeout=30) == "none"


async def test_one_blocking_function_beside_31_coroutines_does_not_slow_those_down(app: App) -> None:
    """All the others end while it is still blocked; many rounds of them."""
    may_end = threading.Event()
    blocked = threading.Event()

    @app.task
    def block() -> str:
        blocked.set()
        assert may_end.wait(30)
        return "let go"

    @app.task
    async def double(n: int) -> int:
        await asyncio.sleep(0.001)
        return 2 * n

    async with running(app, concurrency=32):
        try:
            slow = await block.delay()
            await aeventually(blocked.is_set)
            for start in range(0, 31 * 20, 31):
                results = await double.map(range(start, start + 31))
                values = await asyncio.gather(*(result.get(timeout=30) for result in results))
                assert values == [2 * n for n in range(start, start + 31)]
            assert not may_end.is_set()
        finally:
            may_end.set()
        assert await slow.get(timeout=30) == "let go"


async def test_as_many_functions_block_at_once_as_there_are_slots(app: App) -> None:
    barrier = threading.Barrier(8, timeout=20)

    @app.task
    def meet() -> int:
        return barrier.wait()

    async with running(app, concurrency=8):
        results = await app.enqueue([meet.job() for _ in range(8)])
        assert {await result.get(timeout=30) for result in results} == set(range(8))


@pytest.mark.parametrize("error", [StopIteration, StopAsyncIteration, GeneratorExit, SystemExit])
async def test_whatever_a_function_raises_is_its_failure_and_the_worker_goes_on(
    app: App, error: type[BaseException]
) -> None:
    """StopIteration cannot be carried by a future; a bare next() in a task raises it easily."""

    @app.task(retries=0)
    def stop() -> None:
        raise error

    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    async with running(app, concurrency=1):
        with pytest.raises(TaskFailed, match=error.__name__):
            await app.call(stop.job(), timeout=30)
        assert await app.call(add.job(1, 2), timeout=30) == 3
