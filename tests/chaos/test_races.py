"""Many clients that want the same thing at once: a replay, a key, a result, a cancellation. And jobs that arrive while
executors go to sleep, are full, stop, or reconnect."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from typing import Any, Final, TypeVar

import pytest

from fennelq import (
    App,
    AsyncResult,
    JobCancelled,
    ResultExpired,
    RetryPolicy,
    Status,
    TaskFailed,
    current_job,
)
from fennelq.broker import verbs
from fennelq.broker.keys import QueueKeys, queue_keys
from fennelq.broker.verb import Command, Verb, as_is
from tests.chaos import scale
from tests.chaos.conftest import Figure
from tests.chaos.sleepers import LOOK, Starts, all_asleep, executors, summary
from tests.kit.ageing import age
from tests.kit.proxy import Proxy
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.kit.workers import running

T = TypeVar("T")

pytestmark = [
    pytest.mark.usefixtures("quiet"),
    pytest.mark.timeout(scale.of(300, long=600)),
    *scale.servers(),
]

WITHIN: Final = 60.0
KEYS: Final = queue_keys("shop", "default")


class Shop:
    """One task with any number of clients, and what its jobs did."""

    def __init__(self) -> None:
        self.begun, self.ended = Counter[int](), Counter[int]()
        self.broken = False
        self.gate = asyncio.Event()
        self.gate.set()

    def app_of(self, url: str, **settings: Any) -> App:
        app = App("shop", redis_url=url, schedule_interval=0.02, heartbeat_interval=0.1, **settings)

        @app.task(name="shop:double", retries=0)
        async def double(n: int) -> int:
            self.begun[n] += 1
            await self.gate.wait()
            if self.broken:
                raise ValueError(n)
            self.ended[n] += 1
            return 2 * n

        @app.task(name="shop:stumble", retry=RetryPolicy.fixed(1, delay=0.02))
        async def stumble(n: int) -> int:
            self.begun[n] += 1
            if current_job().tries == 1:
                raise ConnectionError("the first try fails")
            self.ended[n] += 1
            return 2 * n

        @app.task(name="shop:last", retries=0)
        async def last(n: int, seconds: float) -> int:
            self.begun[n] += 1
            await asyncio.sleep(seconds)
            if n % 10 == 0:
                raise ValueError(n)
            self.ended[n] += 1
            return 2 * n

        return app


@pytest.fixture
async def clients(redis_url: str) -> AsyncIterator[Callable[..., Awaitable[tuple[Shop, list[App]]]]]:
    """`await clients(8)`: a shop and so many clients of it, each with connections of its own."""
    async with AsyncExitStack() as stack:

        async def make(number: int, **settings: Any) -> tuple[Shop, list[App]]:
            shop = Shop()
            apps = [shop.app_of(redis_url, **settings) for _ in range(number)]
            return shop, [await stack.enter_async_context(app) for app in apps]

        yield make


Clients = Callable[..., Awaitable[tuple[Shop, list[App]]]]


def task(app: App, name: str = "double") -> Any:
    return app.tasks[f"shop:{name}"]


async def soon(awaited: Awaitable[T]) -> T:
    async with asyncio.timeout(WITHIN):
        return await awaited


async def end_of(result: AsyncResult[Any]) -> Any:
    """The value, or the class of what was raised."""
    try:
        return await result.get(timeout=WITHIN)
    except (JobCancelled, TaskFailed, ResultExpired) as error:
        return type(error)


def stats_of(server: Server) -> Counter[str]:
    with server.client() as client:
        found: Any = client.hgetall(KEYS["stats"])
    return Counter({name.decode(): int(value) for name, value in found.items()})


def lengths_of_results(server: Server, results: list[AsyncResult[Any]]) -> Counter[int]:
    """How many results are stored of each job: length → jobs."""
    with server.client() as client, client.pipeline(transaction=False) as pipe:
        for result in results:
            pipe.llen(KEYS.result(result.id.partition(":")[2]))
        return Counter(pipe.execute())


# The dead-letter queue


async def test_clients_that_replay_the_same_dead_jobs_at_once_make_each_run_once(
    clients: Clients, server: Server, figure: Figure
) -> None:
    """D7. DLQ replay at once: 8 clients × 200 entries are 200 replays, and 200 runs with their own results."""
    number, callers = 200, 8
    shop, apps = await clients(callers)
    shop.broken = True
    async with running(apps[0], concurrency=50):
        results = await apps[0].enqueue([task(apps[0]).job(n) for n in range(number)])
        ends = [await end_of(result) for result in results]
    assert ends == [TaskFailed] * number
    assert await apps[0].dlq.count() == number
    shop.broken = False
    dice = scale.dice("replays")
    ids = [result.id for result in results]
    replays = [replay_one_by_one(app, dice.sample(ids, number)) for app in apps[1:]]
    replayed = await soon(asyncio.gather(*replays, replay_all(apps[0])))
    figure("D7", f"{callers} clients × {number} entries: {replayed} replayed")
    assert sum(replayed) == number
    assert await apps[0].dlq.count() == 0
    async with running(apps[0], concurrency=50):
        assert [await end_of(result) for result in results] == [2 * n for n in range(number)]
    assert shop.begun == dict.fromkeys(range(number), 2)
    assert shop.ended == dict.fromkeys(range(number), 1)
    stats = stats_of(server)
    assert (stats["replayed"], stats["D"], stats["S"]) == (number, number, number)


async def replay_all(app: App) -> int:
    return (await app.dlq.replay()).replayed


async def replay_one_by_one(app: App, ids: list[str]) -> int:
    return sum([(await app.dlq.replay(ids=[job_id])).replayed for job_id in ids])


# Idempotency keys


async def test_of_many_clients_with_one_key_one_makes_the_job(
    clients: Clients, server: Server, figure: Figure
) -> None:
    """D8. One key: 200 clients make 1 job; when its owner is dead and forgotten, the key is gone and free."""
    number = 200
    shop, apps = await clients(number)
    keyed = [task(app).options(key="order:7") for app in apps]
    handles = await soon(asyncio.gather(*(each.delay(21) for each in keyed)))
    assert len({handle.id for handle in handles}) == 1
    assert sum(not handle.deduplicated for handle in handles) == 1
    shop.broken = True
    async with running(apps[0]):
        ends = await soon(asyncio.gather(*(end_of(handle) for handle in handles)))
    assert ends == [TaskFailed] * number
    assert shop.begun == {21: 1}
    assert holder_of(server, "order:7") == handles[0].id
    assert await apps[0].dlq.purge(all=True) == 1
    assert holder_of(server, "order:7") is None
    shop.broken = False
    second = await keyed[1].delay(21)
    assert not second.deduplicated
    assert second.id != handles[0].id
    async with running(apps[1]):
        assert await end_of(second) == 42
    figure("D8", f"{number} clients: 1 job; the key was free when that was gone")


@pytest.mark.parametrize("how", ["forgotten", "replayed", "finished"])
async def test_the_end_of_a_job_leaves_the_key_of_another_owner_alone(
    clients: Clients, server: Server, how: str
) -> None:
    """D8. A key that another job holds by now: nothing that becomes of its former owner touches it."""
    shop, (app, *_) = await clients(1)
    keyed = task(app).options(key="order:7", ttl=60)
    shop.broken = how != "finished"
    shop.gate.clear()
    async with running(app):
        first = await keyed.delay(1)
        await aeventually(lambda: shop.begun[1] == 1)
        age(server, 60)
        second = await aeventually(lambda: sent_anew(keyed))
        assert holder_of(server, "order:7") == second.id
        third = await task(app).options(key="order:8", delay=3600).delay(3)
        shop.gate.set()
        assert await end_of(first) == (TaskFailed if shop.broken else 2)
        if how == "forgotten":
            assert await app.dlq.purge(ids=[first.id]) == 1
        elif how == "replayed":
            shop.broken = False
            await app.dlq.replay(ids=[first.id])
            assert await end_of(first) == 2
        assert holder_of(server, "order:7") == second.id
        assert holder_of(server, "order:8") == third.id
        assert (await second.cancel(), await third.cancel()) == (True, True)
    assert shop.begun == ({1: 2} if how == "replayed" else {1: 1})


async def sent_anew(keyed: Any) -> AsyncResult[int] | None:
    result: AsyncResult[int] = await keyed.options(delay=3600).delay(2)
    return None if result.deduplicated else result


def holder_of(server: Server, key: str) -> str | None:
    with server.client() as client:
        job: Any = client.get(f"{KEYS.prefix}idem:shop:double:{key}")
    return None if job is None else f"default:{job.decode()}"


# Results


@pytest.mark.parametrize("number", [10, 200])
async def test_every_waiter_for_a_result_gets_it_and_a_late_one_at_once(
    clients: Clients, figure: Figure, number: int
) -> None:
    """D9. 10 and 200 waiters for one result are all served, and a late one without waiting."""
    shop, apps = await clients(number)
    shop.gate.clear()
    async with running(apps[0]):
        result = await task(apps[0]).delay(21)
        waiters = [asyncio.create_task(task_result(app, result.id).get()) for app in apps]
        # They share the subscription of the process.
        await aeventually(lambda: waited_for(apps[0], result.id, 1))
        shop.gate.set()
        assert await soon(asyncio.gather(*waiters)) == [42] * number
        late = [await end_of(task_result(app, result.id)) for app in apps]
    assert late == [42] * number
    assert shop.begun == {21: 1}
    figure("D9", f"{number} waiters in as many clients: {number} values, and as many late ones")


async def test_waiters_that_are_cancelled_cost_the_others_nothing(
    clients: Clients, server: Server, figure: Figure
) -> None:
    """D9. 300 cancelled waiters, and 300 more that may be cancelled while 30 jobs end: each job's other waiters get its
    own value."""
    number, cancels = 30, 600
    dice = scale.dice("waiters")
    shop, apps = await clients(3)
    shop.gate.clear()
    async with running(apps[0], concurrency=number):
        results = await apps[0].enqueue([task(apps[0]).job(n) for n in range(number)])
        staying = [
            asyncio.create_task(task_result(app, result.id).get()) for result in results for app in apps
        ]
        leaving = [
            asyncio.create_task(task_result(apps[i % 3], results[i % number].id).get())
            for i in range(cancels)
        ]
        for place, waiter in enumerate(leaving):
            if place == cancels // 2:
                shop.gate.set()
            await asyncio.sleep(dice.uniform(0, 0.002))
            waiter.cancel()
        values = await soon(asyncio.gather(*staying))
    gone = await asyncio.gather(*leaving, return_exceptions=True)
    assert values == [2 * n for n in range(number) for _ in apps]
    cancelled = sum(isinstance(end, asyncio.CancelledError) for end in gone)
    for place, end in enumerate(gone):
        assert isinstance(end, asyncio.CancelledError) or end == 2 * (place % number)
    assert cancelled >= cancels // 2
    assert shop.ended == dict.fromkeys(range(number), 1)
    figure(
        "D9", f"{cancelled} of {cancels} waiters cancelled: {len(values)} others got the value of their job"
    )


def task_result(app: App, job_id: str) -> AsyncResult[Any]:
    return app.result(job_id)


async def waited_for(app: App, job_id: str, number: int) -> bool:
    """Whether so many clients have noted in the record that they wait."""
    record = KEYS.record(job_id.partition(":")[2])
    channels: bytes | None = await app.client.ask(Command(["HGET", record, "W"], as_is))
    return len((channels or b"").split()) >= number


@pytest.mark.parametrize("how", ["expired", "unknown"])
async def test_waiting_for_a_result_that_has_gone_raises(
    clients: Clients, server: Server, proxy: Proxy, how: str
) -> None:
    """D10. The result expires while its message is lost, or the job is unknown: ResultExpired, and no hang."""
    shop, (app, *_) = await clients(1, result_ttl=60, record_ttl=60)
    if how == "unknown":
        with pytest.raises(ResultExpired):
            await soon(app.result("default:missing").get())
        return
    async with shop.app_of(proxy.url) as far:
        shop.gate.clear()
        async with running(app):
            result = await task(app).delay(21)
            waiter = asyncio.create_task(task_result(far, result.id).get())
            await aeventually(lambda: waited_for(app, result.id, 1))
            proxy.blackhole()
            shop.gate.set()
            assert await end_of(result) == 42
            age(server, 600)
            await aeventually(lambda: is_unknown(result))
            proxy.cut_all()
            proxy.up()
            with pytest.raises(ResultExpired):
                await soon(waiter)


async def is_unknown(result: AsyncResult[Any]) -> bool:
    return await result.status() is Status.UNKNOWN


async def test_waiting_raises_when_redis_was_restarted_without_its_data(
    a_server: Callable[..., Server], figure: Figure
) -> None:
    """D10. Redis is restarted empty while 20 callers wait: each ends with ResultExpired."""
    server, shop = a_server(), Shop()
    async with shop.app_of(server.url) as app:
        results = await app.enqueue([task(app).job(n) for n in range(20)])
        waiters = [asyncio.create_task(result.get()) for result in results]
        await aeventually(lambda: waited_for(app, results[-1].id, 1))
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        ends = await soon(asyncio.gather(*waiters, return_exceptions=True))
    assert [type(end) for end in ends] == [ResultExpired] * 20
    figure("D10", "20 waiters, Redis restarted empty: 20 × ResultExpired")


# Cancelling


async def test_a_job_that_is_cancelled_at_any_moment_has_one_end(
    clients: Clients, server: Server, figure: Figure
) -> None:
    """D11. 1,000 interleavings of cancel with scheduled, queued, running, finishing and retrying jobs: one end each,
    one result, one count."""
    number = 1_000
    dice = scale.dice("cancels")
    shop, (app, other) = await clients(2)
    results: list[AsyncResult[Any]] = []
    cancelling: list[asyncio.Task[bool]] = []
    async with running(app, concurrency=20):
        for n in range(number):
            results.append(await send_one(app, n, dice))
            cancelling.append(asyncio.create_task(cancel_after(other, results[-1].id, dice.uniform(0, 0.05))))
            if n % 20 == 0:
                await asyncio.sleep(dice.uniform(0, 0.02))
        cancelled = await soon(asyncio.gather(*cancelling))
        ends = await soon(asyncio.gather(*(end_of(result) for result in results)))
    statuses = await asyncio.gather(*(result.status() for result in results))
    for n, (end, status, was_cancelled) in enumerate(zip(ends, statuses, cancelled, strict=True)):
        if was_cancelled:
            assert (end, status, shop.ended[n]) == (JobCancelled, Status.CANCELLED, 0)
        elif n % 10 == 0:
            assert (end, status, shop.begun[n], shop.ended[n]) == (TaskFailed, Status.DEAD, 1, 0)
        else:
            assert (end, status, shop.ended[n]) == (2 * n, Status.SUCCESS, 1)
    kinds, stats = Counter(statuses), stats_of(server)
    figure("D11", f"{number} interleavings: { ({status.value: count for status, count in kinds.items()}) }")
    assert set(kinds) == {Status.CANCELLED, Status.SUCCESS, Status.DEAD}
    assert kinds[Status.CANCELLED] == sum(cancelled) == stats["K"]
    assert (kinds[Status.SUCCESS], kinds[Status.DEAD]) == (stats["S"], stats["D"])
    assert lengths_of_results(server, results) == {1: number}


async def send_one(app: App, n: int, dice: random.Random) -> AsyncResult[Any]:
    """Jobs that a cancellation meets scheduled, queued, running, finishing, or between two tries."""
    kind = n % 5
    if kind == 0:
        seconds = dice.uniform(0, 0.03)
        result: AsyncResult[Any] = await task(app, "last").delay(n, seconds)
    elif kind == 1:
        result = await task(app).options(delay=dice.uniform(0.001, 0.05)).delay(n)
    elif kind == 2:
        result = await task(app, "stumble").delay(n)
    elif kind == 3:
        result = await task(app).options(priority="low").delay(n)
    else:
        result = await task(app).delay(n)
    return result


async def cancel_after(app: App, job_id: str, seconds: float) -> bool:
    await asyncio.sleep(seconds)
    return await app.result(job_id).cancel()


# Messages that wake executors


@pytest.mark.parametrize("number", [1, 3])
async def test_a_job_that_arrives_while_executors_go_to_sleep_wakes_one(
    server: Server, without_looks: None, figure: Figure, number: int
) -> None:
    """T10. 1,000 interleavings of an enqueue with a fetch that puts its executor to sleep: no job waits for a look."""
    interleavings, dice, starts = 1_000, scale.dice("drain", number), Starts()
    async with starts.app_of(server.url) as app, executors(app, number, concurrency=4) as crew:
        names = {one.name for one in crew}
        await all_asleep(server, names)
        for n in range(0, 2 * interleavings, 2):
            await starts.send(app, n)
            # The fetch for the first job takes this long.
            await asyncio.sleep(dice.uniform(0, 0.001))
            await starts.send(app, n + 1)
            await starts.started(n)
            await starts.started(n + 1)
        await all_asleep(server, names)
        delays = await starts.all_started()
    figure("T10", f"{number} executors that go to sleep: {summary(delays)}")


async def test_a_job_that_rings_a_full_executor_starts_on_one_with_a_free_slot(
    server: Server, without_looks: None, figure: Figure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T10. Four executors with one slot each sleep at four queues. Three have a job: whichever of them the message of
    the next job reaches, the fourth one runs it."""
    rounds, dice, starts = scale.of(200, long=1_000), scale.dice("full"), Starts()
    queues = ("a", "b", "c", "d")
    passed = passed_on(monkeypatch)
    async with starts.app_of(server.url) as app:
        serving = ",".join(f"{queue}:1" for queue in queues)
        async with executors(app, 4, concurrency=1, queues=serving) as crew:
            await all_asleep(server, {one.name for one in crew}, *queues)
            for n in range(0, 4 * rounds, 4):
                blocking = range(n, n + 3)
                for blocker in blocking:
                    await starts.send(app, blocker, closed=True, queue=dice.choice(queues))
                    await starts.started(blocker)
                await starts.send(app, n + 3, queue=dice.choice(queues))
                await starts.started(n + 3)
                for blocker in blocking:
                    starts.gates[blocker].set()
            delays = await starts.all_started()
    figure("T10", f"full executors, {len(passed)} messages passed on: {summary(delays)}")
    assert len(passed) > rounds


