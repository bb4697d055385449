"""A busy worker never sits on a job that an idle one could run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any

from fennelq import App, AsyncResult, Status
from tests.features.conftest import MakeApp
from tests.kit.waiting import aeventually
from tests.kit.workers import running


async def test_twenty_short_jobs_all_finish_while_one_of_two_workers_is_busy_with_a_long_one(
    app: App,
) -> None:
    may_end = asyncio.Event()

    @app.task
    async def long() -> str:
        await may_end.wait()
        return "done"

    @app.task
    async def short(n: int) -> int:
        return n

    async with running(app, concurrency=1), running(app, concurrency=1):
        busy = await long.delay()
        results = await short.map(range(20))
        assert await asyncio.gather(*(result.get(timeout=30) for result in results)) == list(range(20))
        assert await busy.status() is Status.EXECUTING
        may_end.set()
        assert await busy.get(timeout=30) == "done"


async def test_short_jobs_that_were_queued_before_the_workers_came_do_not_wait_for_the_long_one_either(
    app: App,
) -> None:
    may_end = asyncio.Event()

    @app.task
    async def long() -> None:
        await may_end.wait()

    @app.task
    async def short(n: int) -> int:
        return n

    busy = await long.delay()
    results = await short.map(range(20))
    async with running(app, concurrency=1), running(app, concurrency=1):
        assert await asyncio.gather(*(result.get(timeout=30) for result in results)) == list(range(20))
        assert not may_end.is_set()
        may_end.set()
        await busy.get(timeout=30)


async def test_a_worker_holds_as_many_jobs_as_it_has_slots_and_not_one_more(app: App) -> None:
    may_end = asyncio.Event()

    @app.task
    async def hold() -> None:
        await may_end.wait()

    results = await app.enqueue([hold.job() for _ in range(20)])
    async with running(app, concurrency=7):
        await aeventually(lambda: executing(results, 7))
        counts = Counter([await result.status() for result in results])
        assert counts == {Status.EXECUTING: 7, Status.SENT: 13}
        may_end.set()
        await asyncio.gather(*(result.get(timeout=30) for result in results))


async def test_jobs_spread_over_all_workers(make_app: MakeApp) -> None:
    """Forty jobs that all must run at once, on five workers of eight slots: no slot may stay empty."""
    app = make_app()
    arrived = asyncio.Semaphore(0)
    may_end = asyncio.Event()

    @app.task
    async def meet() -> None:
        arrived.release()
        await may_end.wait()

    async with AsyncExitStack() as workers:
        for _ in range(5):
            await workers.enter_async_context(running(app, concurrency=8))
        results = await app.enqueue([meet.job() for _ in range(40)])
        async with asyncio.timeout(20):
            for _ in range(40):
                await arrived.acquire()
        may_end.set()
        await asyncio.gather(*(result.get(timeout=30) for result in results))


async def test_a_slot_that_becomes_free_is_filled_although_the_others_are_busy(app: App) -> None:
    may_end = asyncio.Event()
    done: list[int] = []

    @app.task
    async def long() -> None:
        await may_end.wait()

    @app.task
    async def short(n: int) -> None:
        done.append(n)

    async with running(app, concurrency=4):
        busy = await app.enqueue([long.job() for _ in range(3)])
        await aeventually(lambda: executing(busy, 3))
        for result in await short.map(range(30)):
            await result.get(timeout=30)
        assert not may_end.is_set()
        may_end.set()
        await asyncio.gather(*(result.get(timeout=30) for result in busy))
    assert done == list(range(30))


async def executing(results: Iterable[AsyncResult[Any]], number: int) -> bool:
    """Whether so many of these jobs are in the hands of workers."""
    return [await result.status() for result in results].count(Status.EXECUTING) == number
