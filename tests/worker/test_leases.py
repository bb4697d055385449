"""Leases: an executor that works keeps its jobs, whatever the server's clock does; one that is silent loses them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

import pytest
from structlog.typing import EventDict

from fennelq import App
from fennelq.broker import verbs
from fennelq.broker.blocking import BlockingBroker
from fennelq.broker.broker import Broker
from fennelq.broker.connection import address_of
from fennelq.broker.keys import QueueKeys, queue_keys
from fennelq.model.lifetimes import Lifetimes
from fennelq.worker.executor import Executor
from fennelq.worker.threads.heartbeat import BeatResult, Heartbeat
from fennelq.worker.threads.lease import Beaten, Lease
from tests.kit.apps import LocalApp
from tests.kit.clock import ServerClock
from tests.kit.waiting import aeventually, eventually
from tests.kit.workers import running
from tests.worker.states import state_of

LEASE = 1.0
JOBS_LEASE = 2.0
"""Where jobs are at stake: a busy machine may hold up a heartbeat for a second."""


# The clock of the server


class Counting(Heartbeat):
    """Counts its rounds."""

    number = 0

    def beat(self) -> BeatResult:
        found = super().beat()
        self.number += 1
        return found


class Beats:
    """A heartbeat that holds nothing, and how many beats there were."""

    def __init__(self, url: str, keys: QueueKeys) -> None:
        state = state_of(Broker(address_of(url)), keys, lease=LEASE, heartbeat_interval=0.02)
        self.lease = state.lease
        self.heart = Counting(state, BlockingBroker(address_of(url)))

    def some_more(self, number: int = 3) -> None:
        """Returns when there were so many more."""
        enough = self.heart.number + number
        eventually(lambda: self.heart.number >= enough)


@contextmanager
def beating(url: str, keys: QueueKeys) -> Generator[Beats]:
    beats = Beats(url, keys)
    beats.heart.start()
    try:
        yield beats
    finally:
        beats.heart.end()


@pytest.fixture
def beats(redis_url: str, mail: QueueKeys) -> Iterator[Beats]:
    """A heartbeat that has become steady."""
    with beating(redis_url, mail) as beats:
        eventually(lambda: beats.lease.steady)
        yield beats


@pytest.mark.parametrize("ms", [400, 5_000, 3_600_000, -400, -5_000])
def test_an_executor_that_sees_the_servers_clock_jump_is_not_steady_for_a_lease(
    beats: Beats, server_clock: ServerClock, ms: int, logged: list[EventDict]
) -> None:
    server_clock.jump(ms)
    eventually(lambda: not beats.lease.steady, every=0.005)
    eventually(lambda: beats.lease.steady)
    (line,) = [line for line in logged if line["event"] == "server_clock_jumped"]
    assert abs(line["seconds"] - ms / 1000) < LEASE / 2


def test_a_clock_that_is_adjusted_a_little_changes_nothing(
    beats: Beats, server_clock: ServerClock, logged: list[EventDict]
) -> None:
    for ms in (100, -100, 100):
        server_clock.jump(ms)
        beats.some_more()
    assert [line for line in logged if line["event"] == "server_clock_jumped"] == []


def test_a_difference_that_a_slow_round_trip_explains_does_not_count_as_a_jump() -> None:
    before = Beaten(server_ms=10_000, sent=1.0, answered=3.0)
    assert Beaten(11_000, 4.0, 4.1).jump_since(before) == 0
    assert Beaten(13_100, 4.0, 4.1).jump_since(before) == pytest.approx(0)
    assert Beaten(13_600, 4.0, 4.1).jump_since(before) == pytest.approx(0.5)
    assert Beaten(10_400, 4.0, 4.1).jump_since(before) == pytest.approx(-0.6)


@pytest.mark.parametrize("lease", [1, 1.5, 2, 3, 15, 600])
def test_one_lost_reply_to_a_heartbeat_costs_no_lease(lease: float) -> None:
    """The interval, the time to give up the reply, the pause after trouble: then the next attempt is on its way."""
    beat = lease / 4
    assert beat + Lease(lease, beat).reply_timeout + min(0.5, beat) < 0.9 * lease


# Jobs


class Shop:
    """Jobs that run until they may end, and what was started."""

    def __init__(self) -> None:
        self.starts = Counter[int]()
        self.may_end = asyncio.Event()

    def app_of(self, url: str, **settings: Any) -> App:
        app = LocalApp("shop", redis_url=url, lease=JOBS_LEASE, **settings)

        @app.task(name="shop:double")
        async def double(n: int) -> int:
            self.starts[n] += 1
            await self.may_end.wait()
            return 2 * n

        return app

    def job(self, app: App, n: int) -> Any:
        return app.tasks["shop:double"].job(n)


@asynccontextmanager
async def two_executors(shop: Shop, url: str) -> AsyncGenerator[tuple[App, list[Executor]]]:
    """One that beats and sweeps very often, and one that beats as seldom as it may."""
    hasty = shop.app_of(url, heartbeat_interval=0.02, maintenance_interval=0.02)
    calm = shop.app_of(url, heartbeat_interval=0.66)
    async with AsyncExitStack() as stack:
        for app in (hasty, calm):
            await stack.enter_async_context(app)
        yield hasty, [await stack.enter_async_context(running(app, concurrency=8)) for app in (hasty, calm)]


def all_steady(executors: list[Executor]) -> bool:
    return all(executor.state.lease.steady for executor in executors)


def taken_and_forgotten(url: str, keys: QueueKeys, number: int) -> list[str]:
    """An executor takes so many jobs, and is heard of no more."""
    broker = BlockingBroker(address_of(url))
    lifetimes = Lifetimes(60_000, 60_000)
    catch = broker.run(verbs.runs.fetch(keys, consumer="gone", free=number, lanes=["s"], lifetimes=lifetimes))
    broker.close()
    return [delivery.id for delivery in catch.deliveries]


def stats_of(url: str) -> Callable[[], dict[str, int]]:
    app = LocalApp("shop", redis_url=url)
    return lambda: app.blocking.ask(verbs.queues.stats(queue_keys("shop", "default")))


@pytest.mark.parametrize("ms", [3_000, 3_600_000, -3_600_000])
async def test_when_the_servers_clock_is_set_only_the_jobs_of_the_dead_are_taken_away(
    redis_url: str, server_clock: ServerClock, ms: int
) -> None:
    """N11. The server's clock is set three times, forward or back, under two executors with eight jobs each."""
    shop, stats = Shop(), stats_of(redis_url)
    async with two_executors(shop, redis_url) as (app, executors):
        results = await app.enqueue([shop.job(app, n) for n in range(16)])
        await aeventually(lambda: len(shop.starts) == 16)
        assert [executor.slots.taken for executor in executors] == [8, 8]
        for _ in range(3):
            await aeventually(lambda: all_steady(executors))
            server_clock.jump(ms)
            await aeventually(
                lambda: not any(executor.state.lease.steady for executor in executors), within=20
            )
        await aeventually(lambda: all_steady(executors))
        assert shop.starts == dict.fromkeys(range(16), 1)
        assert await asyncio.to_thread(stats) == {}

        # An executor that really died: the same sweeps find it.
        orphans = await app.enqueue([shop.job(app, n) for n in range(100, 104)])
        taken = await asyncio.to_thread(taken_and_forgotten, redis_url, queue_keys("shop", "default"), 4)
        assert sorted(taken) == sorted(orphan.id for orphan in orphans)
        shop.may_end.set()
        values = [await result.get(timeout=30) for result in (*results, *orphans)]
    assert values == [2 * n for n in (*range(16), *range(100, 104))]
    assert shop.starts == dict.fromkeys((*range(16), *range(100, 104)), 1)
    assert (await asyncio.to_thread(stats))["recovered"] == 4


async def test_after_a_jump_forward_an_executor_that_died_before_it_is_found(
    redis_url: str, server_clock: ServerClock
) -> None:
    shop, keys = Shop(), queue_keys("shop", "default")
    shop.may_end.set()
    app = shop.app_of(redis_url)
    async with app:
        orphan = await app.enqueue([shop.job(app, 21)])
        assert len(await asyncio.to_thread(taken_and_forgotten, redis_url, keys, 1)) == 1
        server_clock.jump(60_000)
        async with running(app):
            assert await orphan[0].get(timeout=30) == 42
    assert shop.starts == {21: 1}
