"""Cancels of running jobs that race with everything: each job ends once, and one that was asked to stop is cancelled or
has succeeded."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from fennelq import (
    App,
    AsyncResult,
    JobCancelled,
    Retry,
    RetryPolicy,
    Snooze,
    Status,
    TaskFailed,
    current_job,
)
from fennelq.broker import verbs
from fennelq.broker.keys import queue_keys
from fennelq.worker.executor import Executor
from tests.broker.desk import Reason
from tests.chaos import jobs, scale
from tests.chaos.account import account, drained
from tests.chaos.conftest import Figure
from tests.chaos.fleet import LEASE, Fleet
from tests.chaos.jobs import task_of
from tests.features.conftest import user_who_may_not
from tests.kit.ledger import Ledger
from tests.kit.server import Server
from tests.kit.waiting import aeventually, eventually
from tests.kit.workers import running

pytestmark = [pytest.mark.timeout(scale.of(300, long=600)), *scale.servers()]

WITHIN: Final = 20.0
"""Seconds after which a job that has not ended hangs."""
REASONS: Final[tuple[Reason, ...]] = ("stopped", "unstarted", "stranded")
KINDS: Final = ("ok", "ok", "fail", "snooze", "swallow", "cleanup", "again", "thread")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The workers of these tests run in this process: their log is shown only when a test fails."""
    with capture_logs() as lines:
        yield
    for line in lines[-50:]:
        print(line)


STOPPING: Final = {"cleanup": ValueError("while cleaning up"), "again": Retry(0.01)}
"""What a handler raises when it is asked to stop."""


class Shop:
    """A task that ends in many ways, and executors that lose their jobs meanwhile."""

    def __init__(self, server: Server, stack: AsyncExitStack) -> None:
        self.server, self.stack = server, stack
        self.starts = Counter[int]()

    async def app(self, url: str) -> App:
        """The app, for a client or an executor."""
        settings: dict[str, Any] = {"lease": LEASE, "heartbeat_interval": 0.2, "schedule_interval": 0.05}
        app = App("shop", redis_url=url, **settings)

        @app.task(name="shop:work", retry=RetryPolicy.fixed(2, delay=0.02))
        async def work(n: int, kind: str, seconds: float) -> int:
            self.starts[n] += 1
            try:
                await asyncio.sleep(seconds)
            except asyncio.CancelledError:
                if kind in STOPPING:
                    raise STOPPING[kind] from None
                if kind != "swallow":
                    raise
            if kind == "fail" or (kind == "again" and self.starts[n] < 3):
                raise ValueError("no")
            if kind == "snooze" and self.starts[n] < 2:
                raise Snooze(0.01)
            return n

        @app.task(name="shop:thread", retry=RetryPolicy.fixed(2, delay=0.02))
        def thread(n: int, kind: str, seconds: float) -> int:
            self.starts[n] += 1
            job, until = current_job(), time.monotonic() + seconds
            while time.monotonic() < until:
                if job.cancelled is not None:
                    raise ValueError(job.cancelled)
                time.sleep(0.001)
            return n

        return await self.stack.enter_async_context(app)


@pytest.fixture
async def shop(server: Server) -> AsyncIterator[Shop]:
    async with AsyncExitStack() as stack:
        yield Shop(server, stack)


@asynccontextmanager
async def handed_back_at_random(
    executors: list[Executor], app: App, dice: random.Random
) -> AsyncGenerator[Counter[str]]:
    """Every now and then a job is handed back under its executor, as if its reply had been lost."""
    done = Counter[str]()

    async def hand_back() -> None:
        while True:
            await asyncio.sleep(0.01)
            if tokens := dice.choice(executors).state.held.tokens():
                queue, lane, entry = dice.choice(tokens)
                why = dice.choice(REASONS)
                release = verbs.runs.release(queue_keys("shop", queue), [(lane, entry)], why)
                done["released"] += await app.client.ask(release)

    task = asyncio.create_task(hand_back())
    try:
        yield done
    finally:
        task.cancel()


