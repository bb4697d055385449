"""The same tasks without an event loop: scripts, threads, web views, forked processes."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, cast

import pytest

from fennelq import (
    BrokerUnavailable,
    DuplicateJob,
    EnqueueFailed,
    InvalidArguments,
    InvalidJobId,
    JobCancelled,
    JobExpired,
    ResultExpired,
    ResultTimeout,
    Status,
    Task,
    TaskFailed,
    sync,
)
from fennelq import waiting as waiting_module
from fennelq.broker.keys import queue_keys
from tests.features.conftest import IMPATIENT
from tests.features.forking import CHILDREN
from tests.kit.apps import LocalApp
from tests.kit.proxy import Proxy
from tests.kit.server import Server
from tests.kit.spawn import Spawner
from tests.kit.waiting import eventually
from tests.kit.workers import running_aside

SLACK = 0.1


class Shop:
    """A task that doubles a number as soon as it is let through."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.app = LocalApp("shop", redis_url=url, **IMPATIENT, **settings)
        self.open = threading.Event()
        self.open.set()
        self.runs = Counter[int]()

        @self.app.task(name="shop:double", retries=0)
        def double(n: int) -> int:
            self.open.wait(20)
            self.runs[n] += 1
            if n < 0:
                raise ValueError("less than nothing")
            return 2 * n

        self.double: Task[[int], int] = double


@pytest.fixture
def shop(redis_url: str) -> Iterator[Shop]:
    shop = Shop(redis_url)
    yield shop
    shop.app.blocking.close()


@pytest.fixture
def flaky(proxy: Proxy) -> Iterator[Shop]:
    """The same shop, seen through a network that may be broken."""
    shop = Shop(proxy.url, enqueue_timeout=0.5)
    yield shop
    shop.app.blocking.close()


def test_a_task_is_sent_and_its_result_is_got_without_an_event_loop(shop: Shop) -> None:
    with running_aside(shop.app):
        result = shop.double.sync.delay(21)
        assert result.get(timeout=5) == 42
        assert result.get() == 42
        assert result.status() is Status.SUCCESS
        info = result.info()
    assert info is not None
    assert (info.id, info.tries) == (result.id, 1)


def test_options_map_and_names_are_the_same(shop: Shop) -> None:
    with running_aside(shop.app):
        assert [r.get(timeout=5) for r in shop.double.sync.map([1, 2, 3])] == [2, 4, 6]
        urgent = shop.double.options(priority="high").sync.options(queue="urgent")
        result = urgent.delay(4)
        assert result.id.startswith("urgent:")
        assert result.get(timeout=5) == 8
        first = shop.double.options(key="once").sync.delay(5)
        again = shop.double.options(key="once").sync.delay(5)
        assert (again.id, again.deduplicated, first.deduplicated) == (first.id, True, False)
        assert again.get(timeout=5) == 10


def test_a_wrong_call_fails_at_delay(shop: Shop) -> None:
    with pytest.raises(InvalidArguments, match="n"):
        shop.double.sync.delay("two")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_any_number_of_threads_may_send_and_wait(shop: Shop) -> None:
    def work(start: int) -> list[int]:
        return [shop.double.sync.delay(n).get(timeout=10) for n in range(start, start + 10)]

    with running_aside(shop.app, concurrency=32), ThreadPoolExecutor(20) as threads:
        values = [value for values in threads.map(work, range(0, 200, 10)) for value in values]
    assert values == [2 * n for n in range(200)]
    assert shop.runs == Counter(range(200))


def test_any_number_of_threads_may_wait_for_one_result(shop: Shop, server: Server) -> None:
    shop.open.clear()
    with running_aside(shop.app), ThreadPoolExecutor(20) as threads:
        result = shop.double.sync.delay(21)
        waiting = [threads.submit(result.get, 10) for _ in range(20)]
        eventually(lambda: len(shop.app.blocking.inbox._desk()._sleeping) == 19)
        assert subscribers(server) == 1
        shop.open.set()
        assert [waiter.result() for waiter in waiting] == [42] * 20
        assert result.get(timeout=5) == 42


