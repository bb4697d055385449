"""Executors that make room for fresh ones: after a number of jobs, above a size; and nothing is left behind."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from fennelq import App, Status
from fennelq.broker.broker import Broker
from fennelq.worker.bus import StopAsked
from fennelq.worker.duties.recycler import Recycler
from fennelq.worker.executor import Executor
from fennelq.worker.processes.config import ExecutorConfig
from tests.kit.ledger import Ledger
from tests.kit.waiting import aeventually
from tests.worker import shop
from tests.worker.conftest import Workers
from tests.worker.shop import task_of
from tests.worker.states import published, state_of


@pytest.mark.parametrize("concurrency", [1, 4, 32])
async def test_an_executor_starts_exactly_as_many_jobs_as_it_may(app: App, concurrency: int) -> None:
    runs: list[int] = []

    @app.task
    async def note(n: int) -> int:
        runs.append(n)
        return n

    results = await note.map(range(200))
    executor = Executor(app, ExecutorConfig(concurrency=concurrency, max_jobs=50))
    async with asyncio.timeout(20):
        await executor.run()
    assert executor.recycled
    assert len(runs) == 50
    statuses = Counter([await result.status() for result in results])
    assert statuses == {Status.SUCCESS: 50, Status.SENT: 150}


async def test_an_executor_that_waits_when_its_last_job_comes_starts_no_other(app: App) -> None:
    """One at a time, each to a reader that sleeps."""

    @app.task
    async def note(n: int) -> int:
        return n

    executor = Executor(app, ExecutorConfig(concurrency=4, max_jobs=3))
    life = asyncio.create_task(executor.run())
    for n in range(3):
        assert await app.call(note.job(n), timeout=30) == n
    async with asyncio.timeout(20):
        await life
    assert executor.recycled
    late = await note.delay(7)
    assert await late.status() is Status.SENT


async def test_an_executor_that_is_asked_to_stop_is_not_recycled(app: App) -> None:
    executor = Executor(app, ExecutorConfig(concurrency=4, max_jobs=100))
    life = asyncio.create_task(executor.run())
    await aeventually(lambda: executor.state.connected)
    executor.stop()
    async with asyncio.timeout(20):
        await life
    assert not executor.recycled


async def test_an_executor_above_its_size_is_recycled_once(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, size = state_of(broker, config=ExecutorConfig(concurrency=4, max_rss=200)), [201]
    monkeypatch.setattr("fennelq.worker.duties.recycler.resident_bytes", lambda: size[0])
    asked, recycler = published(state, StopAsked), Recycler(state)
    await recycler.tick()
    assert asked == [], "it has done nothing yet"
    state.slots.take()
    size[0] = 200
    await recycler.tick()
    assert asked == []
    size[0] = 201
    await recycler.tick()
    await recycler.tick()
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("slots", "max_stuck", "few", "many"),
    [(8, None, 4, 5), (1, None, 0, 1), (2, None, 1, 2), (8, 0, 0, 1), (2, 7, 1, 2)],
)
async def test_an_executor_with_more_stuck_slots_than_it_may_have_is_recycled(
    broker: Broker, slots: int, max_stuck: int | None, few: int, many: int
) -> None:
    state = state_of(broker, config=ExecutorConfig(concurrency=slots), max_stuck=max_stuck)
    asked, recycler = published(state, StopAsked), Recycler(state)
    state.slots.stuck = few
    await recycler.tick()
    assert asked == []
    state.slots.stuck = many
    await recycler.tick()
    assert len(asked) == 1


# Processes


@pytest.mark.parametrize(("flags", "jobs"), [(("--max-jobs", "30"), 100), (("--max-rss", "1M"), 400)])
async def test_a_burst_goes_on_in_fresh_executors_until_nothing_is_left(
    workers: Workers, app: App, ledger: Ledger, flags: tuple[str, str], jobs: int
) -> None:
    """Even where the limit is below the size of an idle executor."""
    results = await app.enqueue([task_of(app, shop.nap).job(0.01) for _ in range(jobs)])
    worker = workers("--burst", *flags, "-c", "2")
    assert worker.returncode(60) == 0
    assert ledger.ends() == dict.fromkeys((result.id for result in results), 1)
    assert "executor_recycled" in worker.text
    assert "executor_crashed" not in worker.text


SOURCE = """
from fennelq import App
from tests.worker import shop

app = App("shop")
for function in (shop.hold, shop.nap):
    app.task(retries=0)(function)
"""


async def test_a_burst_goes_on_after_a_reload(
    workers: Workers, app: App, ledger: Ledger, gate: shop.Gate, tmp_path: Path
) -> None:
    """A source file changes in the middle: the executor stops in order, and its successor does the rest."""
    source = tmp_path / "project" / "reloaded.py"
    source.parent.mkdir()
    source.write_text(SOURCE)
    held = await task_of(app, shop.hold).delay(str(gate))
    results = [held, *await app.enqueue([task_of(app, shop.nap).job(0.001) for _ in range(20)])]
    worker = workers("--app-dir", str(source.parent), "-A", "reloaded:app", "--burst", "--reload", "-c", "1")
    await aeventually(lambda: len(ledger.starts()) == 1)
    source.write_text(f"{SOURCE}\n# changed\n")
    worker.wait_for("reloading")
    gate.open()
    assert worker.returncode(60) == 0
    assert ledger.ends() == dict.fromkeys((result.id for result in results), 1)
