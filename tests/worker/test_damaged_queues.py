"""A queue with a key of the wrong type is left alone and named; every other queue is served as if it were not there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis
from structlog.typing import EventDict

from fennelq import App, FennelqError, Status
from fennelq.broker import verbs
from fennelq.broker.broker import Broker
from fennelq.broker.key_kinds import TYPES
from fennelq.broker.keys import GROUP, QueueKeys, queue_keys
from fennelq.manage.queues.queues import Queues
from fennelq.model.lifetimes import Lifetimes
from fennelq.worker.duties.janitor import Janitor
from fennelq.worker.duties.promoter import Promoter
from fennelq.worker.duties.recovery import Recovery
from tests.kit.jobs import sent
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.kit.workers import running
from tests.worker import shop
from tests.worker.states import Beating, state_of

pytestmark = pytest.mark.audit(skip="a key was spoiled on purpose")

BAD = queue_keys("shop", "bad")
LIFETIMES = Lifetimes(record_ms=60_000, failure_ms=60_000)


@pytest.fixture
def redis_client(server: Server) -> Iterator[redis.Redis]:
    with server.client() as client:
        yield client


def spoil(client: redis.Redis, name: str, keys: QueueKeys = BAD) -> None:
    """Put a text where another type belongs."""
    client.delete(keys[name])
    client.set(keys[name], "by mistake")


STREAMS_AND_SETS = [name for name, kind in TYPES.items() if kind in ("stream", "zset") and name != "iso"]


@pytest.mark.parametrize("name", STREAMS_AND_SETS)
async def test_the_jobs_of_other_queues_run_although_a_key_of_one_is_of_the_wrong_type(
    app: App, redis_client: redis.Redis, name: str
) -> None:
    @app.task(queue="bad")
    async def of_the_bad(n: int) -> int:
        return n

    @app.task(queue="good")
    async def of_the_good(n: int) -> int:
        return n + 1

    spoil(redis_client, name)
    async with running(app, concurrency=2):
        for _ in range(3):  # asleep or busy, each round finds the reader in another place
            results = await of_the_good.map(range(30))
            assert [await result.get(timeout=30) for result in results] == list(range(1, 31))


async def test_a_queue_is_served_again_when_its_key_is_put_right(app: App, redis_client: redis.Redis) -> None:
    @app.task(queue="bad")
    async def note(n: int) -> int:
        return n

    spoil(redis_client, "s:low")
    async with running(app):
        await aeventually(lambda: complained(app))
        assert await (await note.delay(6)).get(timeout=30) == 6, "its other lanes can be read"
        redis_client.delete(BAD["s:low"])
        result = await note.options(priority="low").delay(7)
        assert await result.get(timeout=30) == 7


async def test_a_queue_whose_pause_is_of_the_wrong_type_is_not_served_until_that_is_put_right(
    app: App, redis_client: redis.Redis, logged: list[EventDict]
) -> None:
    """It is unknown whether its jobs may start. Other queues are served."""

    @app.task(queue="bad")
    async def of_the_bad(n: int) -> int:
        return n

    @app.task(queue="good")
    async def of_the_good(n: int) -> int:
        return n + 1

    left = await of_the_bad.delay(1)
    redis_client.rpush(BAD["paused"], "by mistake")
    with pytest.raises(FennelqError, match=r"Redis refused job bad:.* WRONGTYPE .*paused should be a string"):
        await of_the_bad.delay(2)
    async with running(app, concurrency=2):
        await aeventually(lambda: complained(app))
        assert await (await of_the_good.delay(1)).get(timeout=30) == 2
        assert (await left.status(), await left.info()) != (Status.SUCCESS, None)
        await aeventually(lambda: any(BAD["paused"] in str(line.get("damage")) for line in logged))
        redis_client.delete(BAD["paused"])
        assert await left.get(timeout=30) == 1


async def complained(app: App) -> bool:
    return (await Queues(app).info("bad")).damage != ""


async def test_a_queue_that_is_damaged_while_its_jobs_run_delays_the_outcomes_of_no_other(
    app: App, redis_client: redis.Redis
) -> None:
    may_end = asyncio.Event()
    started: list[str] = []

    @app.task
    async def hold(name: str) -> str:
        started.append(name)
        await may_end.wait()
        return name

    bad = [await hold.options(queue="bad").delay(f"bad {n}") for n in range(4)]
    good = [await hold.options(queue="good").delay(f"good {n}") for n in range(4)]
    async with running(app, concurrency=8):
        await aeventually(lambda: len(started) == 8)
        spoil(redis_client, "dlq")
        may_end.set()
        assert [await result.get(timeout=30) for result in good] == [f"good {n}" for n in range(4)]
        assert {await result.status() for result in bad} == {Status.EXECUTING}
        more = await hold.options(queue="good").map([f"more {n}" for n in range(40)])
        assert [await result.get(timeout=30) for result in more] == [f"more {n}" for n in range(40)]
        redis_client.delete(BAD["dlq"])
        assert [await result.get(timeout=30) for result in bad] == [f"bad {n}" for n in range(4)]


async def test_large_outcomes_of_a_damaged_queue_take_no_room_from_other_queues(
    make_large: App, redis_client: redis.Redis
) -> None:
    """Together they are larger than all that may wait to be written."""
    app, size = make_large, 1 << 20
    may_end = asyncio.Event()
    started: list[int] = []

    @app.task(queue="bad")
    async def large(n: int) -> str:
        started.append(n)
        await may_end.wait()
        return chr(97 + n) * (size - 10)

    @app.task(queue="good")
    async def small(n: int) -> int:
        return n

    bad = await large.map(range(24))
    async with running(app, concurrency=32):
        await aeventually(lambda: len(started) == 24)
        spoil(redis_client, "dlq")
        may_end.set()
        good = await small.map(range(100))
        assert [await result.get(timeout=30) for result in good] == list(range(100))
        redis_client.delete(BAD["dlq"])
        assert [await result.get(timeout=30) for result in bad] == [
            chr(97 + n) * (size - 10) for n in range(24)
        ]


@pytest.fixture
async def make_large(redis_url: str) -> AsyncIterator[App]:
    async with shop.app_of(redis_url=redis_url, max_payload_bytes=1 << 20) as app:
        yield app


async def test_the_log_names_the_key_and_what_to_do(
    app: App, redis_client: redis.Redis, logged: list[EventDict]
) -> None:
    @app.task(queue="bad")
    async def note() -> None: ...

    spoil(redis_client, "s:high")
    async with running(app):
        line = await aeventually(lambda: next((one for one in logged if "damage" in one), None))
    assert line["queue"] == "bad"
    assert line["damage"] == f"{BAD['s:high']} is a string and should be a stream: rename or delete it"


async def test_info_names_the_damaged_key_and_counts_the_other_queues(
    app: App, redis_client: redis.Redis
) -> None:
    @app.task(queue="good")
    async def note() -> None: ...

    await note.delay()
    await app.client.ask(verbs.queues.note_queues("shop", ["bad"]))
    spoil(redis_client, "retry")
    infos = {info.name: info for info in await Queues(app).list()}
    assert infos["bad"].damage == f"{BAD['retry']} is a string and should be a zset: rename or delete it"
    assert (infos["good"].waiting, infos["good"].damage) == (1, "")


# Duties


GOOD = queue_keys("shop", "good")


async def two_queues(broker: Broker, **given: Any) -> None:
    """A job in each."""
    for keys in (BAD, GOOD):
        job = sent(keys.queue, "1", "shop:note", **given)
        await broker.run(verbs.jobs.enqueue(keys, [job]))


@pytest.mark.parametrize("name", ["sched", "retry", "turn"])
async def test_due_jobs_of_other_queues_are_promoted(
    broker: Broker, redis_client: redis.Redis, name: str
) -> None:
    await two_queues(broker, at_ms=1)
    spoil(redis_client, name)
    await Promoter(state_of(broker, BAD, GOOD)).tick()
    assert await broker.ask(verbs.queues.length(GOOD, "s")) == 1


async def test_jobs_of_other_queues_are_recovered(broker: Broker, redis_client: redis.Redis) -> None:
    await two_queues(broker)
    fetch = verbs.runs.fetch(GOOD, consumer="dead", free=1, lanes=["s"], lifetimes=LIFETIMES)
    await broker.run(fetch)
    make_silent(redis_client, "dead")
    spoil(redis_client, "dlq")
    await recovery(broker).tick()
    assert redis_client.xpending(GOOD["s"], GROUP)["pending"] == 0
    assert await broker.ask(verbs.queues.length(GOOD, "s")) == 1


def make_silent(client: redis.Redis, consumer: str) -> None:
    """As if the owner of the good queue's job had not been heard of for a minute."""
    found: Any = client.xrange(GOOD["s"], count=1)
    client.xclaim(GOOD["s"], GROUP, consumer, 0, [found[0][0]], idle=60_000, justid=True)


