"""`app.jobs` and `app.executors`: what an operator asks about single jobs and about the processes that run them."""

from __future__ import annotations

import asyncio

import pytest

from fennelq import App, InvalidJobId, JobAnswer, JobEnd, ResultExpired, ResultTimeout, Status, Task
from fennelq.broker.keys import queue_keys
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.kit.workers import running


class Shop:
    """A task that succeeds, and one that fails until it is repaired."""

    def __init__(self, app: App) -> None:
        self.app, self.broken = app, True

        @app.task
        async def double(n: int) -> int:
            return 2 * n

        @app.task(retries=0)
        async def charge(n: int) -> int:
            if self.broken:
                raise ValueError("no such card")
            return n

        self.double: Task[[int], int] = double
        self.charge: Task[[int], int] = charge


@pytest.fixture
def shop(app: App) -> Shop:
    return Shop(app)


async def test_a_job_is_looked_at_by_its_id(shop: Shop) -> None:
    result = await shop.double.delay(1)
    info = await shop.app.jobs.info(result.id)
    assert info is not None
    assert (info.id, info.status, info.task) == (result.id, Status.SENT, shop.double.name)
    assert info == await asyncio.to_thread(shop.app.sync.jobs.info, result.id)
    assert await shop.app.jobs.history(result.id) == []
    assert await shop.app.jobs.info("default:unknown") is None
    with pytest.raises(InvalidJobId):
        await shop.app.jobs.info("no id")


async def test_a_job_is_cancelled_while_it_has_not_started(shop: Shop) -> None:
    jobs, result = shop.app.jobs, await shop.double.delay(1)
    assert await jobs.cancel(result.id) == JobAnswer(result.id, True, "cancelled")
    assert await jobs.cancel(result.id) == JobAnswer(result.id, False, "too late: CANCELLED")
    assert await jobs.cancel("default:x") == JobAnswer("default:x", False, "unknown", known=False)
    other = await shop.double.delay(2)
    answer = await asyncio.to_thread(shop.app.sync.jobs.cancel, other.id)
    assert answer == JobAnswer(other.id, True, "cancelled")


async def test_the_end_of_a_job_is_a_value_well_or_not(shop: Shop) -> None:
    good, bad = await shop.double.delay(21), await shop.charge.delay(7)
    with pytest.raises(ResultTimeout):
        await shop.app.jobs.wait(good.id, timeout=0)
    with pytest.raises(ResultExpired):
        await shop.app.jobs.wait("default:unknown", timeout=30)
    async with running(shop.app):
        assert await shop.app.jobs.wait(good.id, timeout=30) == JobEnd(good.id, Status.SUCCESS, 42)
        end = await shop.app.jobs.wait(bad.id, timeout=30)
        assert (end.status, end.result) == (Status.DEAD, None)
        assert "no such card" in (end.error or "")
        assert end == await asyncio.to_thread(shop.app.sync.jobs.wait, bad.id, 5)
        assert (await asyncio.to_thread(shop.app.sync.jobs.wait, good.id, 5)).result == 42


async def test_a_dead_job_is_retried_and_no_other(shop: Shop, server: Server) -> None:
    jobs = shop.app.jobs
    dead = await shop.charge.options(key="order:1").delay(7)
    async with running(shop.app):
        await jobs.wait(dead.id, timeout=30)
        shop.broken = False
        assert await jobs.retry(dead.id) == JobAnswer(dead.id, True, "replayed")
        assert (await jobs.wait(dead.id, timeout=30)).result == 7
        assert await jobs.retry(dead.id) == JobAnswer(dead.id, False, "not dead: SUCCESS")
        answer = await asyncio.to_thread(shop.app.sync.jobs.retry, "default:unknown")
        assert answer == JobAnswer("default:unknown", False, "unknown", known=False)


@pytest.mark.audit(skip="the key was stolen from a dead job's record")
async def test_a_dead_job_whose_key_is_taken_stays_dead(shop: Shop, server: Server) -> None:
    dead = await shop.charge.options(key="order:1").delay(7)
    async with running(shop.app):
        await shop.app.jobs.wait(dead.id, timeout=30)
    with server.client() as client:
        client.delete(queue_keys("shop", "default").idempotency(f"{shop.charge.name}:order:1"))
    await shop.charge.options(key="order:1").delay(8)
    answer = await shop.app.jobs.retry(dead.id)
    assert answer == JobAnswer(dead.id, False, "its idempotency key is taken by another job")


async def test_the_executors_are_listed_while_they_work_and_after_they_have_stopped(shop: Shop) -> None:
    assert await shop.app.executors.list() == []
    async with running(shop.app) as executor:
        await aeventually(lambda: works(shop.app, executor.name))
        (found,) = await asyncio.to_thread(shop.app.sync.executors.list)
        assert (found.name, found.state, found.facts["concurrency"]) == (executor.name, "works", 8)
    assert await shop.app.executors.list() == []


async def works(app: App, name: str) -> bool:
    return [(one.name, one.state) for one in await app.executors.list()] == [(name, "works")]
