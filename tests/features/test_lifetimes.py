"""Lifetimes: nothing unneeded is kept for ever."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, cast

import pytest
import redis

from fennelq import App, Job, RetryPolicy, Task, current_job
from fennelq.broker.key_kinds import KEY_KINDS
from fennelq.broker.keys import APPS, STREAMS, queue_keys
from tests.features.conftest import MakeApp
from tests.kit.ageing import age
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.kit.workers import running

BRIEFLY: Final[dict[str, Any]] = {
    "result_ttl": 1,
    "failure_ttl": 1,
    "record_ttl": 1,
    "dlq_max_age": 1,
    "maintenance_interval": 0.1,
}
KINDS = 10

NO_DIARIES: Final = {"latency_tracking": "no", "slowlog_log_slower_than": "-1"}
"""A server remembers slow calls, and 25 kB of latencies for every command it ever ran: half of all its memory
here, and more with each command that is new. That is not what jobs leave behind."""


class Shop:
    """Tasks of every fate."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.ran = Counter[str]()

        @app.task
        async def double(n: int) -> int:
            self.ran["double"] += 1
            return 2 * n

        @app.task(queue="mail")
        async def note(n: int) -> None:
            self.ran["note"] += 1

        @app.task(retry=RetryPolicy.fixed(1, delay=0.01))
        async def stumble(n: int) -> str:
            if current_job().tries == 1:
                raise ValueError("once")
            self.ran["stumble"] += 1
            return "in the end"

        @app.task(retries=0)
        async def die(n: int) -> None:
            self.ran["die"] += 1
            raise ValueError("for good")

        self.double: Task[[int], int] = double
        self.note: Task[[int], None] = note
        self.stumble: Task[[int], str] = stumble
        self.die: Task[[int], None] = die

    def jobs(self, number: int) -> Iterator[Job[object]]:
        """Jobs of ten kinds, in turn."""
        for n in range(number // KINDS):
            yield self.double.job(n)
            yield self.double.options(priority="high", result_ttl=0).job(n)
            yield self.double.options(key=f"double:{n}").job(n)
            yield self.double.options(key=f"briefly:{n}", ttl=1).job(n)
            yield self.note.job(n)
            yield self.note.options(delay=0.5, priority="low").job(n)
            yield self.note.options(expires=0.001).job(n)
            yield self.stumble.options(headers={"n": str(n)}).job(n)
            yield self.die.job(n)
            yield self.double.options(delay=500).job(n)  # these will be cancelled


@pytest.mark.parametrize("number", [20_000, pytest.param(100_000, marks=pytest.mark.slow)])
async def test_after_jobs_of_every_fate_the_streams_are_empty_and_the_memory_is_given_back(
    make_app: MakeApp, server: Server, number: int
) -> None:
    app = make_app(**BRIEFLY)
    shop = Shop(app)
    with server.configured(**NO_DIARIES), server.client() as client:
        client.config_resetstat()
        async with running(app, concurrency=100):
            await run(shop, 1000)
            await aeventually(lambda: age(server, 200) >= 0 and only_permanent_keys(client))
            before = memory(client)
            shop.ran.clear()
            await run(shop, number)
            share = number // KINDS
            assert shop.ran["double"] == 4 * share
            assert shop.ran["note"] >= 2 * share
            assert (shop.ran["stumble"], shop.ran["die"]) == (share, share)
            await aeventually(lambda: age(server, 200) >= 0 and only_permanent_keys(client), within=30)
            await aeventually(lambda: memory(client) < 1.05 * before)
            for _ in range(5):
                await asyncio.sleep(0.2)  # to have dipped below it once is not enough
                assert memory(client) < 1.05 * before
        for queue in ("default", "mail"):
            keys = queue_keys("shop", queue)
            assert [client.xlen(keys[stream]) for stream in STREAMS] == [0] * len(STREAMS)
            assert client.xlen(keys["dlq"]) == 0


async def run(shop: Shop, number: int) -> None:
    """Send so many, cancel every tenth, wait for the others to end."""
    results = await shop.app.enqueue(list(shop.jobs(number)))
    doomed = results[KINDS - 1 :: KINDS]
    assert all(await asyncio.gather(*(result.cancel() for result in doomed)))
    share = number // KINDS
    want = {"double": 4 * share, "stumble": share, "die": share}
    await aeventually(
        lambda: all(shop.ran[kind] >= n for kind, n in want.items()) and shop.ran["note"] >= 2 * share,
        within=100,
    )


async def test_a_replay_works_as_long_as_the_dead_letter_queue_lists_the_job(
    make_app: MakeApp, server: Server
) -> None:
    """However short everything else is kept: record, arguments and headers are there until the entry goes."""
    app = make_app(**{**BRIEFLY, "dlq_max_age": 3600, "failure_ttl": 0.05, "record_ttl": 0.05})
    broken = True

    @app.task(retries=0)
    async def charge(n: int) -> tuple[int, str]:
        if broken:
            raise ValueError
        return n, current_job().headers["request"]

    async with running(app):
        result = await charge.options(headers={"request": "r-1"}, key="charge:7").delay(7)
        await aeventually(lambda: listed(app))
        age(server, 3000)
        await asyncio.sleep(0.2)  # the passing of time is what this is about
        assert await listed(app)
        broken = False
        assert (await app.dlq.replay()).replayed == 1
        assert await result.get(timeout=30) == (7, "r-1")


async def test_what_the_dead_letter_queue_no_longer_lists_is_gone_altogether(
    make_app: MakeApp, server: Server
) -> None:
    app = make_app(dlq_max_len=3, maintenance_interval=0.1)

    @app.task(retries=0)
    async def die(n: int) -> None:
        raise ValueError(n)

    with server.client() as client:
        async with running(app):
            await app.enqueue([die.options(key=f"die:{n}").job(n) for n in range(10)])
            await aeventually(lambda: trimmed_to(app, 3))
        kept = [letter.id.partition(":")[2] for letter in await app.dlq.list()]
        prefix = app.client.keys("default").prefix
        records = [key.decode() for key in cast("list[bytes]", client.keys(f"{prefix}j:*"))]
        assert sorted(records) == sorted(f"{prefix}j:{key}" for key in kept)
        assert len(client.keys(f"{prefix}idem:*")) == 3
        assert {(await app.dlq.get(f"default:{key}")) is not None for key in kept} == {True}


async def trimmed_to(app: App, number: int) -> bool:
    from fennelq.broker import verbs

    stats = await app.client.ask(verbs.queues.stats(app.client.keys("default")))
    return stats.get("D") == 10 and await app.dlq.count() == number


async def listed(app: App) -> bool:
    return await app.dlq.count() == 1


def only_permanent_keys(client: redis.Redis) -> bool:
    """Whether SCAN finds nothing but the keys that are always there, and the guard of this very interval's sweep."""
    names = {name for kind in KEY_KINDS if kind.permanent for name in kind.pattern.split(", ")} | {"swept"}
    permanent = {f"fq:{{shop}}:{name.removeprefix('{app} ')}" for name in names if name.startswith("{app}")}
    permanent.add(APPS)
    permanent |= {f"fq:{{shop/{queue}}}:{name}" for queue in ("default", "mail") for name in names}
    others = {key.decode() for key in cast("Iterator[bytes]", client.scan_iter(count=1000))} - permanent
    assert not others, f"{len(others)}, like {sorted(others)[:5]}"
    return True


def memory(client: redis.Redis) -> int:
    return int(client.info("memory")["used_memory"])
