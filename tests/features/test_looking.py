"""Looking at queues: since when jobs wait, what is due next, which jobs run, and where."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from fennelq import App, ConfigurationError, Progress, QueueInfo, RunningJob, Task, current_job
from fennelq.testing import Testing
from tests.kit.waiting import aeventually
from tests.kit.workers import running

CLOCKS_DIFFER = timedelta(minutes=5)


class Bakery:
    """Jobs that run until they may end."""

    def __init__(self, app: App) -> None:
        self.app, self.open, self.baking = app, asyncio.Event(), 0

        @app.task(name="shop:bake", queue="oven")
        async def bake(n: int) -> None:
            self.baking += 1
            await current_job().progress(n, 10, "loaves")
            await self.open.wait()

        self.bake: Task[[int], None] = bake

    @asynccontextmanager
    async def baking_jobs(self, number: int, queue: str = "oven") -> AsyncGenerator[list[str]]:
        """So many jobs run; their ids in the order in which they have started."""
        ids = [(await self.bake.options(queue=queue).delay(n)).id for n in range(number)]
        async with running(self.app):
            await aeventually(lambda: self.baking == number)
            yield ids
            self.open.set()


def waits_since(info: QueueInfo) -> timedelta:
    """How long the oldest job has waited."""
    assert info.at is not None
    assert info.waiting_since is not None
    return info.at - info.waiting_since


async def test_a_queue_tells_since_when_its_oldest_job_waits(t: Testing, app: App) -> None:
    task = Bakery(app).bake
    assert (await app.queues.info("oven")).waiting_since is None
    for priority in ("low", "high"):
        await task.options(priority=priority).delay(1)
    info = await app.queues.info("oven")
    assert timedelta() <= waits_since(info) < CLOCKS_DIFFER
    assert (info.next_due, info.newest_death) == (None, None)


async def test_a_queue_tells_when_its_next_job_is_due(t: Testing, app: App) -> None:
    task = Bakery(app).bake
    at = datetime(2100, 5, 1, 12, tzinfo=UTC)
    await task.options(at=at + timedelta(days=1)).delay(1)
    await task.options(at=at).delay(2)
    info = await app.queues.info("oven")
    assert (info.next_due, info.waiting_since, info.scheduled) == (at, None, 2)


async def test_a_queue_tells_when_its_newest_dead_job_died(t: Testing, app: App) -> None:
    @app.task(name="shop:burn", retries=0)
    async def burn() -> None:
        raise ValueError("too hot")

    await burn.delay()
    await t.run_until_idle()
    (letter,) = await app.dlq.list()
    info = await app.queues.info("default")
    assert (info.newest_death, info.dead) == (letter.died_at, 1)


async def test_the_jobs_that_run_are_listed_with_their_executor_time_and_progress(app: App) -> None:
    bakery = Bakery(app)
    async with bakery.baking_jobs(3) as ids:
        jobs = await app.queues.running("oven")
        assert {job.id for job in jobs} == set(ids)
        (executor,) = {job.owner for job in jobs}
        assert executor
        for job in jobs:
            assert (job.queue, job.task, job.tries, job.stopping, job.is_copy) == (
                "oven",
                "shop:bake",
                1,
                None,
                False,
            )
            assert job.started_at is not None
            assert abs(datetime.now(UTC) - job.started_at) < CLOCKS_DIFFER
            assert job.seconds >= 0
            assert job.silent >= 0

        async def all_have_reported() -> bool:
            progress = {job.progress for job in await app.queue("oven").running()}
            return progress == {Progress(n, 10, "loaves") for n in range(3)}

        await aeventually(all_have_reported)
    assert await app.queues.running("oven") == []


async def test_those_that_run_longest_come_first_over_all_queues(app: App) -> None:
    bakery = Bakery(app)
    async with bakery.baking_jobs(2) as first, running(app):
        for queue in ("a", "z"):
            await bakery.bake.options(queue=queue).delay(1)

        async def all_run() -> bool:
            return len(await app.queues.running()) == 4

        await aeventually(all_run)
        every = await app.queues.running()
        assert [job.seconds for job in every] == sorted((job.seconds for job in every), reverse=True)
        assert {job.id for job in every} >= set(first)
        assert {job.queue for job in every} == {"a", "oven", "z"}
        assert [job.id for job in await app.queues.running(limit=1)] == [every[0].id]
        assert len(await app.queues.running(limit=None)) == 4
        assert len(await app.queues.running("oven", limit=1)) == 1


async def test_it_works_without_an_event_loop(app: App) -> None:
    bakery = Bakery(app)
    async with bakery.baking_jobs(1) as (job,):
        for look in (app.sync.queues.running, app.sync.queue("oven").running):
            found: list[RunningJob] = await asyncio.to_thread(look)
            assert [one.id for one in found] == [job]


async def test_a_queue_name_that_is_not_valid_is_refused(app: App) -> None:
    with pytest.raises(ConfigurationError, match="'a b'"):
        await app.queues.running("a b")
