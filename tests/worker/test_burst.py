"""A burst: run what there is to run, then end."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from fennelq import App, RetryPolicy, Status
from fennelq.worker.executor import Executor
from fennelq.worker.processes.config import ExecutorConfig
from tests.kit.ledger import Ledger
from tests.kit.waiting import aeventually
from tests.worker import shop
from tests.worker.conftest import Workers
from tests.worker.shop import task_of


async def burst(app: App, *, concurrency: int = 4) -> None:
    async with asyncio.timeout(30):
        await Executor(app, ExecutorConfig(concurrency=concurrency, burst=True)).run()


async def test_with_nothing_to_do_a_burst_ends(app: App) -> None:
    await burst(app)


async def test_a_burst_runs_all_there_is_and_ends(app: App) -> None:
    runs = Counter[int]()

    @app.task(queue="mail")
    async def note(n: int) -> None:
        await asyncio.sleep(0.001)
        runs[n] += 1

    results = await note.map(range(200))
    results += await note.options(priority="low", queue="seldom.used").map(range(200, 210))
    await burst(app)
    assert runs == Counter(range(210))
    assert {await result.status() for result in results} == {Status.SUCCESS}


async def test_a_burst_leaves_the_jobs_of_a_paused_queue_and_ends(app: App) -> None:
    @app.task(queue="mail")
    async def note(n: int) -> int:
        return n

    await app.queue("mail").pause(only="consume")
    left, done = await note.delay(1), await note.options(queue="other").delay(2)
    await burst(app)
    assert [await left.status(), await done.status()] == [Status.SENT, Status.SUCCESS]
    await app.queue("mail").resume()
    await burst(app)
    assert await left.get(timeout=30) == 1


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_a_burst_runs_the_jobs_that_its_jobs_send(app: App, concurrency: int) -> None:
    """A chain: each job sends the next and ends, so that nothing is in hand and the next has only just come."""
    runs: list[int] = []

    @app.task
    async def follow(n: int) -> None:
        runs.append(n)
        if n:
            await follow.delay(n - 1)

    for _ in range(5):
        runs.clear()
        await follow.delay(20)
        await burst(app, concurrency=concurrency)
        assert runs == list(range(20, -1, -1))


async def test_a_burst_finds_the_queues_that_its_jobs_make(app: App) -> None:
    runs: list[int] = []

    @app.task
    async def spread(n: int) -> None:
        runs.append(n)
        if n:
            await spread.options(queue=f"queue.{n}").delay(n - 1)

    await spread.delay(5)
    await burst(app)
    assert runs == [5, 4, 3, 2, 1, 0]


async def test_a_burst_that_is_asked_to_stop_ends_although_much_is_left(app: App) -> None:
    @app.task
    async def nap() -> None:
        await asyncio.sleep(0.01)

    results = await app.enqueue([nap.job() for _ in range(500)])
    executor = Executor(app, ExecutorConfig(concurrency=1, burst=True))
    life = asyncio.create_task(executor.run())
    await aeventually(lambda: executor.state.held.done > 3)
    executor.stop()
    async with asyncio.timeout(20):
        await life
    assert await results[-1].status() is Status.SENT


async def test_a_burst_does_not_wait_for_jobs_of_a_later_time(app: App) -> None:
    @app.task(retry=RetryPolicy.fixed(1, delay=500))
    async def fail() -> None:
        raise ValueError

    failed = await fail.delay()
    later = await task_of(app, shop.double).options(delay=500).delay(1)
    await burst(app)
    assert await failed.status() is Status.RETRY
    assert await later.status() is Status.SCHEDULED


@pytest.mark.parametrize("processes", ["1", "3"])
async def test_a_burst_of_processes_ends_with_exit_code_zero(
    workers: Workers, app: App, ledger: Ledger, processes: str
) -> None:
    results = await task_of(app, shop.double).map(range(100))
    worker = workers("--burst", "-p", processes)
    assert worker.returncode(20) == 0
    assert len(ledger.ends()) == 100
    assert [await result.get(timeout=30) for result in results] == [2 * n for n in range(100)]