async def raced(
    app: App, deaf: App, n: int, dice: random.Random
) -> tuple[AsyncResult[Any], bool | None, str]:
    """Send a job, cancel it at some moment (in a third of the cases the message is lost), and wait for its end."""
    kind = dice.choice(KINDS)
    task = app.tasks["shop:thread" if kind == "thread" else "shop:work"]
    if dice.random() < 0.3:
        task = task.options(delay=dice.choice([0, 0.01]))
    result = await task.delay(n, kind, dice.choice([0, 0.001, 0.005, 0.02, 0.05]))
    await asyncio.sleep(dice.choice([0, 0, 0.002, 0.01, 0.03, 0.08]))
    asker = deaf.result(result.id) if dice.random() < 0.33 else result
    asked = None
    if dice.random() < 0.8:
        asked = await asker.cancel("raced", wait=dice.choice([0, 5.0]) if asker is result else 0)
    try:
        await result.get(timeout=WITHIN)
        return result, asked, "S"
    except JobCancelled:
        return result, asked, "K"
    except TaskFailed:
        return result, asked, "D"


async def test_a_job_that_is_cancelled_while_it_moves_has_one_end_one_result_and_one_count(
    shop: Shop, server: Server, figure: Figure
) -> None:
    """U1–U3. Starts, ends, retries, snoozes, releases under running jobs, lost messages, across two executors."""
    number, dice = scale.of(250, long=2000), scale.dice("cancels")
    app = await shop.app(server.url)
    began = time.monotonic()
    with user_who_may_not(server, "resetchannels") as url:
        deaf = await shop.app(url)
        async with running(app, concurrency=8) as first, running(app, concurrency=8) as second:
            at_once = asyncio.Semaphore(40)

            async def limited(n: int) -> tuple[AsyncResult[Any], bool | None, str]:
                async with at_once:
                    return await raced(app, deaf, n, dice)

            async with handed_back_at_random([first, second], app, dice) as done:
                ends = await asyncio.gather(*map(limited, range(number)))
            await aeventually(lambda: nothing_is_left(app), within=30 * LEASE)
            # A run that was handed back under its executor goes on until a beat tells that it is lost.
            await aeventually(
                lambda: not any(holds_something(one) for one in (first, second)), within=30 * LEASE
            )
    await all_ended_once(app, server, ends)
    found = Counter(end for _, _, end in ends)
    figure("U1-U3", f"{number} in {time.monotonic() - began:.1f} s: {dict(found)}, {dict(done)}")


def holds_something(executor: Executor) -> bool:
    """Whether it has jobs, or slots that are taken: of a run that never ends, the lease would be renewed for ever."""
    return bool(executor.state.held.by_token) or executor.slots.taken > 0


async def nothing_is_left(app: App) -> bool:
    """Whether no job is anywhere, and none is remembered as stopping."""
    info = await app.queues.info("default")
    with_request = await app.client.ask(verbs.queues.stopping(queue_keys("shop", "default")))
    return info.waiting + info.running + info.scheduled + info.retry + with_request == 0


LETTERS: Final = {"S": Status.SUCCESS, "K": Status.CANCELLED, "D": Status.DEAD}


async def all_ended_once(
    app: App, server: Server, ends: list[tuple[AsyncResult[Any], bool | None, str]]
) -> None:
    keys = queue_keys("shop", "default")
    with server.client() as client, client.pipeline(transaction=False) as pipe:
        for result, _, _ in ends:
            pipe.llen(keys.result(result.id.partition(":")[2]))
        lengths = pipe.execute()
        stats: Any = client.hgetall(keys["stats"])
    statuses = [await result.status() for result, _, _ in ends]
    assert statuses == [LETTERS[end] for _, _, end in ends]
    assert lengths == [1] * len(ends)
    assert sum(int(stats.get(kind, 0)) for kind in (b"S", b"N", b"D", b"K")) == len(ends)
    # A dead job was dead before it was asked.
    assert not [result.id for result, asked, end in ends if asked and end != "K"]


# Real processes


@pytest.fixture
async def client(server: Server) -> AsyncIterator[App]:
    async with jobs.app_of(redis_url=server.url, lease=LEASE) as app:
        yield app