async def test_it_works_inside_a_running_event_loop(shop: Shop) -> None:
    """It blocks that loop, as synchronous code does; but it needs no other and hangs on none."""
    with running_aside(shop.app):
        assert shop.double.sync.delay(21).get(timeout=5) == 42
        assert await asyncio.to_thread(lambda: shop.double.sync.delay(4).get(timeout=5)) == 8
        assert await (await shop.double.delay(5)).get(timeout=5) == 10
        await shop.app.close()


def test_one_event_loop_after_another_leaves_no_connections_behind(shop: Shop, server: Server) -> None:
    """As a program does that calls `asyncio.run` again and again, or a bridge from synchronous code."""

    async def send(n: int) -> None:
        await shop.double.delay(n)

    with warnings.catch_warnings(), server.client() as client:
        warnings.simplefilter("ignore", ResourceWarning)  # nobody has closed the app
        for n in range(20):
            asyncio.run(send(n))
        gc.collect()
        eventually(lambda: len(client.client_list()) <= 3)
    with running_aside(shop.app):
        eventually(lambda: len(shop.runs) == 20)


def test_it_survives_a_fork(shop: Shop, redis_url: str, spawn: Spawner) -> None:
    with running_aside(shop.app):
        program = spawn("tests.features.forking", redis_url)
        assert program.returncode() == 0
    lines = program.text.split("\n")
    assert lines[0] == "before 2"
    assert sorted(lines[1 : 1 + CHILDREN]) == ["child 0", "child 2", "child 4"]
    assert lines[1 + CHILDREN] == "after 200"


# How jobs end


def test_every_other_end_raises(shop: Shop) -> None:
    with running_aside(shop.app):
        dead = shop.double.sync.delay(-1)
        for _ in range(2):
            with pytest.raises(TaskFailed, match="less than nothing"):
                dead.get(timeout=5)
        expired = shop.double.options(delay=0.02, expires=0.001).sync.delay(1)
        with pytest.raises(JobExpired):
            expired.get(timeout=5)
        cancelled = shop.double.options(delay=500).sync.delay(1)
        assert cancelled.status() is Status.SCHEDULED
        info = cancelled.info()
        assert info is not None
        assert info.due_at is not None
        assert cancelled.cancel()
        assert not cancelled.cancel()
        with pytest.raises(JobCancelled):
            cancelled.get(timeout=5)
    unknown = sync.BlockingResult[int](shop.app, "default:nobody", None)
    assert (unknown.status(), unknown.info(), unknown.cancel()) == (Status.UNKNOWN, None, False)
    with pytest.raises(ResultExpired):
        unknown.get()


def test_a_waiting_thread_is_told_of_a_cancellation(shop: Shop, server: Server) -> None:
    result = shop.double.options(delay=500).sync.delay(1)
    with ThreadPoolExecutor(1) as threads:
        waiter = threads.submit(result.get)
        eventually(lambda: subscribers(server) == 1)
        assert result.cancel()
        with pytest.raises(JobCancelled):
            waiter.result(timeout=5)


@pytest.mark.parametrize("timeout", [0, 0.05, 0.4])
def test_a_timeout_is_honoured(shop: Shop, timeout: float) -> None:
    result = shop.double.options(delay=500).sync.delay(1)
    assert timeout <= quickest(ResultTimeout, lambda: result.get(timeout=timeout)) < timeout + SLACK


def test_who_does_not_want_to_wait_gets_what_is_there(shop: Shop) -> None:
    with running_aside(shop.app):
        result = shop.double.sync.delay(21)
        result.get(timeout=5)
        assert result.get(timeout=0) == 42


