"""Sending under load and under trouble: every job exactly once, and each caller gets an answer of its own."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, cast

import pytest
import redis

from fennelq import (
    App,
    BrokerUnavailable,
    DuplicateJob,
    EnqueueFailed,
    FennelqError,
    InvalidArguments,
    Job,
    PayloadTooLarge,
    Task,
)
from fennelq.broker import verbs
from fennelq.broker.group_commit import GroupCommit
from fennelq.sync import sync
from tests.features.conftest import MakeApp
from tests.kit.apps import LocalApp
from tests.kit.jobs import altered, as_sent
from tests.kit.proxy import Proxy
from tests.kit.server import Server
from tests.kit.waiting import aeventually, quickest
from tests.kit.workers import running

SLACK = 0.25


@pytest.fixture
def ran() -> Counter[int]:
    """How often each job ran."""
    return Counter()


def counting(app: App, ran: Counter[int]) -> Task[[int], int]:
    @app.task(name="shop:note")
    async def note(n: int) -> int:
        ran[n] += 1
        return n

    return note


# Coalescing


async def test_a_hundred_simultaneous_calls_are_a_handful_of_script_calls(app: App, server: Server) -> None:
    note = counting(app, Counter())
    await note.delay(0)
    with script_calls(server) as calls:
        results = await asyncio.gather(*(note.delay(n) for n in range(100)))
    assert len({result.id for result in results}) == 100
    assert calls() <= 3
    assert await queued(app) == 101


async def test_a_bulk_call_takes_a_script_call_per_hundred_jobs(app: App, server: Server) -> None:
    note = counting(app, Counter())
    await note.delay(0)
    with script_calls(server) as calls:
        await app.enqueue([note.job(n) for n in range(1000)])
    assert calls() == 10
    assert await queued(app) == 1001


async def test_calls_that_come_while_a_send_is_under_way_wait_for_no_timer(app: App, proxy: Proxy) -> None:
    slow_app = LocalApp("shop", redis_url=proxy.url)
    note = counting(slow_app, Counter())
    await note.delay(0)
    proxy.latency(20)
    async with slow_app:
        first = asyncio.create_task(note.delay(1))
        await asyncio.sleep(0)
        others = [asyncio.create_task(note.delay(n)) for n in range(2, 100)]
        await first
        assert not any(task.done() for task in others)
        await asyncio.gather(*others)
    assert await queued(app) == 100


async def test_cancelling_one_of_a_hundred_simultaneous_callers_changes_nothing_for_the_others(
    app: App, ran: Counter[int]
) -> None:
    note = counting(app, ran)
    calls = [asyncio.create_task(note.delay(n)) for n in range(100)]
    await asyncio.sleep(0)  # all have been called, nothing has been sent
    calls[17].cancel()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [n for n, result in enumerate(results) if isinstance(result, BaseException)] == [17]
    async with running(app):
        await aeventually(lambda: len(ran) == 99)
    assert ran == Counter(n for n in range(100) if n != 17)


async def test_cancelling_a_caller_whose_job_is_on_its_way_does_not_cancel_the_job(
    make_app: MakeApp, proxy: Proxy, app: App, ran: Counter[int]
) -> None:
    slow = counting(make_app(redis_url=proxy.url), Counter())
    await slow.delay(100)
    proxy.latency(50)
    calls = [asyncio.create_task(slow.delay(n)) for n in range(100)]
    sent = proxy.counters.sent
    await aeventually(lambda: proxy.counters.sent > sent)
    for n in (0, 17, 99):
        calls[n].cancel()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [n for n, r in enumerate(results) if isinstance(r, BaseException)] == [0, 17, 99]
    counting(app, ran)
    async with running(app):
        await aeventually(lambda: len(ran) == 101)
    assert ran == Counter(range(101))


# One bad job among good ones


async def test_one_refused_job_of_a_bulk_call_is_named_and_the_others_are_sent(
    app: App, ran: Counter[int]
) -> None:
    note = counting(app, ran)
    await note.options(job_id="taken").delay(-1)
    jobs = [note.job(0), note.options(job_id="taken").job(1), note.job(2)]
    with pytest.raises(EnqueueFailed, match=r"1 of 3 .* job 1: .*taken") as failed:
        await app.enqueue(jobs)
    error = failed.value
    assert isinstance(error.failures[1], DuplicateJob)
    assert list(error.failures) == [1]
    assert error.handles[1] is None
    async with running(app):
        assert await error.handles[0].get(timeout=30) == 0
        assert await error.handles[2].get(timeout=30) == 2
    assert ran == Counter([-1, 0, 2])


async def test_one_refused_job_of_simultaneous_calls_fails_its_own_caller_only(
    app: App, ran: Counter[int]
) -> None:
    note = counting(app, ran)
    await note.options(job_id="taken").delay(-1)
    tasks = [note if n != 17 else note.options(job_id="taken") for n in range(100)]
    results = await asyncio.gather(*(task.delay(n) for n, task in enumerate(tasks)), return_exceptions=True)
    assert [n for n, result in enumerate(results) if isinstance(result, BaseException)] == [17]
    assert isinstance(results[17], DuplicateJob)


async def test_a_job_that_redis_refuses_fails_its_own_caller_only(app: App, server: Server) -> None:
    """A record of a wrong type where the job's should be: the script cannot create this one."""
    note = counting(app, Counter())
    await note.delay(0)
    jobs = [note.job(n) for n in range(5)]
    broken = altered(jobs[2], priority="high", key="squatted")
    with server.client() as client:
        client.set(app.client.keys("default")["s:high"], "not a stream")
        with pytest.raises(EnqueueFailed) as failed:
            await app.enqueue([*jobs[:2], broken, *jobs[3:]])
        client.delete(app.client.keys("default")["s:high"])
    assert list(failed.value.failures) == [2]
    assert "default:squatted" in str(failed.value.failures[2])
    assert await queued(app) == 5


