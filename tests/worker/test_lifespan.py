"""The lifespan of an app: entered before the first job, left after the last; what jobs share is left with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from fennelq import App, Depends, Shared, Status, TaskFailed
from fennelq.worker.executor import Executor
from fennelq.worker.processes.config import LIFESPAN_FAILED
from tests.kit.apps import LocalApp
from tests.kit.waiting import aeventually
from tests.kit.workers import running
from tests.worker.conftest import Workers

Lifespan = Callable[[App], AsyncIterator[Any]]


def app_with(lifespan: Lifespan, redis_url: str) -> App:
    return LocalApp("shop", redis_url=redis_url, lifespan=lifespan, stop_grace=0.05)


async def test_the_lifespan_is_entered_before_the_first_job_and_left_after_the_last(redis_url: str) -> None:
    lines: list[str] = []

    async def pool() -> AsyncIterator[str]:
        lines.append("pool entered")
        yield "pool"
        lines.append("pool left")

    async def resources(app: App, pool: str = Shared(pool)) -> AsyncIterator[str]:
        lines.append(f"{app.name} entered with {pool}")
        yield "resources"
        assert app.state == "resources"
        lines.append("lifespan left")

    async def client(resources: str = Shared(resources)) -> AsyncIterator[str]:
        yield f"client of {resources}"
        lines.append("client left")

    async with app_with(resources, redis_url) as app:

        @app.task
        async def work(client: str = Shared(client)) -> list[str]:
            lines.append("job")
            return [app.state, client]

        result = await work.delay()
        async with running(app):
            assert await result.get(timeout=30) == ["resources", "client of resources"]
        with pytest.raises(AttributeError, match=r"app\.state is the value of the lifespan"):
            _ = app.state
    assert lines == [
        "pool entered",
        "shop entered with pool",
        "job",
        "client left",
        "lifespan left",
        "pool left",
    ]


@pytest.mark.parametrize("error", [ConnectionError("no database"), SystemExit("no database")], ids=repr)
async def test_a_lifespan_that_fails_ends_the_executor_with_its_error_and_no_job_is_read(
    redis_url: str, error: BaseException
) -> None:
    left: list[str] = []

    async def pool() -> AsyncIterator[None]:
        yield
        left.append("pool")

    async def broken(app: App, pool: None = Shared(pool)) -> AsyncIterator[None]:
        raise error
        yield

    async with app_with(broken, redis_url) as app:
        job = await app.task(name="shop:work")(asyncio.sleep).delay(0)
        executor = Executor(app)
        with pytest.raises(type(error), match="no database"):
            await executor.run()
        assert executor.lifespan_failed
        assert await job.status() is Status.SENT
        assert left == ["pool"]
        await job.cancel()


async def test_an_executor_that_is_stopped_while_its_lifespan_begins_ends_in_order(redis_url: str) -> None:
    began, lines = asyncio.Event(), list[str]()

    async def slow(app: App) -> AsyncIterator[None]:
        began.set()
        try:
            await asyncio.Event().wait()
            yield
        finally:
            lines.append("left")

    async with app_with(slow, redis_url) as app:
        executor = Executor(app)
        life = asyncio.create_task(executor.run())
        await began.wait()
        executor.stop()
        await life
        assert (executor.lifespan_failed, lines) == (False, ["left"])


async def test_a_lifespan_can_be_overridden(redis_url: str) -> None:
    async def resources(app: App) -> AsyncIterator[str]:
        raise AssertionError("a test must not need this")
        yield "real"

    async def fake() -> AsyncIterator[str]:
        yield "fake"

    async with app_with(resources, redis_url) as app:

        @app.task
        async def work(resources: str = Shared(resources)) -> list[str]:
            return [app.state, resources]

        with app.overrides({resources: fake}):
            async with running(app):
                assert await (await work.delay()).get(timeout=30) == ["fake", "fake"]


async def test_a_provider_that_ignores_every_request_to_stop_is_given_up(redis_url: str) -> None:
    """U13. Its outcome is settled once, its slot stays taken until it ends, and its neighbours go on."""
    release = asyncio.Event()

    async def stubborn() -> AsyncIterator[None]:
        yield
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                pass

    async with LocalApp("shop", redis_url=redis_url, stop_grace=0.01, default_retries=0) as app:

        @app.task
        async def work(_: None = Depends(stubborn)) -> int:
            return 1

        @app.task
        async def neighbour() -> int:
            return 2

        async with running(app, concurrency=4) as executor:
            job = await work.delay()
            try:
                with pytest.raises(
                    TaskFailed, match="the providers of the task did not end within stop_grace"
                ):
                    await job.get(timeout=30)
                assert executor.slots.stuck == 1
                assert await (await neighbour.delay()).get(timeout=30) == 2
            finally:
                release.set()
            await aeventually(lambda: executor.slots.taken == 0)
            assert executor.slots.stuck == 0
            info = await job.info()
            assert info is not None
            assert (info.status, info.reason, info.tries) == (Status.DEAD, "timeout", 1)


BROKEN = """
from collections.abc import AsyncIterator
from fennelq import App

async def resources(app: App) -> AsyncIterator[None]:
    raise ConnectionError("no database")
    yield

app = App("shop", lifespan=resources)
"""


async def test_the_supervisor_reports_a_lifespan_that_fails(workers: Workers, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    worker = workers("-p", "1", app="broken:app", PYTHONPATH=str(tmp_path))
    assert "ConnectionError: no database" in worker.wait_for("lifespan_failed")
    assert "its lifespan failed" in worker.wait_for("executor_crashed")
    assert LIFESPAN_FAILED not in (0, 1)