def test_with_a_timeout_of_zero_one_gets_what_is_there_and_registers_nothing(
    shop: Shop, server: Server
) -> None:
    result = shop.double.options(delay=500).sync.delay(1)
    for _ in range(20):
        with pytest.raises(ResultTimeout):
            result.get(timeout=0)
    assert registered(shop, server, result.id) == []
    assert result.cancel()
    with pytest.raises(JobCancelled):
        result.get(timeout=0)
    with pytest.raises(ResultExpired):
        sync.BlockingResult[int](shop.app, "default:nobody", None).get(timeout=0)


def test_a_process_that_polls_uses_one_connection_and_registers_once(
    flaky: Shop, shop: Shop, proxy: Proxy, server: Server
) -> None:
    result = flaky.double.options(delay=500).sync.delay(1)
    for _ in range(30):
        with pytest.raises(ResultTimeout):
            result.get(timeout=0.001)
    assert len(registered(shop, server, result.id)) == 1
    assert proxy.counters.connections == 2
    assert result.cancel()


def test_an_id_that_is_not_one_is_refused(shop: Shop) -> None:
    for bad in ("mail:\ud800", "mail:7\n", "mail"):
        handle = sync.BlockingResult[int](shop.app, bad, None)
        for call in (handle.get, lambda handle=handle: handle.get(timeout=0), handle.status, handle.cancel):
            with pytest.raises(InvalidJobId):
                call()


def test_a_result_without_its_task_is_decoded_by_the_task_that_the_record_names(shop: Shop) -> None:
    """Also when it comes as a message, which does not name the task."""

    @shop.app.task(name="shop:set", retries=0)
    def made() -> set[int]:
        shop.open.wait(20)
        return {1, 2}

    shop.open.clear()
    with running_aside(shop.app), ThreadPoolExecutor(1) as threads:
        handle = sync.BlockingResult[set[int]](shop.app, made.sync.delay().id, None)
        waiter = threads.submit(handle.get, 10)
        eventually(lambda: shop.app.blocking.inbox._desk()._busy)
        shop.open.set()
        assert waiter.result(timeout=10) == {1, 2}


@pytest.mark.parametrize("right", ["resetchannels", "-subscribe"])
def test_without_the_right_to_subscribe_results_are_polled_for(
    shop: Shop, server: Server, caplog: pytest.LogCaptureFixture, right: str
) -> None:
    waiting_module._reported.discard(("shop", "NOPERM"))
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "deaf", "on", ">pw", "~*", "&*", "+@all", right)
        deaf = Shop(server.url.replace("redis://", "redis://deaf:pw@"))
        shop.open.clear()
        with running_aside(shop.app), ThreadPoolExecutor(5) as threads:
            handles = deaf.double.sync.map(range(5))
            waiters = [threads.submit(handle.get, 10) for handle in handles]
            eventually(lambda: deaf.app.blocking.inbox._desk()._refused)
            shop.open.set()
            assert [waiter.result(timeout=10) for waiter in waiters] == [0, 2, 4, 6, 8]
            with pytest.raises(TaskFailed):
                deaf.double.sync.delay(-1).get(timeout=10)
        deaf.app.blocking.close()
        client.execute_command("ACL", "DELUSER", "deaf")
    lines = [line for line in caplog.records if line.name == "fennelq"]
    assert [line.levelname for line in lines] == ["WARNING"]
    assert "NOPERM" in lines[0].getMessage()


def test_polling_gets_slower_up_to_a_bound() -> None:
    assert [*islice(sync._pauses(), 5)] == [0.25, 0.5, 1.0, 1.0, 1.0]


# A broken network


@pytest.mark.parametrize("network", ["refuse", "blackhole", "half"])
def test_a_timeout_is_honoured_while_redis_does_not_answer(flaky: Shop, proxy: Proxy, network: str) -> None:
    result = flaky.double.options(delay=500).sync.delay(1)
    getattr(proxy, network)()
    assert 0.3 <= quickest(ResultTimeout, lambda: result.get(timeout=0.3)) < 0.3 + SLACK