async def test_a_single_refused_job_raises_its_own_error(app: App) -> None:
    note = counting(app, Counter())
    await note.options(job_id="taken").delay(1)
    with pytest.raises(DuplicateJob):
        await app.enqueue([note.options(job_id="taken").job(2)])


async def test_a_map_with_an_element_that_does_not_fit_names_it_and_sends_nothing(
    make_app: MakeApp,
) -> None:
    app = make_app(max_payload_bytes=100)

    @app.task
    async def keep(text: str) -> None: ...

    with pytest.raises(InvalidArguments, match="text") as wrong:
        await keep.map(["a", "b", cast("Any", 3), "d"])
    assert "element 2" in noted(wrong.value)
    with pytest.raises(PayloadTooLarge) as large:
        await keep.map(["a", "b" * 200])
    assert "element 1" in noted(large.value)
    assert await queued(app) == 0


async def test_jobs_of_several_queues_in_one_call_fail_apart(app: App) -> None:
    note = counting(app, Counter())
    mail = note.options(queue="mail")
    await mail.options(job_id="taken").delay(1)
    jobs: list[Job[int]] = [note.job(0), mail.options(job_id="taken").job(2), mail.job(3)]
    with pytest.raises(EnqueueFailed) as failed:
        await app.enqueue(jobs)
    assert list(failed.value.failures) == [1]
    assert await queued(app) == 1
    assert await queued(app, "mail") == 2


# A broken network


