"""What is not written yet is bounded, in outcomes and in bytes, however slowly Redis takes it."""

from __future__ import annotations

import asyncio

import pytest

from fennelq import App
from fennelq.worker.running.settler import MOST_UNSETTLED_BYTES, Backlog, Share
from tests.kit.proxy import Proxy
from tests.kit.workers import running
from tests.worker import shop


async def ready(*waiting: asyncio.Task[None]) -> list[bool]:
    """Which of them have got room, after every task has had its turn."""
    for _ in range(3):
        await asyncio.sleep(0)
    return [task.done() for task in waiting]


async def test_an_outcome_beyond_the_number_waits_until_one_is_written() -> None:
    backlog = Backlog(2, 1000)
    share = Share()
    assert [backlog.admits(share, 1), backlog.admits(share, 1), backlog.admits(share, 1)] == [
        True,
        True,
        False,
    ]
    third = asyncio.create_task(backlog.room(share, 1))
    assert await ready(third) == [False]
    backlog.remove(share, 1, 1)
    assert await ready(third) == [True]
    assert (backlog.jobs, backlog.bytes) == (2, 2)


async def test_an_outcome_beyond_the_bytes_waits_and_a_larger_one_than_all_goes_alone() -> None:
    backlog = Backlog(10, 100)
    share = Share()
    assert [backlog.admits(share, 60), backlog.admits(share, 41), backlog.admits(share, 40)] == [
        True,
        False,
        True,
    ]
    large = asyncio.create_task(backlog.room(share, 500))
    assert await ready(large) == [False]
    backlog.remove(share, 1, 60)
    assert await ready(large) == [False]
    backlog.remove(share, 1, 40)
    assert await ready(large) == [True]
    assert (backlog.jobs, backlog.bytes) == (1, 500)


async def test_outcomes_get_room_in_the_order_in_which_they_ask() -> None:
    """A small one does not overtake a large one, or the large one might wait for ever."""
    backlog = Backlog(10, 100)
    share = Share()
    backlog.add(share, 1, 60)
    large, small = asyncio.create_task(backlog.room(share, 50)), asyncio.create_task(backlog.room(share, 10))
    assert await ready(large, small) == [False, False]
    assert not backlog.admits(share, 1)
    backlog.remove(share, 1, 60)
    assert await ready(large, small) == [True, True]


async def test_the_room_of_one_lets_in_one() -> None:
    backlog = Backlog(1, 100)
    share = Share()
    backlog.add(share, 1, 10)
    first, second = asyncio.create_task(backlog.room(share, 10)), asyncio.create_task(backlog.room(share, 10))
    await ready(first, second)
    backlog.remove(share, 1, 10)
    assert not backlog.admits(share, 10)
    assert await ready(first, second) == [True, False]
    backlog.remove(share, 1, 10)
    assert await ready(second) == [True]
    assert backlog.jobs == 1


@pytest.mark.parametrize("let_in", [False, True])
async def test_one_that_is_cancelled_takes_no_room(let_in: bool) -> None:
    backlog = Backlog(1, 100)
    share = Share()
    backlog.add(share, 1, 10)
    first, second = asyncio.create_task(backlog.room(share, 10)), asyncio.create_task(backlog.room(share, 20))
    await ready(first, second)
    if let_in:
        backlog.remove(share, 1, 10)
    first.cancel()
    if not let_in:
        backlog.remove(share, 1, 10)
    assert await ready(first, second) == [True, True]
    assert first.cancelled()
    assert (backlog.jobs, backlog.bytes) == (1, 20)


async def test_the_outcomes_of_a_blocked_queue_take_no_room_from_others() -> None:
    backlog, bad, good = Backlog(2, 100), Share(), Share()
    assert [backlog.admits(bad, 60), backlog.admits(good, 60)] == [True, False]
    late = asyncio.create_task(backlog.room(bad, 60))
    other = asyncio.create_task(backlog.room(good, 60))
    assert await ready(late, other) == [False, False]
    backlog.block(bad)
    assert await ready(late, other) == [True, True]
    assert (backlog.jobs, backlog.bytes) == (1, 60)
    assert backlog.admits(bad, 1000)
    backlog.remove(good, 1, 60)
    assert backlog.busy, "the outcomes of the blocked queue are still to be written"
    backlog.unblock(bad)
    assert (backlog.jobs, backlog.bytes) == (3, 1120)
    assert not backlog.admits(good, 1)
    backlog.remove(bad, 3, 1120)
    assert not backlog.busy


