"""An executor that falls over: nothing is handed back, and nothing that has ended is forgotten."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from fennelq import App, Status
from fennelq.broker.group_commit import GroupCommit
from fennelq.worker.executor import Executor
from fennelq.worker.processes.config import ExecutorConfig
from tests.kit.proxy import Proxy
from tests.kit.waiting import aeventually
from tests.worker import shop
from tests.worker.shop import Gate, task_of


def cancel_everything(others: set[asyncio.Task[Any]]) -> None:
    """As clean-up code does that believes to be alone on its loop."""
    for task in asyncio.all_tasks() - others - {asyncio.current_task()}:
        task.cancel()


@pytest.mark.audit(unfinished=True)
async def test_an_executor_that_is_cancelled_while_it_stops_renews_no_lease_afterwards(
    app: App, gate: Gate
) -> None:
    before = set(threading.enumerate())
    executor = Executor(app, ExecutorConfig(concurrency=2, grace=60))
    life = asyncio.create_task(executor.run())
    result = await task_of(app, shop.hold).delay(str(gate))
    await aeventually(lambda: executor.slots.taken == 1)
    executor.stop()
    await aeventually(lambda: executor.state.lease.answered)
    life.cancel()
    await asyncio.wait([life])
    assert life.cancelled()
    assert executor.state.lease.ended.is_set()
    watchdogs = [thread for thread in threading.enumerate() if thread.name == "fennelq-watchdog"]
    await aeventually(lambda: not any(thread.is_alive() for thread in watchdogs if thread not in before))
    assert await result.status() is Status.EXECUTING
    gate.open()


async def test_an_executor_that_is_cancelled_reports_what_it_has_counted(app: App) -> None:
    executor = Executor(app, ExecutorConfig(concurrency=2))
    life = asyncio.create_task(executor.run())
    assert await (await task_of(app, shop.double).delay(4)).get(timeout=30) == 8
    life.cancel()
    await asyncio.wait([life])
    assert [one.run.count for one in await app.times.list()] == [1]


async def test_outcomes_are_written_down_although_everything_is_cancelled_while_they_are_under_way(
    app: App, proxy: Proxy
) -> None:
    """Neither the batch under way nor the ones that wait behind it are forgotten."""
    others = asyncio.all_tasks()
    started: list[int] = []
    may_end = asyncio.Event()

    @app.task
    async def note(n: int) -> int:
        started.append(n)
        await may_end.wait()
        return n

    through = shop.with_tasks_of(app, redis_url=proxy.url)
    executor = Executor(through, ExecutorConfig(concurrency=8))
    life = asyncio.create_task(executor.run())
    results = await note.map(range(8))
    await aeventually(lambda: len(started) == 8)
    proxy.latency(50)  # so that a reply is under way for a while
    may_end.set()
    await aeventually(lambda: executor.workbench.backlog.busy)
    cancel_everything(others)
    await asyncio.wait([life])
    await through.close()
    assert [await result.get(timeout=30) for result in results] == list(range(8))


async def test_a_batch_that_is_cancelled_leaves_no_item_behind_it_waiting_for_ever() -> None:
    others = asyncio.all_tasks()
    begun = asyncio.Event()
    flushed: list[list[int]] = []

    async def flush(items: list[int]) -> list[int]:
        flushed.append(items)
        if len(flushed) == 1:
            begun.set()
            await asyncio.sleep(60)
        return items

    commits: GroupCommit[int, int] = GroupCommit(flush, 10)
    first = commits.submit(1)
    await begun.wait()
    second = commits.submit(2)
    cancel_everything(others)
    async with asyncio.timeout(20):
        assert await second == 2
    assert first.cancelled()
    assert flushed == [[1], [2]]


async def test_no_batch_is_flushed_for_callers_that_were_cancelled_with_it() -> None:
    others, begun = asyncio.all_tasks(), asyncio.Event()

    async def flush(items: list[int]) -> list[int]:
        begun.set()
        await asyncio.sleep(60)
        return items

    commits: GroupCommit[int, int] = GroupCommit(flush, 10)

    async def submit(item: int) -> int:
        return await commits.submit(item)

    callers = [asyncio.create_task(submit(1))]
    await begun.wait()
    callers.append(asyncio.create_task(submit(2)))
    await asyncio.sleep(0)
    cancel_everything(others)
    await asyncio.wait(callers)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == others


async def test_an_item_whose_batch_is_cancelled_before_it_began_is_flushed_with_the_next() -> None:
    others = asyncio.all_tasks()

    async def flush(items: list[int]) -> list[int]:
        return items

    commits: GroupCommit[int, int] = GroupCommit(flush, 10)
    first = commits.submit(1)
    cancel_everything(others)
    await asyncio.sleep(0)
    second = commits.submit(2)
    async with asyncio.timeout(20):
        assert (await first, await second) == (1, 2)