@pytest.mark.audit(unfinished=True)
@pytest.mark.parametrize("how", ["awaited", "blocking"])
async def test_a_job_that_cannot_be_packed_fails_alone(app: App, ran: Counter[int], how: str) -> None:
    """Two kinds: one whose words cannot be sent, and one of which not even the size is known."""
    double = counting(app, ran)
    good = [double.options(queue=queue).job(n) for n, queue in enumerate(["one", "one", "two", "three"])]
    jobs: list[Any] = [
        good[0],
        altered(good[1], key="\ud800"),
        good[1],
        good[2],
        altered(good[3], args=None),
        altered(good[3], key="other"),
    ]
    sending = app.enqueue(jobs) if how == "awaited" else asyncio.to_thread(sync.enqueue, app, jobs)
    with pytest.raises(EnqueueFailed) as failed:
        await sending
    assert sorted(failed.value.failures) == [1, 4]
    assert all(isinstance(error, FennelqError) for error in failed.value.failures.values())
    assert "cannot be sent" in str(failed.value.failures[1])
    assert [handle and handle.id for handle in failed.value.handles] == [
        good[0].id,
        None,
        good[1].id,
        good[2].id,
        None,
        "three:other",
    ]
    assert [await queued(app, queue) for queue in ("one", "two", "three")] == [2, 1, 1]


async def test_a_batch_with_too_few_answers_leaves_no_caller_waiting() -> None:
    async def flush(items: list[int]) -> list[int]:
        return items[:1]

    batcher: GroupCommit[int, int] = GroupCommit(flush, 10)
    answers = [batcher.submit(n) for n in range(3)]
    async with asyncio.timeout(20):
        first, *others = await asyncio.gather(*answers, return_exceptions=True)
    assert first == 0
    assert [type(other) for other in others] == [ValueError, ValueError]
    async with asyncio.timeout(20):
        assert await batcher.submit(7) == 7


async def test_a_delay_whose_replies_are_lost_makes_exactly_one_job(
    make_app: MakeApp, proxy: Proxy, app: App, ran: Counter[int]
) -> None:
    """Every second reply to a script is lost; what is sent again must be the same jobs."""
    caller = counting(make_app(redis_url=proxy.url), Counter())
    await caller.delay(0)
    fate = random.Random(7)
    proxy.drop_replies(lambda _: fate.random() < 0.5, command="EVALSHA", cut=True)
    results = [await caller.delay(n) for n in range(1, 21)]
    results += await asyncio.gather(*(caller.delay(n) for n in range(21, 141)))
    results += await caller.app.enqueue([caller.job(n) for n in range(141, 500)])
    assert proxy.counters.dropped > 10
    assert not any(result.deduplicated for result in results)
    counting(app, ran)
    async with running(app, concurrency=32):
        await aeventually(lambda: len(ran) == 500)
    assert ran == Counter(range(500))


async def test_connections_that_are_cut_all_the_time_lose_no_job_and_make_none_twice(
    make_app: MakeApp, proxy: Proxy, app: App, ran: Counter[int]
) -> None:
    caller = counting(make_app(redis_url=proxy.url), Counter())
    sending = asyncio.gather(*(send_in_turn(caller, range(start, 300, 3)) for start in range(3)))
    received = 0
    while not sending.done():
        await asyncio.sleep(0.02)  # the pace of the trouble, not a wait for anything
        # On a busy machine, a connection may take longer than that to get its first reply.
        if proxy.counters.received > received:
            proxy.cut_all()
            received = proxy.counters.received
    await sending
    counting(app, ran)
    async with running(app, concurrency=32):
        await aeventually(lambda: len(ran) == 300)
    assert ran == Counter(range(300))


@pytest.mark.parametrize("network", ["refuse", "blackhole", "half"])
async def test_without_redis_a_delay_fails_within_its_bound(
    make_app: MakeApp, proxy: Proxy, network: str
) -> None:
    bound = 0.4
    app = make_app(redis_url=proxy.url, enqueue_timeout=bound)
    note = counting(app, Counter())
    await note.delay(0)
    getattr(proxy, network)()

    async def fail() -> None:
        with pytest.raises(BrokerUnavailable, match=r"^Redis at .* cannot be reached: ") as failed:
            await note.delay(1)
        assert [as_sent(job).args for job in failed.value.jobs] == [b"[[1],{}]"]

    assert bound <= await quickest(fail, bound + SLACK) < bound + SLACK


