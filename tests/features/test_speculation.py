"""Speculation: a run that takes much longer than usual gets a second copy, and the first success ends the job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fennelq import App, AsyncResult, AsyncTask, ConfigurationError, Status
from fennelq.broker.verbs.runs import Settled
from fennelq.model.outcome import succeeded
from fennelq.worker.bus import RunsEnded
from fennelq.worker.duties import speculator
from fennelq.worker.executor import Executor
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.kit.workers import running
from tests.worker.test_tally import delivery


class Runs:
    """The runs of one job, in the order in which they began. The first one hangs until it is stopped or let go."""

    def __init__(self) -> None:
        self.begun, self.began = 0, asyncio.Event()
        self.stopped = asyncio.Event()
        self.both = asyncio.Event()
        self.go = asyncio.Event()

    async def __call__(self) -> int:
        self.begun += 1
        self.began.set()
        number = self.begun
        if number == 2:
            self.both.set()
            return await self.second()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.stopped.set()
            raise
        return number

    async def second(self) -> int:
        """What the second run does."""
        return 2


def speculating(app: App, runs: Callable[[], Any], **options: Any) -> AsyncTask[[], int]:
    async def fetch_page() -> int:
        value: int = await runs()
        return value

    return app.task(name="shop:fetch_page", idempotent=True, speculate=0.95, **options)(fetch_page)


class Pair:
    """Two executors. They know each other, and that a run of a millisecond is usual when `go_on` returns."""

    def __init__(self, server: Server, app: App, executors: list[Executor]) -> None:
        self.executors, self._server = executors, server
        self._idle = f"fq:{{{app.namespace}/default}}:idle"

    async def go_on(self) -> None:
        """Both sleep by now: an executor that is about to read could take the second copy of its own job."""
        names = {executor.name.encode() for executor in self.executors}
        with self._server.client() as client:
            await aeventually(lambda: client.smembers(self._idle) == names)
        usual = [Settled(delivery("shop:fetch_page"), succeeded(b"1", 1000), 0.001)] * 100
        for executor in self.executors:
            executor.state.note_colleagues(2)
            executor.state.bus.publish(RunsEnded("default", usual))

    async def both_run(self, task: AsyncTask[[], int], runs: Runs) -> AsyncResult[int]:
        """Send a job; returns when its second run has begun, while the first one goes on."""
        result = await task.delay()
        await runs.began.wait()
        await self.go_on()
        await asyncio.wait_for(runs.both.wait(), 20)
        return result


@asynccontextmanager
async def two_executors(app: App, server: Server, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Pair]:
    monkeypatch.setattr(speculator, "INTERVAL", 0.01)
    async with running(app) as first, running(app) as second:
        yield Pair(server, app, [first, second])


def stats(server: Server, app: App) -> dict[str, int]:
    with server.client() as client:
        found: Any = client.hgetall(f"fq:{{{app.namespace}/default}}:stats")
    return {name.decode(): int(number) for name, number in found.items()}


async def test_a_job_whose_run_hangs_is_ended_by_a_second_run_in_another_executor(
    app: App, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs()
    task = speculating(app, runs)
    async with two_executors(app, server, monkeypatch) as pair:
        result = await task.delay()
        await runs.began.wait()
        await pair.go_on()
        assert await result.get(timeout=30) == 2
        # The first run is told that it has lost, long before its lease is looked at.
        await asyncio.wait_for(runs.stopped.wait(), 20)
        await aeventually(lambda: all(executor.slots.taken == 0 for executor in pair.executors))
    doubled, outrun = await result.history()
    assert (doubled.what, outrun.what) == ("doubled", "outrun")
    assert doubled.owner == outrun.owner in {executor.name for executor in pair.executors}
    counts = stats(server, app)
    assert (counts["S"], counts["doubled"], counts["twin_first"]) == (1, 1, 1)
    assert runs.begun == 2


async def test_the_first_run_may_still_win(app: App, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs()
    lost = asyncio.Event()

    async def second() -> int:
        runs.go.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            lost.set()
            raise
        return 2

    monkeypatch.setattr(runs, "second", second)
    task = speculating(app, runs)
    async with two_executors(app, server, monkeypatch) as pair:
        result = await task.delay()
        await runs.began.wait()
        await pair.go_on()
        assert await result.get(timeout=30) == 1
        await asyncio.wait_for(lost.wait(), 20)
    assert stats(server, app)["S"] == 1
    assert "twin_first" not in stats(server, app)


async def test_a_second_run_that_fails_costs_no_try_and_the_first_one_goes_on(
    app: App, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs()

    async def second() -> int:
        raise ValueError("no such page")

    monkeypatch.setattr(runs, "second", second)
    task = speculating(app, runs, retries=0)
    async with two_executors(app, server, monkeypatch) as pair:
        result = await pair.both_run(task, runs)
        await aeventually(lambda: sum(executor.slots.taken for executor in pair.executors) == 1)
        runs.go.set()
        assert await result.get(timeout=30) == 1
    assert [(line.what, line.more) for line in await result.history()] == [
        ("doubled", None),
        ("failed", "ValueError"),
    ]
    counts = stats(server, app)
    assert (counts["S"], counts.get("D", 0), counts.get("R", 0)) == (1, 0, 0)


async def test_a_cancelled_job_stops_in_both_executors(
    app: App, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, second_stopped = Runs(), asyncio.Event()

    async def second() -> int:
        try:
            await asyncio.Event().wait()
        finally:
            second_stopped.set()
        return 2

    monkeypatch.setattr(runs, "second", second)
    task = speculating(app, runs)
    async with two_executors(app, server, monkeypatch) as pair:
        result = await pair.both_run(task, runs)
        assert await result.cancel()
        await asyncio.wait_for(runs.stopped.wait(), 20)
        await asyncio.wait_for(second_stopped.wait(), 20)
    assert await result.status() is Status.CANCELLED


async def test_an_executor_that_stops_leaves_the_job_to_the_other_one(
    app: App, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs()
    second_may_end = asyncio.Event()

    async def second() -> int:
        await second_may_end.wait()
        return 2

    monkeypatch.setattr(runs, "second", second)
    task = speculating(app, runs)
    async with two_executors(app, server, monkeypatch) as pair:
        result = await pair.both_run(task, runs)
        info = await result.info()
        assert info is not None
        (first,) = [executor for executor in pair.executors if executor.name == info.owner]
        first.stop(now=True)
        await asyncio.wait_for(runs.stopped.wait(), 20)
        second_may_end.set()
        assert await result.get(timeout=30) == 2
    assert runs.begun == 2
    assert stats(server, app)["S"] == 1


# Declaring it


async def test_a_task_that_speculates_must_be_idempotent(app: App) -> None:
    with pytest.raises(ConfigurationError, match="write idempotent=True as well"):
        app.task(speculate=0.95)


@pytest.mark.parametrize("part", [0, 1, 95, -0.5, True, "p95", float("nan")])
async def test_a_part_that_is_no_part_is_refused(app: App, part: Any) -> None:
    with pytest.raises(ConfigurationError, match="more than 0 and less than 1"):
        app.task(idempotent=True, speculate=part)


async def test_idempotent_is_a_yes_or_a_no(app: App) -> None:
    with pytest.raises(ConfigurationError, match="True or False, not 'yes'"):
        app.task(idempotent="yes")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]


async def test_an_idempotent_task_that_does_not_speculate_is_like_any_other(app: App) -> None:
    app.task(name="shop:plain", idempotent=True)(print)
    assert app.speculating == {}