@pytest.mark.parametrize("network", ["refuse", "blackhole", "half"])
def test_without_redis_a_delay_fails_within_its_bound(flaky: Shop, proxy: Proxy, network: str) -> None:
    flaky.double.sync.delay(0)
    getattr(proxy, network)()
    assert 0.5 <= quickest(BrokerUnavailable, lambda: flaky.double.sync.delay(1)) < 0.5 + SLACK
    assert 0.5 <= quickest(BrokerUnavailable, lambda: flaky.double.sync.map(range(500))) < 0.5 + SLACK


@pytest.mark.parametrize("network", ["refuse", "half"])
def test_jobs_that_could_not_be_sent_for_sure_are_completed_without_duplicates(
    flaky: Shop, shop: Shop, proxy: Proxy, network: str
) -> None:
    flaky.double.sync.delay(0)
    getattr(proxy, network)()
    with pytest.raises(BrokerUnavailable) as unavailable:
        flaky.double.sync.map(range(1, 250))
    assert len(unavailable.value.jobs) == 249
    proxy.up()
    results = sync.enqueue(flaky.app, unavailable.value.jobs)
    assert not any(result.deduplicated for result in results)
    with running_aside(shop.app, concurrency=32):
        eventually(lambda: len(shop.runs) == 250)
    assert shop.runs == Counter(range(250))


def test_a_delay_whose_replies_are_lost_makes_exactly_one_job(flaky: Shop, shop: Shop, proxy: Proxy) -> None:
    flaky.double.sync.delay(0)
    fate = random.Random(7)
    proxy.drop_replies(lambda _: fate.random() < 0.3, command="EVALSHA", cut=True)
    results = [flaky.double.sync.delay(n) for n in range(1, 21)]
    assert proxy.counters.dropped >= 3
    assert not any(result.deduplicated for result in results)
    with running_aside(shop.app):
        eventually(lambda: len(shop.runs) == 21)
    assert shop.runs == Counter(range(21))


def test_a_waiter_survives_the_loss_of_its_connection(
    flaky: Shop, shop: Shop, proxy: Proxy, server: Server
) -> None:
    shop.open.clear()
    with running_aside(shop.app), ThreadPoolExecutor(1) as threads:
        result = flaky.double.sync.delay(21)
        waiter = threads.submit(result.get, 10)
        for _ in range(3):
            eventually(lambda: subscribers(server) == 1)
            assert proxy.cut_all()
        eventually(lambda: subscribers(server) == 1)
        shop.open.set()
        assert waiter.result(timeout=10) == 42


def test_one_refused_job_of_a_bulk_call_is_named_and_the_others_are_sent(shop: Shop) -> None:
    shop.double.options(job_id="taken").sync.delay(0)
    refused = shop.double.options(job_id="taken").job(1)
    with pytest.raises(EnqueueFailed, match="1 of 3") as failed:
        sync.enqueue(shop.app, [shop.double.job(2), refused, shop.double.job(3)])
    assert isinstance(failed.value.failures[1], DuplicateJob)
    with running_aside(shop.app):
        assert [failed.value.handles[i].get(timeout=5) for i in (0, 2)] == [4, 6]


def quickest(expected: type[BaseException], call: Callable[[], object]) -> float:
    """The seconds until it raises; the quickest of several attempts, because machines are busy."""
    took: list[float] = []
    for _ in range(3):
        began = time.monotonic()
        with pytest.raises(expected):
            call()
        took.append(time.monotonic() - began)
    return min(took)


def registered(shop: Shop, server: Server, job_id: str) -> list[bytes]:
    """The channels that the job's record names."""
    queue, _, key = job_id.partition(":")
    with server.client() as client:
        said = cast("bytes | None", client.hget(queue_keys(shop.app.namespace, queue).record(key), "W"))
    return (said or b"").split()


def subscribers(server: Server) -> int:
    """How many connections listen to a channel of results."""
    with server.client() as client:
        return sum(int(c["sub"]) > 0 for c in client.client_list())
