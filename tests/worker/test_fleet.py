"""Several executors in one process: which of them a new job wakes, and what that costs the fleet."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from structlog.typing import EventDict

from fennelq import App
from fennelq.broker import verbs
from fennelq.broker.broker import Broker
from fennelq.broker.keys import GROUP, queue_keys
from fennelq.worker.bus import JobArrived
from fennelq.worker.executor import Executor
from tests.kit.apps import LocalApp
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.kit.workers import running

DEFAULT = queue_keys("shop", "default")
CALM: dict[str, Any] = {"lease": 60.0, "heartbeat_interval": 20.0}


@pytest.fixture
def only_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors look at their queues once, when they start. From then on only messages wake them."""
    monkeypatch.setattr("fennelq.worker.running.consumer.ROUND", 600.0)
    monkeypatch.setattr("fennelq.worker.running.consumer.UNHEARD_ROUND", 600.0)


@pytest.fixture
def redis_client(server: Server) -> Any:
    with server.client() as client:
        yield client


class Shop:
    """An app whose job notes its start."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.app: App = LocalApp("shop", redis_url=url, **settings)
        self.begun: list[str] = []
        self.may_end = asyncio.Event()
        self.may_end.set()

        @self.app.task(name="shop:note", retries=0)
        async def note(name: str) -> str:
            self.begun.append(name)
            await self.may_end.wait()
            return name

        self.note = note

    async def send(self, *names: str, **options: Any) -> None:
        await self.app.enqueue([self.note.options(**options).job(name) for name in names])


@pytest.fixture
async def calm(redis_url: str) -> AsyncIterator[Shop]:
    """A shop whose executors have little to do but their jobs."""
    shop = Shop(redis_url, **CALM)
    async with shop.app:
        yield shop


def sleep_at(client: Any, *executors: Executor, lane: str = "") -> bool:
    """Whether these executors sleep in each of their queues."""
    suffix = f":{lane}" if lane else ""
    return all(
        client.sismember(keys["idle"] + suffix, executor.name)
        for executor in executors
        for keys in executor.state.queues
    )


async def asleep(client: Any, *executors: Executor, lane: str = "", within: float = 10) -> None:
    await aeventually(
        lambda: (
            all(one.consumer.drained.is_set() for one in executors)
            and sleep_at(client, *executors, lane=lane)
        ),
        within=within,
        every=0.02,
    )


# Who is woken


@pytest.mark.both_servers
async def test_a_job_does_not_wake_an_executor_that_does_not_read_its_lane(
    calm: Shop, redis_client: Any, only_messages: None
) -> None:
    async with running(calm.app, priorities=["high"]) as high, running(calm.app) as every:
        for number in range(30):
            await asleep(redis_client, high, lane="s:high")
            await asleep(redis_client, every)
            await calm.send(str(number))
            await aeventually(lambda: len(calm.begun) == number + 1)  # noqa: B023
        assert high.state.held.done == 0
        await asleep(redis_client, every)
        # A job of high priority may wake either of them.
        await calm.send("high", priority="high")
        await aeventually(lambda: calm.begun[-1] == "high")


@pytest.mark.both_servers
async def test_a_burst_wakes_as_many_executors_as_it_needs(
    calm: Shop, redis_client: Any, only_messages: None
) -> None:
    calm.may_end.clear()
    async with AsyncExitStack() as stack:
        fleet = [await stack.enter_async_context(running(calm.app, concurrency=2)) for _ in range(5)]
        await asleep(redis_client, *fleet)
        await calm.send(*map(str, range(10)))
        await aeventually(lambda: len(calm.begun) == 10)
        assert [executor.slots.taken for executor in fleet] == [2] * 5
        calm.may_end.set()
    assert sorted(calm.begun) == sorted(map(str, range(10)))


async def test_a_single_job_is_asked_for_by_one_executor(
    calm: Shop, redis_client: Any, only_messages: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        fleet = [await stack.enter_async_context(running(calm.app)) for _ in range(5)]
        await asleep(redis_client, *fleet)
        calls = counted_scripts(monkeypatch)
        await calm.send("a")
        await aeventually(lambda: calm.begun)
        await asleep(redis_client, *fleet)
        assert calls["fetch"] == 1


async def test_no_job_of_a_later_queue_starts_while_one_of_an_earlier_queue_waits(
    calm: Shop, redis_client: Any, only_messages: None
) -> None:
    async with running(calm.app, queues="a,b", concurrency=2) as executor:
        await asleep(redis_client, executor)
        first = [f"a{n}" for n in range(20)]
        await calm.send(*first, queue="a")
        await calm.send(*(f"b{n}" for n in range(10)), queue="b")
        await aeventually(lambda: len(calm.begun) == 30)
        assert sorted(calm.begun[:20]) == sorted(first)

        # While jobs of b run and more of them wait, jobs of a arrive: they are next.
        await asleep(redis_client, executor)
        calm.may_end.clear()
        calm.begun.clear()
        await calm.send(*(f"b{n}" for n in range(10)), queue="b")
        await aeventually(lambda: len(calm.begun) == 2)
        woken: list[JobArrived] = []
        executor.state.bus.subscribe(JobArrived, woken.append)
        await calm.send(*first, queue="a")
        # Until the message has arrived, the executor cannot know of them.
        await aeventually(lambda: any(fact.queue == "a" for fact in woken))
        calm.may_end.set()
        await aeventually(lambda: len(calm.begun) == 30)
        assert {name[0] for name in calm.begun[:2]} == {"b"}
        assert sorted(calm.begun[2:22]) == sorted(first)


def counted_scripts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The scripts that brokers on an event loop run from now on."""
    calls = Counter[str]()
    run = Broker.run

    async def noted(broker: Broker, verb: Any, *args: Any) -> Any:
        calls[verb.script.name] += 1
        return await run(broker, verb, *args)

    monkeypatch.setattr(Broker, "run", noted)
    return calls