def recovery(broker: Broker) -> Recovery:
    state = state_of(broker, BAD, GOOD, lease=2)
    state.lease = Beating(int(time.time() * 1000))
    return Recovery(state)


async def test_the_dead_of_other_queues_are_kept_in_bounds(broker: Broker, redis_client: redis.Redis) -> None:
    await two_queues(broker)
    redis_client.xadd(GOOD["dlq"], {"i": "7"})
    spoil(redis_client, "dlq")
    await Janitor(state_of(broker, BAD, GOOD, dlq_max_len=0)).tick()
    assert await broker.ask(verbs.queues.length(GOOD, "dlq")) == 0


async def test_leases_of_other_queues_are_renewed(app: App, redis_client: redis.Redis) -> None:
    may_end = asyncio.Event()

    @app.task(queue="good")
    async def hold() -> str:
        await may_end.wait()
        return "kept"

    await app.client.ask(verbs.queues.note_queues("shop", ["bad"]))
    result = await hold.delay()
    async with running(app) as executor:
        await aeventually(lambda: executor.slots.taken == 1)
        await aeventually(lambda: {"bad", "good"} <= {keys.queue for keys in executor.state.queues})
        spoil(redis_client, "iso")
        spoil(redis_client, "s")
        make_silent(redis_client, executor.name)
        await aeventually(lambda: idle_ms(redis_client) < 30_000)
        assert executor.state.lease.answered
        may_end.set()
        assert await result.get(timeout=30) == "kept"