def passed_on(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queues whose messages were passed on, one for each time."""
    found, ring = list[str](), verbs.runs.ring

    def noted(keys: QueueKeys, lanes: Iterable[str]) -> Verb[int]:
        found.append(keys.queue)
        return ring(keys, lanes)

    monkeypatch.setattr(verbs.runs, "ring", noted)
    return found


async def test_an_executor_that_stops_passes_its_messages_on(
    server: Server, without_looks: None, figure: Figure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T10. Of two executors that sleep, one stops while jobs arrive: the other one runs them without a look."""
    stops, each, dice, starts = scale.of(100, long=1_000), 5, scale.dice("stops"), Starts()
    passed = passed_on(monkeypatch)
    async with starts.app_of(server.url) as app, AsyncExitStack() as stack:
        crew = deque([await stack.enter_async_context(running(app, concurrency=2))])
        for first in range(0, each * stops, each):
            crew.append(await stack.enter_async_context(running(app, concurrency=2)))
            await all_asleep(server, {one.name for one in crew})
            leaving = crew.popleft()
            moment = dice.randrange(each)
            for n in range(first, first + each):
                if n - first == moment:
                    asyncio.get_running_loop().call_later(dice.uniform(0, 0.001), leaving.stop)
                await starts.send(app, n)
            for n in range(first, first + each):
                await starts.started(n)
        delays = await starts.all_started()
    figure("T10", f"{stops} stops, {len(passed)} messages passed on: {summary(delays)}")


async def test_a_job_that_arrives_while_executors_reconnect_waits_for_no_look(
    server: Server, proxy: Proxy, without_looks: None, figure: Figure
) -> None:
    """T10. All connections of two executors are cut at the moment a job arrives: it starts as soon as one of them has
    connected again."""
    cuts, dice, starts = scale.of(60, long=600), scale.dice("reconnects"), Starts()
    near, far = starts.app_of(server.url), starts.app_of(proxy.url, lease=2)
    async with near, far, executors(far, 2) as crew:
        await all_asleep(server, {one.name for one in crew})
        for n in range(cuts):
            cutting = asyncio.create_task(asyncio.to_thread(proxy.cut_all))
            await asyncio.sleep(dice.uniform(0, 0.003))
            await starts.send(near, n)
            await cutting
            await starts.started(n)
        delays = await starts.all_started()
    figure("T10", f"{cuts} times reconnected: {summary(delays)}")
    assert max(delays) < LOOK