@pytest.mark.both_servers
async def test_a_delayed_job_costs_the_fleet_a_few_scripts(
    calm: Shop, redis_client: Any, only_messages: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six executors serve 200 queues. Their next looks are several seconds away."""
    await calm.app.client.ask(verbs.queues.note_queues("shop", [f"q{n:03}" for n in range(200)]))
    async with AsyncExitStack() as stack:
        fleet = [await stack.enter_async_context(running(calm.app)) for _ in range(6)]
        await aeventually(lambda: all(len(one.state.queues) == 201 for one in fleet))
        await asleep(redis_client, *fleet, within=20)
        calls = counted_scripts(monkeypatch)
        await calm.send("later", queue="q100", delay=0.3)
        await aeventually(lambda: calm.begun == ["later"])
        assert calls["promote"] >= 1
        assert calls["fetch"] >= 1
        assert calls.total() <= 20, calls


# Patterns


async def test_the_queues_that_fit_a_pattern_are_served_also_those_that_appear_later(
    redis_url: str, redis_client: Any
) -> None:
    shop = Shop(redis_url, heartbeat_interval=0.1)
    async with shop.app:
        await shop.send("other", queue="other")
        await shop.send("mail", queue="mail")
        await shop.send("a", queue="mail.a")
        async with running(shop.app, queues="mail.*") as executor:
            await aeventually(lambda: shop.begun == ["a"])
            await shop.send("b", queue="mail.b")
            await aeventually(lambda: shop.begun == ["a", "b"])
            await asleep(redis_client, executor)
            assert {keys.queue for keys in executor.state.queues} == {"mail.a", "mail.b"}
            await shop.send("b again", queue="mail.b")
            await aeventually(lambda: shop.begun == ["a", "b", "b again"])
        async with running(shop.app, queues="other,mail"):
            await aeventually(lambda: len(shop.begun) == 5)


async def test_a_strict_list_may_contain_patterns(redis_url: str) -> None:
    shop = Shop(redis_url, heartbeat_interval=0.1)
    async with shop.app:
        for queue in ("mail.b", "urgent", "mail.a", "z"):
            await shop.send(*[queue] * 3, queue=queue)
        async with running(shop.app, queues="urgent,mail.*,z", concurrency=1) as executor:
            await aeventually(lambda: len(shop.begun) == 12, within=10)
        assert list(executor.state.routing.weights) == ["urgent", "mail.a", "mail.b", "z"]
    # Until the queues of the pattern are known, the executor serves those that are named.
    assert shop.begun[:3] == ["urgent"] * 3
    assert Counter(shop.begun) == dict.fromkeys(("urgent", "mail.a", "mail.b", "z"), 3)


async def test_an_executor_serves_a_thousand_queues(
    calm: Shop, redis_client: Any, only_messages: None
) -> None:
    queues = [f"mail.{n:04}" for n in range(1000)]
    await calm.app.client.ask(verbs.queues.note_queues("shop", queues))
    async with running(calm.app, queues="mail.*", concurrency=32) as executor:
        await aeventually(lambda: len(executor.state.queues) == 1000)
        await asleep(redis_client, executor, within=30)
        await calm.app.enqueue([calm.note.options(queue=queue).job(queue) for queue in queues])
        await aeventually(lambda: len(calm.begun) == 1000, within=30)
        assert sorted(calm.begun) == queues


async def test_the_queues_of_a_pattern_in_a_strict_list_share_its_place(redis_url: str) -> None:
    shop = Shop(redis_url)
    async with shop.app:
        await shop.app.client.ask(verbs.queues.note_queues("shop", ["mail.a", "mail.b", "urgent"]))
        shop.may_end.clear()
        async with running(shop.app, queues="urgent,mail.*", concurrency=1) as executor:
            await aeventually(lambda: len(executor.state.queues) == 3)
            await shop.send("first", queue="urgent")
            await aeventually(lambda: shop.begun == ["first"])
            for queue in ("mail.a", "mail.b"):
                await shop.send(*[queue] * 20, queue=queue)
            await shop.send(*["urgent"] * 5, queue="urgent")
            shop.may_end.set()
            await aeventually(lambda: len(shop.begun) == 46, within=15)
    assert shop.begun[1:6] == ["urgent"] * 5
    taken = Counter(shop.begun[6:26])
    assert abs(taken["mail.a"] - taken["mail.b"]) <= 2, taken


async def test_an_executor_of_five_thousand_queues_takes_a_job_of_any_of_them_before_it_has_looked_at_all(
    redis_url: str, redis_client: Any
) -> None:
    """A round of all these queues takes 50 seconds."""
    shop = Shop(redis_url, **CALM)
    queues = [f"q{n:04}" for n in range(5000)]
    async with shop.app:
        for start in range(0, len(queues), 1000):
            await shop.app.client.ask(verbs.queues.note_queues("shop", queues[start : start + 1000]))
        async with running(shop.app) as executor:
            await aeventually(lambda: len(executor.state.bells) == 5001, within=30)
            await shop.send("first", queue="q0000")
            await aeventually(lambda: shop.begun == ["first"])
            await shop.send("late", queue="q4999")
            await aeventually(lambda: shop.begun == ["first", "late"])
            stopping = time.monotonic()
        assert time.monotonic() - stopping < 10
    used = [queue for queue in queues if redis_client.exists(queue_keys("shop", queue)["s"])]
    assert used == ["q0000", "q4999"]
    for queue in used:
        assert redis_client.xinfo_consumers(queue_keys("shop", queue)["s"], GROUP) == []


async def test_an_executor_that_stops_closes_its_consumers_only_where_it_has_taken_jobs(
    calm: Shop, redis_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(calm.app, queues="a:1,b:1,c:1") as executor:
        await asleep(redis_client, executor)
        await calm.send("b", queue="b")
        await aeventually(lambda: calm.begun == ["b"])
        assert executor.state.read == {"b"}
        calls = counted_scripts(monkeypatch)
    assert calls["close"] == 1
    assert [redis_client.exists(queue_keys("shop", queue)["idle"]) for queue in "abc"] == [0, 0, 0]
    assert redis_client.xinfo_consumers(queue_keys("shop", "b")["s"], GROUP) == []


# What goes wrong


@pytest.mark.both_servers
async def test_without_the_right_to_subscribe_jobs_start_and_the_log_says_so_once(
    server: Server, redis_url: str, redis_client: Any, logged: list[EventDict]
) -> None:
    redis_client.execute_command("ACL", "SETUSER", "deaf", "on", ">pw", "~*", "+@all", "resetchannels")
    sender = Shop(redis_url)
    worker = Shop(server.url.replace("redis://", "redis://deaf:pw@"))
    async with sender.app, worker.app, running(worker.app) as executor:
        for number in range(4):
            sent = time.monotonic()
            await sender.send(str(number))
            await aeventually(lambda: len(worker.begun) == number + 1)  # noqa: B023
            assert time.monotonic() - sent < 2.0
        assert (executor.state.listening, executor.state.hears_all) == (False, False)
        assert redis_client.exists(DEFAULT["idle"]) == 0
    troubles = [line for line in logged if line["event"] == "trouble"]
    assert [(line["what"], "NOPERM" in line["error"]) for line in troubles] == [("listening", True)]
    redis_client.execute_command("ACL", "DELUSER", "deaf")