async def test_cancels_among_processes_that_are_killed_and_paused_leave_no_job_behind(
    fleet: Fleet, server: Server, ledger: Ledger, client: App, figure: Figure
) -> None:
    """U1–U3, with `kill -9` and pauses that are longer than a lease. No job stays EXECUTING."""
    dice = scale.dice("cancels among processes")
    for _ in range(2):
        fleet.start(processes=1, concurrency=8)
    sent: dict[str, str] = {}
    answers = Counter[bool]()
    harming = asyncio.create_task(harm(fleet, dice))

    async def send_and_cancel() -> None:
        while not harming.done():
            name = dice.choice(["work", "work", "flaky", "in_thread"])
            task = task_of(client, getattr(jobs, name))
            if dice.random() < 0.2:
                task = task.options(delay=0.05)
            span = dice.choice([0.001, 0.05, 0.2, 0.5])
            result = await task.delay(span if name == "in_thread" else span * 1000)
            sent[result.id] = name
            await asyncio.sleep(dice.choice([0, 0.01, 0.1, 0.4]))
            if dice.random() < 0.7:
                answers[await result.cancel(wait=dice.choice([0, 0, 1.0]))] += 1

    await asyncio.gather(*(send_and_cancel() for _ in range(12)))
    await harming
    took = await asyncio.to_thread(drained, server, within=WITHIN)
    await asyncio.to_thread(eventually, lambda: stopping(server) == set(), within=30 * LEASE)
    await asyncio.to_thread(fleet.stop)
    it = account(server, sent, ledger, budget=fleet.budget)
    figure("U1-U3", f"{it}; cancelled {it.cancelled}, answers {dict(answers)}, idle after {took:.1f} s")
    it.sound()
    assert it.done + it.cancelled == len(sent)
    assert it.cancelled > 0
    assert it.recovered > 0


async def harm(fleet: Fleet, dice: random.Random) -> None:
    """Kills and pauses executors, in turn."""
    for number in range(scale.of(3, long=20)):
        await asyncio.sleep(dice.uniform(0.3, 0.8))
        victim = await asyncio.to_thread(fleet.any, dice)
        if victim is not None and number % 2:
            fleet.pause(victim)
            await asyncio.sleep(1.5 * LEASE)
            fleet.let_go_on(victim)
        elif victim is not None:
            fleet.kill(victim)


def stopping(server: Server) -> set[bytes]:
    with server.client() as client:
        found: Any = client.smembers(queue_keys(jobs.NAME, "default")["stop"])
    return set(found)


AT_ONCE: Final = """
local f = redis.call('HMGET', KEYS[1], 's', 'p', 'w')
if f[1] ~= 'X' then return 0 end
redis.call('HSET', KEYS[1], 'C', 'at once', 'z', '')
redis.call('SADD', ARGV[1] .. 'stop', ARGV[2])
local lane, entry = string.match(f[2], '^([^/]+)/(.+)$')
local owner = string.match(f[3], '^(.*) %d+ %d+$')
redis.call('SPUBLISH', ARGV[1] .. 'bell:' .. owner, 'stop ' .. lane .. ' ' .. entry .. ' at once')
return 1
"""
"""Does what `cancel` does to a running job, but leaves a queued one alone."""


def test_a_request_that_follows_the_fetch_at_once_stops_the_job(
    fleet: Fleet, server: Server, figure: Figure
) -> None:
    """U3. The message arrives before the reply to the fetch, with it, or before the first step of the run."""
    fleet.start(concurrency=8)
    app = jobs.app_of(redis_url=server.url, lease=LEASE)
    task, keys = task_of(app, jobs.work).sync, queue_keys(jobs.NAME, "default")
    seconds = list[float]()
    with server.client() as redis:
        cancel_if_it_runs: Any = redis.register_script(AT_ONCE)
        for _ in range(scale.of(100, long=2000)):
            result = task.delay(60_000)
            key = result.id.partition(":")[2]
            while not cancel_if_it_runs(keys=[keys.record(key)], args=[keys.prefix, key]):
                pass
            asked = time.monotonic()
            with pytest.raises(JobCancelled):
                result.get(timeout=WITHIN)
            seconds.append(time.monotonic() - asked)
            # It was neither handed back nor recovered, which would hide a run that is held and never ends.
            assert result.history() == []
    figure("U3", f"{len(seconds)} requests right behind the fetch: {max(seconds) * 1000:.1f} ms at most")
    assert stopping(server) == set()
    fleet.stop()
    app.blocking.close()