async def test_an_outcome_for_which_there_is_room_does_not_wait() -> None:
    backlog, share = Backlog(1, 100), Share()
    first = asyncio.create_task(backlog.room(share, 10))
    assert await ready(first) == [True]
    assert (backlog.jobs, backlog.bytes) == (1, 10)


async def test_one_that_is_cancelled_is_in_nothing_elses_way() -> None:
    backlog, share = Backlog(10, 100), Share()
    backlog.add(share, 2, 60)
    sizes = (80, 45, 30)
    large, second, third = [asyncio.create_task(backlog.room(share, size)) for size in sizes]
    assert await ready(large, second, third) == [False, False, False]
    large.cancel()
    await ready(large)
    assert large.cancelled()
    backlog.remove(share, 1, 30)
    assert await ready(second, third) == [True, False]
    backlog.remove(share, 1, 30)
    assert await ready(third) == [True]
    assert (backlog.jobs, backlog.bytes) == (2, 75)


async def test_everything_that_waits_for_a_blocked_queue_is_let_in_and_nothing_else() -> None:
    backlog, bad, good = Backlog(10, 100), Share(), Share()
    backlog.add(good, 2, 90)
    backlog.add(bad, 1, 10)
    waiting = [(bad, 60), (good, 20), (bad, 5)]
    first, second, third = [asyncio.create_task(backlog.room(*one)) for one in waiting]
    assert await ready(first, second, third) == [False, False, False]
    backlog.block(bad)
    assert await ready(first, second, third) == [True, False, True]
    assert (backlog.jobs, backlog.bytes) == (2, 90)
    backlog.remove(good, 1, 40)
    assert await ready(second) == [True], "what was let in is in the way of what waits"
    assert (backlog.jobs, backlog.bytes) == (2, 70)


async def test_a_backlog_is_busy_while_a_blocked_queue_has_outcomes() -> None:
    backlog, before, meanwhile = Backlog(10, 100), Share(), Share()
    backlog.add(before, 1, 10)
    backlog.block(before)
    assert (backlog.jobs, backlog.busy) == (0, True)
    backlog.remove(before, 1, 10)
    assert not backlog.busy
    backlog.block(meanwhile)
    backlog.add(meanwhile, 1, 10)
    assert (backlog.jobs, backlog.busy) == (0, True)
    backlog.remove(meanwhile, 1, 10)
    assert not backlog.busy


async def test_an_executor_holds_few_large_results_although_writing_is_slower_than_reading(
    app: App, proxy: Proxy
) -> None:
    """A script call takes one result of this size and any number of jobs: with a round trip of 20 ms, jobs are read
    several times as fast as their results are written."""
    jobs, slots, size = 150, 8, 1 << 20
    started: list[int] = []

    @app.task
    async def large(n: int) -> str:
        started.append(n)
        return chr(97 + n % 26) * (size - 10)

    through = shop.with_tasks_of(app, redis_url=proxy.url, max_payload_bytes=size)
    results = await large.map(range(jobs))
    proxy.latency(10)
    most_held = most_jobs = most_bytes = 0
    async with running(through, concurrency=slots) as executor:
        bench = executor.workbench
        while len(started) < jobs:
            most_held = max(most_held, len(executor.state.held.tokens()))
            most_jobs, most_bytes = max(most_jobs, bench.backlog.jobs), max(most_bytes, bench.backlog.bytes)
            await asyncio.sleep(0.002)
        values = [await result.get(timeout=60) for result in results[::10]]
    await through.close()
    assert slots < most_jobs <= 2 * slots
    assert most_held <= 3 * slots
    assert most_bytes <= MOST_UNSETTLED_BYTES
    assert values == [chr(97 + n % 26) * (size - 10) for n in range(0, jobs, 10)]
