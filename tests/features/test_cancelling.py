"""Cancelling jobs that have not started."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from fennelq import App, AsyncResult, JobCancelled, RetryPolicy, Status, Task
from tests.features.conftest import MakeApp
from tests.kit.ageing import age
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.kit.workers import running


class Notes:
    """A task that fails on the first try and notes its runs."""

    def __init__(self, app: App, **options: Any) -> None:
        self.runs = Counter[int]()

        @app.task(name="shop:note", retry=RetryPolicy.fixed(5, delay=500), **options)
        async def note(n: int) -> None:
            self.runs[n] += 1
            if n < 0:
                raise ValueError("less than nothing")

        self.note: Task[[int], None] = note


@pytest.fixture
async def notes(app: App) -> Notes:
    return Notes(app)


async def test_a_queued_job_that_is_cancelled_never_runs(app: App, notes: Notes) -> None:
    result, other = await notes.note.map([1, 2])
    assert await result.cancel()
    async with running(app):
        await other.get(timeout=30)
        with pytest.raises(JobCancelled):
            await result.get(timeout=30)
    info = await result.info()
    assert notes.runs == {2: 1}
    assert info is not None
    assert (info.status, info.reason, info.tries) == (Status.CANCELLED, "cancelled", 0)


async def test_a_scheduled_job_that_is_cancelled_never_runs(app: App, notes: Notes) -> None:
    result = await notes.note.options(delay=0.1).delay(1)
    other = await notes.note.options(delay=0.2).delay(2)
    assert await result.cancel()
    async with running(app):
        await other.get(timeout=30)
    assert notes.runs == {2: 1}
    assert await result.status() is Status.CANCELLED


async def test_a_job_that_waits_for_its_retry_is_cancelled(app: App, notes: Notes) -> None:
    async with running(app):
        result = await notes.note.delay(-1)
        await aeventually(lambda: has_status(result, Status.RETRY))
        assert await result.cancel()
        with pytest.raises(JobCancelled):
            await result.get(timeout=30)
    assert notes.runs == {-1: 1}


@pytest.mark.parametrize("priority", ["high", "normal", "low"])
async def test_a_job_of_any_priority_is_cancelled(app: App, notes: Notes, priority: Any) -> None:
    result = await notes.note.options(priority=priority).delay(1)
    assert await result.cancel()
    async with running(app):
        assert await result.status() is Status.CANCELLED
    assert notes.runs == {}


async def test_a_job_is_cancelled_once(app: App, notes: Notes) -> None:
    result = await notes.note.delay(1)
    answers = await asyncio.gather(*(app.result(result.id).cancel() for _ in range(10)))
    assert answers.count(True) == 1


async def test_a_job_that_has_ended_is_not_cancelled_any_more(app: App, notes: Notes) -> None:
    async with running(app):
        result = await notes.note.delay(1)
        await result.get(timeout=30)
        assert not await result.cancel()
    assert await result.status() is Status.SUCCESS


async def test_cancelling_while_workers_take_jobs_leaves_each_job_either_run_or_cancelled(
    app: App, notes: Notes
) -> None:
    results = await notes.note.map(range(300))
    async with running(app, concurrency=4):
        cancelled = await asyncio.gather(*(result.cancel() for result in results[::2]))
        ends = await asyncio.gather(*(result.get(timeout=30) for result in results), return_exceptions=True)
    for result, end, (n, was_cancelled) in zip(results[::2], ends[::2], enumerate(cancelled), strict=True):
        assert isinstance(end, JobCancelled) == was_cancelled
        assert notes.runs[2 * n] == (0 if was_cancelled else 1)
        assert await result.status() is (Status.CANCELLED if was_cancelled else Status.SUCCESS)
    assert all(notes.runs[n] == 1 for n in range(1, 300, 2))


async def test_the_records_of_cancelled_jobs_expire(make_app: MakeApp, server: Server) -> None:
    app = make_app(failure_ttl=0.05, record_ttl=0.05)
    result = await Notes(app).note.delay(1)
    assert await result.cancel()
    age(server, 600)
    await aeventually(lambda: has_status(result, Status.UNKNOWN))


async def has_status(result: AsyncResult[None], status: Status) -> bool:
    return await result.status() is status