async def test_a_job_whose_executor_dies_after_it_was_asked_is_cancelled_and_never_runs_again(
    fleet: Fleet, server: Server, ledger: Ledger, client: App
) -> None:
    """U1. The request is in the record: with no worker up nothing happens, and the next one ends the job."""
    worker = fleet.start(concurrency=1)
    result = await task_of(client, jobs.work).delay(60_000)
    await aeventually(lambda: ledger.starts() == {result.id: 1}, within=30)
    (executor,) = worker.executors()
    executor.stop()  # so that it does not hear the request
    assert await result.cancel("no longer needed", wait=0.1) is False
    worker.process.kill()
    executor.kill()
    fleet.workers.clear()
    info = await result.info()
    assert info is not None
    assert (info.status, info.stopping) == (Status.EXECUTING, "no longer needed")
    fleet.start(concurrency=1)
    with pytest.raises(JobCancelled, match="no longer needed"):
        await result.get(timeout=WITHIN)
    assert ledger.starts() == {result.id: 1}
    assert stopping(server) == set()


# How soon


async def test_without_messages_a_job_is_stopped_by_the_next_beat(
    shop: Shop, server: Server, figure: Figure
) -> None:
    """Of a client that may not publish, every message is lost."""
    app = await shop.app(server.url)
    with user_who_may_not(server, "resetchannels") as url:
        deaf = await shop.app(url)
        async with running(app, concurrency=8):
            results = [await app.tasks["shop:work"].delay(n, "ok", 60.0) for n in range(8)]
            await aeventually(lambda: sum(shop.starts.values()) == 8)
            asked = time.monotonic()
            for result in results:
                await deaf.result(result.id).cancel(wait=0)
            with pytest.raises(JobCancelled):
                await results[0].get(timeout=30)
            ends = [await end_of(result) for result in results]
    seconds = time.monotonic() - asked
    figure("U3", f"every message lost, a beat each 0.2 s: 8 jobs stopped after {seconds:.2f} s")
    assert ends == [JobCancelled] * 8
    assert seconds < 30, "without a beat, they run for a minute"


async def end_of(result: AsyncResult[Any]) -> Any:
    try:
        return await result.get(timeout=30)
    except (JobCancelled, TaskFailed) as error:
        return type(error)


async def test_in_a_busy_executor_a_request_arrives_within_a_second(
    shop: Shop, server: Server, figure: Figure
) -> None:
    """32 of 32 slots are taken. The handlers get the request within milliseconds."""
    app = await shop.app(server.url)
    heard = dict[int, float]()

    @app.task(name="shop:wait")
    async def wait(n: int) -> None:
        shop.starts[n] += 1
        try:
            await asyncio.sleep(60)
        finally:
            heard[n] = time.perf_counter()

    delays = list[float]()
    async with running(app, concurrency=32):
        live = dict(enumerate(await wait.map(range(32))))
        for n in range(32, 32 + scale.of(40, long=500)):
            await aeventually(lambda: sum(shop.starts.values()) == n)  # noqa: B023
            victim = random.choice(list(live))
            asked = time.perf_counter()
            assert await live.pop(victim).cancel()
            delays.append(heard[victim] - asked)
            live[n] = await wait.delay(n)
        for result in live.values():
            await result.cancel(wait=0)
    delays.sort()
    p50, p99 = delays[len(delays) // 2], delays[int(len(delays) * 0.99)]
    figure(
        "cancel",
        f"32/32 slots busy: p50 {p50 * 1000:.2f}, p99 {p99 * 1000:.2f}, max {delays[-1] * 1000:.2f} ms",
    )
    assert delays[-1] < 1.0 + 3, "with three seconds for a busy machine"
