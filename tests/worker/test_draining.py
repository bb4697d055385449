"""Draining, with real processes: the jobs end, no successor starts, and the worker ends with its last executor."""

from __future__ import annotations

import asyncio

import psutil
import pytest

from fennelq import App, ExecutorInfo, ExecutorUnavailable, Status
from fennelq.manage.executors import asking
from tests.kit.ledger import Ledger
from tests.kit.processes import executors
from tests.kit.waiting import aeventually
from tests.worker import shop
from tests.worker.conftest import Workers
from tests.worker.shop import Gate, task_of

LONG = 30.0


async def working(app: App, number: int) -> list[ExecutorInfo]:
    """So many executors, as soon as all of them work."""

    async def found() -> list[ExecutorInfo] | None:
        some = [one for one in await app.executors.list() if one.state == "works"]
        return some if len(some) == number else None

    return await aeventually(found, within=LONG)


async def test_a_drained_executor_finishes_its_jobs_and_is_not_replaced(
    workers: Workers, app: App, gate: Gate, ledger: Ledger
) -> None:
    worker = workers("-p", "2", "-c", "2")
    crew = await working(app, 2)
    hold = task_of(app, shop.hold)
    results = await app.enqueue([hold.job(str(gate)) for _ in range(4)])
    await aeventually(lambda: len(ledger.read()) == 4, within=LONG)
    first, second = crew
    assert await app.executors.drain(first.name, grace=3600) == 2
    late = await app.enqueue([hold.job(str(gate)) for _ in range(2)])
    gate.open()
    for result in (*results, *late):
        assert await result.get(timeout=LONG) == 1
    await aeventually(lambda: [one.pid for one in executors(worker)] == [second.pid], within=LONG)
    assert {row.pid for row in ledger.read() if row.job_id in {one.id for one in late}} == {second.pid}
    drained = worker.wait_for("executor_drained", within=LONG)
    assert first.name in drained
    assert worker.running
    await app.executors.drain(second.name)
    assert await asyncio.to_thread(worker.returncode) == 0, "the worker ends with its last executor"
    assert "executor_crashed" not in worker.text


async def test_a_drained_executor_is_replaced_if_asked(workers: Workers, app: App, ledger: Ledger) -> None:
    worker = workers("-p", "1")
    (first,) = await working(app, 1)
    assert await app.executors.drain(first.name, replace=True) == 0

    async def second() -> ExecutorInfo | None:
        found = [one for one in await app.executors.list() if one.name != first.name]
        return found[0] if found else None

    successor = await aeventually(second, within=LONG)
    assert await (await task_of(app, shop.double).delay(2)).get(timeout=LONG) == 4
    assert {row.pid for row in ledger.read()} == {successor.pid}
    worker.term()
    assert worker.returncode() == 0


async def test_a_process_that_was_stopped_does_not_drain_later(
    workers: Workers, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The person was told that nothing was done."""
    worker = workers("-p", "1")
    (only,) = await working(app, 1)
    assert only.pid is not None
    assert (await app.executors.stacks(only.name)).stacks, "now it listens"
    monkeypatch.setattr(asking, "WITHIN", 1.0)
    process = psutil.Process(only.pid)
    process.suspend()
    try:
        with pytest.raises(ExecutorUnavailable, match="did not answer within 1 s"):
            await app.executors.drain(only.name)
    finally:
        process.resume()
    result = await task_of(app, shop.double).delay(3)
    assert await result.get(timeout=LONG) == 6
    assert await result.status() is Status.SUCCESS
    monkeypatch.setattr(asking, "WITHIN", LONG)
    assert (await app.executors.stacks(only.name)).executor == only.name
    assert [one.pid for one in executors(worker)] == [only.pid]
    assert "executor_drains" not in worker.text
    worker.term()
    assert worker.returncode() == 0