async def test_a_queue_that_the_user_may_not_touch_stops_nothing_of_the_others(
    server: Server, redis_client: redis.Redis, logged: list[EventDict]
) -> None:
    """Reading, leases, promotion and recovery: each asks for every queue, and is refused for one."""
    redis_client.acl_setuser(
        "worker",
        enabled=True,
        passwords=["+secret"],
        categories=["+@all"],
        keys=["fq:{shop/good}*", "fq:{shop/default}*", "fq:{shop}*"],
        channels=["fq:*"],
    )
    app = shop.app_of(redis_url=server.url.replace("redis://", "redis://worker:secret@"), lease=2)
    may_end = asyncio.Event()

    @app.task(queue="good")
    async def hold(n: int) -> int:
        await may_end.wait()
        return n

    await app.client.ask(verbs.queues.note_queues("shop", ["bad"]))
    due = await hold.options(delay=0.05).delay(1)
    async with app, running(app) as executor:
        await aeventually(lambda: executor.slots.taken == 1)
        make_silent(redis_client, executor.name)
        await aeventually(lambda: idle_ms(redis_client) < 30_000)
        result = await hold.delay(2)
        await aeventually(lambda: executor.slots.taken == 2)
        assert executor.state.lease.answered
        await aeventually(
            lambda: any(line.get("queue") == "bad" and "looks_again_in" in line for line in logged)
        )
        assert executor.state.connected
        may_end.set()
        assert [await due.get(timeout=30), await result.get(timeout=30)] == [1, 2]


def idle_ms(client: redis.Redis) -> int:
    found: Any = client.xpending_range(GOOD["s"], GROUP, "-", "+", 1)
    return int(found[0]["time_since_delivered"])