async def test_without_redis_from_the_start_a_delay_fails_within_its_bound(make_app: MakeApp) -> None:
    app = make_app(redis_url="redis://127.0.0.1:1/0", enqueue_timeout=0.3)
    note = counting(app, Counter())

    async def fail() -> None:
        with pytest.raises(BrokerUnavailable) as failed:
            await note.delay(1)
        assert len(failed.value.jobs) == 1
        assert isinstance(failed.value, FennelqError)

    assert await quickest(fail, 0.3 + SLACK) < 0.3 + SLACK


@pytest.mark.parametrize("network", ["refuse", "half"])
async def test_jobs_that_could_not_be_sent_for_sure_are_completed_without_duplicates(
    make_app: MakeApp, proxy: Proxy, app: App, ran: Counter[int], network: str
) -> None:
    """Refused, nothing arrived; with lost replies, everything did: the caller cannot know, and need not."""
    flaky = make_app(redis_url=proxy.url, enqueue_timeout=0.3)
    note = counting(flaky, Counter())
    await note.delay(0)
    getattr(proxy, network)()
    with pytest.raises(BrokerUnavailable) as alone:
        await note.delay(1)
    with pytest.raises(BrokerUnavailable) as bulk:
        await flaky.enqueue([note.job(n) for n in range(2, 250)])
    assert (len(alone.value.jobs), len(bulk.value.jobs)) == (1, 248)
    proxy.up()
    results = await flaky.enqueue(alone.value.jobs + bulk.value.jobs)
    assert not any(result.deduplicated for result in results)
    assert await queued(app) == 250
    counting(app, ran)
    async with running(app, concurrency=32):
        await aeventually(lambda: len(ran) == 250)
    assert ran == Counter(range(250))


async def test_a_server_that_comes_back_in_time_is_only_a_delay(make_app: MakeApp, server: Server) -> None:
    app = make_app(enqueue_timeout=10)
    note = counting(app, Counter())
    await note.delay(0)
    server.kill()
    call = asyncio.create_task(note.delay(1))
    done, _ = await asyncio.wait([call], timeout=0.1)
    assert not done
    server.start()
    result = await call
    assert not result.deduplicated
    assert await queued(app) == 1


async def test_a_server_out_of_memory_raises_and_nothing_is_created(
    make_app: MakeApp, server: Server
) -> None:
    app = make_app(enqueue_timeout=0.3)
    note = counting(app, Counter())
    await note.delay(0)
    with server.configured(maxmemory="1"), pytest.raises(BrokerUnavailable, match="OOM"):
        await note.delay(1)
    assert await queued(app) == 1


async def test_a_server_that_has_forgotten_its_scripts_learns_them_again(app: App, server: Server) -> None:
    note = counting(app, Counter())
    await note.delay(0)
    with server.client() as client:
        client.script_flush()
    await note.delay(1)
    assert await queued(app) == 2


async def test_a_wrong_password_is_an_error_at_once_that_does_not_show_it(make_app: MakeApp) -> None:
    with Server(password="open sesame") as server:
        url = server.url.replace("open%20sesame", "not%20sesame")
        app = make_app(redis_url=url, enqueue_timeout=10)
        began = time.monotonic()
        with pytest.raises(BrokerUnavailable, match="WRONGPASS") as failed:
            await counting(app, Counter()).delay(1)
        assert time.monotonic() - began < 5
        assert "sesame" not in str(failed.value)
        app = make_app(redis_url=server.url)
        await counting(app, Counter()).delay(1)


async def send_in_turn(task: Task[[int], int], numbers: range) -> None:
    for n in numbers:
        await task.delay(n)


async def queued(app: App, queue: str = "default") -> int:
    return await app.client.ask(verbs.queues.length(app.client.keys(queue), "s"))


@contextmanager
def script_calls(server: Server) -> Generator[Callable[[], int]]:
    with server.client() as client:
        before = calls_of_scripts(client)
        yield lambda: calls_of_scripts(client) - before


def calls_of_scripts(client: redis.Redis) -> int:
    stats = client.info("commandstats")
    return sum(int(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"]) for name in ("evalsha", "eval"))


def noted(error: BaseException) -> str:
    return "\n".join(error.__notes__)
