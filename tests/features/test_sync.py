"""The same tasks without an event loop: scripts, threads, web views, forked processes."""

from __future__ import annotations

import asyncio
import gc
import inspect
import random
import re
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
import redis

import fennelq
from fennelq import (
    App,
    AsyncResult,
    Audit,
    AwaitedOperation,
    BlockingApp,
    BlockingAudit,
    BlockingDeadLetters,
    BlockingExecutors,
    BlockingHistory,
    BlockingJobContext,
    BlockingJobs,
    BlockingLimits,
    BlockingOperation,
    BlockingOperations,
    BlockingQueue,
    BlockingQueues,
    BlockingResult,
    BlockingRunTimes,
    BlockingSchedules,
    BlockingTask,
    BrokerUnavailable,
    ConfigurationError,
    DeadLetters,
    DuplicateJob,
    EnqueueFailed,
    Executors,
    History,
    InvalidArguments,
    InvalidJobId,
    Job,
    JobCancelled,
    JobContext,
    JobExpired,
    Jobs,
    Limits,
    Operations,
    Queue,
    Queues,
    ResultExpired,
    ResultTimeout,
    RunTimes,
    Schedules,
    Status,
    Task,
    TaskFailed,
    UnknownSchedule,
    UsageError,
    as_completed,
    gather,
    wait,
)
from fennelq.broker.keys import queue_keys
from fennelq.sync import sync
from tests.features.conftest import IMPATIENT, new_namespace, refusals, user_who_may_not, waiters_on
from tests.features.forking import CHILDREN
from tests.kit.apps import LocalApp
from tests.kit.proxy import Proxy
from tests.kit.server import Server
from tests.kit.spawn import Spawner
from tests.kit.waiting import eventually
from tests.kit.workers import running, running_aside

SLACK = 0.25


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
    """The same shop, seen through a network that may be broken. It soon gives up."""
    shop = Shop(proxy.url, enqueue_timeout=0.5)
    yield shop
    shop.app.blocking.close()


@pytest.fixture
def patient(proxy: Proxy) -> Iterator[Shop]:
    """The same shop, seen through a network that may be broken. It does not give up during a test."""
    shop = Shop(proxy.url, enqueue_timeout=30)
    yield shop
    shop.app.blocking.close()


def test_a_task_is_sent_and_its_result_is_got_without_an_event_loop(shop: Shop) -> None:
    with running_aside(shop.app):
        result = shop.double.sync.delay(21)
        assert result.get(timeout=30) == 42
        assert result.get() == 42
        assert result.status() is Status.SUCCESS
        info = result.info()
    assert info is not None
    assert (info.id, info.tries) == (result.id, 1)


def test_options_map_and_names_are_the_same(shop: Shop) -> None:
    with running_aside(shop.app):
        assert [r.get(timeout=30) for r in shop.double.sync.map([1, 2, 3])] == [2, 4, 6]
        urgent = shop.double.options(priority="high").sync.options(queue="urgent")
        result = urgent.delay(4)
        assert result.id.startswith("urgent:")
        assert result.get(timeout=30) == 8
        first = shop.double.options(key="once").sync.delay(5)
        again = shop.double.options(key="once").sync.delay(5)
        assert (again.id, again.deduplicated, first.deduplicated) == (first.id, True, False)
        assert again.get(timeout=30) == 10


def test_a_wrong_call_fails_at_delay(shop: Shop) -> None:
    with pytest.raises(InvalidArguments, match="n"):
        shop.double.sync.delay("two")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_any_number_of_threads_may_send_and_wait(shop: Shop) -> None:
    def work(start: int) -> list[int]:
        return [shop.double.sync.delay(n).get(timeout=30) for n in range(start, start + 10)]

    with running_aside(shop.app, concurrency=32), ThreadPoolExecutor(20) as threads:
        values = [value for values in threads.map(work, range(0, 200, 10)) for value in values]
    assert values == [2 * n for n in range(200)]
    assert shop.runs == Counter(range(200))


def test_any_number_of_threads_may_wait_for_one_result(shop: Shop, server: Server) -> None:
    shop.open.clear()
    with running_aside(shop.app), ThreadPoolExecutor(20) as threads:
        result = shop.double.sync.delay(21)
        waiting = [threads.submit(result.get, 10) for _ in range(20)]
        eventually(lambda: shop.app.blocking.inbox.waiting == 20)
        assert waiters_on(server) == 1
        shop.open.set()
        assert [waiter.result() for waiter in waiting] == [42] * 20
        assert result.get(timeout=30) == 42


# Inside an event loop


async def test_inside_a_running_event_loop_it_works_and_warns_with_the_form_to_await(shop: Shop) -> None:
    """It blocks that loop, as synchronous code does; but it needs no other and hangs on none."""
    with running_aside(shop.app):
        with pytest.warns(RuntimeWarning) as warned:
            assert shop.double.sync.delay(21).get(timeout=30) == 42
        # The collector of garbage may run now, and warn of what an earlier test has left.
        ours = [warning for warning in warned if issubclass(warning.category, RuntimeWarning)]
        assert [str(warning.message) for warning in ours] == [
            "double.sync.delay(…) blocks the event loop: use `await double.delay(…)`",
            "BlockingResult.get(…) blocks the event loop: use `await app.result(id).get(…)`",
        ]
        assert {warning.filename for warning in ours} == {__file__}
        assert await asyncio.to_thread(lambda: shop.double.sync.delay(4).get(timeout=30)) == 8
        assert await (await shop.double.delay(5)).get(timeout=30) == 10
        await shop.app.close()


async def test_inside_a_running_event_loop_each_place_is_warned_about_once(shop: Shop) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            shop.app.sync.queues.names()
        shop.app.sync.queues.names()
    lines = [warning.lineno for warning in caught]
    assert len(lines) == len(set(lines)) == 2


NO_RESULTS: list[BlockingResult[int]] = []
EVERY_BLOCKING_CALL: dict[str, Callable[[Shop], object]] = {
    "await double.delay(…)": lambda shop: shop.double.sync.delay(1),
    "await double.map(…)": lambda shop: shop.double.sync.map([1]),
    "await app.enqueue(…)": lambda shop: shop.app.sync.enqueue(list[Job[int]]()),
    "await app.send(…)": lambda shop: shop.app.sync.send("other.tasks:double", 1),
    "await app.call(…)": lambda shop: shop.app.sync.call(shop.double.job(1), timeout=0),
    "await gather(…)": lambda shop: shop.app.sync.gather(*NO_RESULTS),
    "await wait(…)": lambda shop: shop.app.sync.wait(NO_RESULTS),
    "async for result in as_completed(…)": lambda shop: shop.app.sync.as_completed(NO_RESULTS),
    "await app.result(id).get(…)": lambda shop: shop.app.sync.result("mail:1").get(0),
    "await app.result(id).status(…)": lambda shop: shop.app.sync.result("mail:1").status(),
    "await app.result(id).info(…)": lambda shop: shop.app.sync.result("mail:1").info(),
    "await app.result(id).history(…)": lambda shop: shop.app.sync.result("mail:1").history(),
    "await app.result(id).cancel(…)": lambda shop: shop.app.sync.result("mail:1").cancel(),
    "await app.dlq.list(…)": lambda shop: shop.app.sync.dlq.list(),
    "async for letter in app.dlq.scan(…)": lambda shop: shop.app.sync.dlq.scan(),
    "await app.dlq.get(…)": lambda shop: shop.app.sync.dlq.get("mail:1"),
    "await app.dlq.count(…)": lambda shop: shop.app.sync.dlq.count(),
    "await app.dlq.groups(…)": lambda shop: shop.app.sync.dlq.groups(),
    "await app.dlq.replay(…)": lambda shop: shop.app.sync.dlq.replay(),
    "await app.dlq.purge(…)": lambda shop: shop.app.sync.dlq.purge(all=True),
    "await app.dlq.plan(…)": lambda shop: shop.app.sync.dlq.plan(),
    "await app.dlq.edit(…)": lambda shop: shop.app.sync.dlq.edit("mail:1", {}),
    "async for letter in app.dlq.export(…)": lambda shop: shop.app.sync.dlq.export(),
    "await app.dlq.import_(…)": lambda shop: shop.app.sync.dlq.import_([]),
    "await app.schedules.add(…)": lambda shop: shop.app.sync.schedules.add(shop.double.job(1), every=60),
    "await app.schedules.pause(…)": lambda shop: shop.app.sync.schedules.pause("x"),
    "await app.schedules.resume(…)": lambda shop: shop.app.sync.schedules.resume("x"),
    "await app.schedules.remove(…)": lambda shop: shop.app.sync.schedules.remove("x"),
    "await app.schedules.run(…)": lambda shop: shop.app.sync.schedules.run("x"),
    "await app.schedules.get(…)": lambda shop: shop.app.sync.schedules.get("x"),
    "await app.schedules.list(…)": lambda shop: shop.app.sync.schedules.list(),
    "await app.queues.names(…)": lambda shop: shop.app.sync.queues.names(),
    "await app.queues.info(…)": lambda shop: shop.app.sync.queues.info("mail"),
    "await app.queues.list(…)": lambda shop: shop.app.sync.queues.list(),
    "await app.queues.peek(…)": lambda shop: shop.app.sync.queues.peek("mail"),
    "await app.queues.purge(…)": lambda shop: shop.app.sync.queues.purge("mail"),
}


@pytest.mark.parametrize("instead", EVERY_BLOCKING_CALL)
async def test_every_call_that_blocks_names_what_to_await_instead(shop: Shop, instead: str) -> None:
    with pytest.raises(RuntimeWarning, match=re.escape(f"blocks the event loop: use `{instead}`")):
        EVERY_BLOCKING_CALL[instead](shop)


def test_on_the_event_loop_of_a_worker_it_is_an_error_that_names_what_to_await(shop: Shop) -> None:
    @shop.app.task(retries=0)
    async def blocking() -> int:
        return shop.double.sync.delay(1).get(timeout=30)

    @shop.app.task(retries=0)
    def in_a_thread() -> int:
        return shop.double.sync.delay(2).get(timeout=30)

    with running_aside(shop.app):
        with pytest.raises(TaskFailed) as failed:
            blocking.sync.delay().get(timeout=30)
        assert in_a_thread.sync.delay().get(timeout=30) == 4
    assert (failed.value.error_type, failed.value.message) == (
        "fennelq.ConfigurationError",
        "double.sync.delay(…) would block the event loop of this worker, and every job that runs on it: use "
        "`await double.delay(…)`, or make the task a plain `def`, which runs in a thread",
    )
    assert shop.runs == Counter([2])


async def test_a_loop_whose_worker_has_stopped_is_a_loop_like_any_other(shop: Shop) -> None:
    async with running(shop.app):
        assert await (await shop.double.delay(1)).get(timeout=30) == 2
        with pytest.raises(ConfigurationError, match=r"event loop of this worker.*`await app\.queues\.names"):
            shop.app.sync.queues.names()
    with pytest.warns(RuntimeWarning):
        shop.app.sync.queues.names()
    await shop.app.close()


def test_one_event_loop_after_another_leaves_no_connections_behind(shop: Shop, server: Server) -> None:
    """As a program does that calls `asyncio.run` again and again, or a bridge from synchronous code."""

    async def send(n: int) -> None:
        await shop.double.delay(n)

    with warnings.catch_warnings(), server.client() as client:
        warnings.simplefilter("ignore", ResourceWarning)  # the app was not closed
        before = connections(client)
        for n in range(20):
            asyncio.run(send(n))
        gc.collect()
        eventually(lambda: len(connections(client) - before) <= 2)
    with running_aside(shop.app):
        eventually(lambda: len(shop.runs) == 20)


def connections(client: redis.Redis) -> set[str]:
    """The ids of all connections to the server."""
    return {one["id"] for one in client.client_list()}


def test_it_survives_a_fork(shop: Shop, redis_url: str, spawn: Spawner) -> None:
    with running_aside(shop.app):
        program = spawn("tests.features.forking", redis_url)
        assert program.returncode() == 0
    lines = program.text.split("\n")
    assert lines[0] == "before 2"
    assert sorted(lines[1 : 1 + CHILDREN]) == ["child 0", "child 2", "child 4"]
    assert lines[1 + CHILDREN] == "after 200"


# Everything that an app can do


def test_a_handle_is_made_from_an_id_in_another_process(shop: Shop) -> None:
    with running_aside(shop.app):
        sent = shop.double.sync.delay(21)
        same = shop.app.sync.result(sent.id)
        assert same.get(timeout=30) == 42
        assert (same, {same}, same.deduplicated) == (sent, {sent}, False)
    with pytest.raises(InvalidJobId):
        shop.app.sync.result("mail")


def test_jobs_are_sent_together_by_name_and_waited_for_at_once(shop: Shop) -> None:
    app = shop.app.sync
    with running_aside(shop.app):
        first, second = app.enqueue([shop.double.job(1), shop.double.job(2)])
        assert (first.get(timeout=30), second.get(timeout=30)) == (2, 4)
        assert app.send("shop:double", 3).get(timeout=30) == 6
        assert app.send("shop:double", _kwargs={"n": 4}, priority="high").get(timeout=30) == 8
        assert app.call(shop.double.job(5), timeout=30) == 10
        with pytest.raises(TaskFailed):
            app.call(shop.double.job(-1), timeout=30)


def test_a_call_that_takes_too_long_is_a_timeout(shop: Shop) -> None:
    later = shop.double.options(delay=500).job(1)
    with pytest.raises(ResultTimeout) as late:
        shop.app.sync.call(later, timeout=0)
    assert late.value.job_id == later.id


def test_gather_gives_the_values_in_order(shop: Shop) -> None:
    app = shop.app.sync
    with running_aside(shop.app):
        results = shop.double.sync.map([3, 1, 2])
        assert app.gather(*results, timeout=30) == [6, 2, 4]
        assert [*app.gather(results[0], results[0], timeout=30)] == [6, 6]
        assert app.gather() == []
        bad = shop.double.sync.delay(-1)
        with pytest.raises(TaskFailed):
            app.gather(*results, bad, timeout=30)
        later = shop.double.options(delay=500).sync.delay(1)
        with pytest.raises(ResultTimeout) as late:
            app.gather(*results, later, timeout=0.05)
        assert (late.value.job_id, late.value.timeout) == (later.id, 0.05)
        six, failed, missing = app.gather(results[0], bad, later, timeout=0, return_exceptions=True)
        unknown = app.gather(app.result("default:nothing"), return_exceptions=True)
    assert six == 6
    assert isinstance(failed, TaskFailed)
    assert isinstance(missing, ResultTimeout)
    assert isinstance(unknown[0], ResultExpired)


def test_gather_raises_the_first_error_without_waiting_for_the_rest(shop: Shop) -> None:
    later = shop.double.options(delay=500).sync.delay(1)
    with running_aside(shop.app), pytest.raises(TaskFailed):
        shop.app.sync.gather(later, shop.double.sync.delay(-1))


def test_one_thread_learns_of_every_end_as_it_comes(shop: Shop, server: Server) -> None:
    """By messages: it subscribes once, and looks once at each job."""
    gates = [threading.Event() for _ in range(3)]

    @shop.app.task(name="shop:gate", queue="gates")
    def gate(n: int) -> int:
        gates[n].wait(20)
        return n

    with running_aside(shop.app):
        results = [*gate.sync.map(range(3)), shop.double.options(delay=500).sync.delay(1)]
        ends = shop.app.sync.as_completed(results)
        for n in (2, 0, 1):
            gates[n].set()
            assert next(ends) == results[n]
        assert waiters_on(server) == 1
        assert results[3].cancel()
        assert list(ends) == [results[3]]


def test_wait_separates_those_that_have_ended_from_the_others(shop: Shop) -> None:
    app = shop.app.sync
    with running_aside(shop.app):
        soon, later = shop.double.sync.delay(1), shop.double.options(delay=500).sync.delay(2)
        assert app.wait([soon, later], return_when="first") == ({soon}, {later})
        assert app.wait([soon, later], timeout=0.01) == ({soon}, {later})
        assert app.wait([soon, later], timeout=0) == ({soon}, {later})
        assert app.wait([]) == (set(), set())
        with pytest.raises(TimeoutError, match=r"1 of 2 jobs have not ended after 0\.05 s"):
            list(app.as_completed([soon, later], timeout=0.05))


def test_one_thread_may_wait_for_thousands(shop: Shop) -> None:
    with running_aside(shop.app, concurrency=64):
        results = shop.double.sync.map(range(1500))
        assert shop.app.sync.gather(*results, timeout=60) == [2 * n for n in range(1500)]


def test_the_dead_are_found_replayed_and_purged(shop: Shop) -> None:
    dlq = shop.app.sync.dlq
    with running_aside(shop.app):
        results = shop.double.sync.map([-1, -2, -3])
        shop.app.sync.wait(results, timeout=30)
        letters = dlq.list(task="double", order="oldest")
        assert {letter.id for letter in letters} == {result.id for result in results}
        assert (dlq.count(), dlq.count(error="KeyError")) == (3, 0)
        (group,) = dlq.groups()
        assert (group.task, group.error_type, group.jobs) == ("shop:double", "ValueError", 3)
        assert [letter.id for letter in dlq.scan()] == [letter.id for letter in letters]
        whole = dlq.get(letters[0].id)
        assert whole is not None
        assert whole.traceback.endswith("ValueError: less than nothing\n")
        assert dlq.get(shop.double.options(delay=500).sync.delay(1).id) is None
        counts: list[int] = []
        assert dlq.replay(limit=2, rate=1000, progress=counts.append).replayed == 2
        assert counts == [2]
        eventually(lambda: dlq.count() == 3)
        assert (dlq.purge(ids=[letters[0].id]), dlq.purge(all=True), dlq.count()) == (1, 2, 0)


def test_results_have_a_history(shop: Shop) -> None:
    with running_aside(shop.app):
        result = shop.double.sync.delay(-1)
        shop.app.sync.wait([result], timeout=30)
        shop.app.sync.dlq.replay(ids=[result.id])
        events = eventually(result.history)
    assert "replayed" in [event.what for event in events]


def test_schedules_are_made_looked_at_and_removed(shop: Shop) -> None:
    schedules = shop.app.sync.schedules
    with running_aside(shop.app):
        info = schedules.add(shop.double.job(7), every=3600, name="seven", overlap="skip")
        assert (info.name, info.paused, info.declared) == ("seven", False, False)
        schedules.pause("seven")
        assert schedules.get("seven").paused
        schedules.resume("seven")
        assert not schedules.get("seven").paused
        run = schedules.run("seven")
        assert run.get(timeout=30) == 14
        assert [(one.name, one.last_job) for one in schedules.list()] == [("seven", run.id)]
        schedules.remove("seven")
        with pytest.raises(UnknownSchedule):
            schedules.get("seven")


def test_queues_are_looked_at_and_emptied(shop: Shop) -> None:
    queues = shop.app.sync.queues
    waiting = shop.double.options(queue="mail").sync.map([1, 2, 3])
    later = shop.double.options(queue="mail", delay=500).sync.delay(4)
    assert queues.names() == ["default", "mail"]
    info = queues.info("mail")
    assert (info.waiting, info.scheduled, info.dead) == (3, 1, 0)
    assert [queue.name for queue in queues.list()] == ["default", "mail"]
    assert [job.id for job in queues.peek("mail", limit=2)] == [result.id for result in waiting[:2]]
    assert [job.id for job in queues.peek("mail", place="scheduled")] == [later.id]
    counts: list[int] = []
    assert (queues.purge("mail", counts.append), counts) == (4, [4])
    assert queues.info("mail").waiting == 0


def test_many_threads_may_use_all_of_it(shop: Shop) -> None:
    with running_aside(shop.app, concurrency=32), ThreadPoolExecutor(10) as threads:

        def work(n: int) -> tuple[int, Status, list[str]]:
            result = shop.app.sync.enqueue([shop.double.job(n)])[0]
            return result.get(timeout=30), result.status(), shop.app.sync.queues.names()

        done = list(threads.map(work, range(50)))
    assert done == [(2 * n, Status.SUCCESS, ["default"]) for n in range(50)]


def test_closing_ends_the_connections_and_the_app_can_be_used_again(shop: Shop, server: Server) -> None:
    with server.client() as client:
        before = len(client.client_list())
        with shop.app.sync as app:
            app.queues.names()
            assert len(client.client_list()) == before + 1
        eventually(lambda: len(client.client_list()) == before)
        assert shop.app.sync.queues.names() == ["default"]


@pytest.mark.parametrize("network", ["refuse", "blackhole", "half"])
def test_without_redis_everything_fails_within_its_bound(flaky: Shop, proxy: Proxy, network: str) -> None:
    flaky.double.sync.delay(0)
    getattr(proxy, network)()
    for call in (flaky.app.sync.dlq.list, flaky.app.sync.schedules.list, flaky.app.sync.queues.list):
        with pytest.raises(BrokerUnavailable):
            call()


def test_a_short_break_of_the_network_goes_unnoticed(patient: Shop, proxy: Proxy) -> None:
    patient.double.options(queue="mail").sync.map(range(5))
    proxy.cut_all()
    assert patient.app.sync.queues.info("mail").waiting == 5
    proxy.cut_all()
    assert [job.id for job in patient.app.sync.queues.peek("mail")] != []


# What is there twice is the same twice

TWINS: list[tuple[type[object], type[object]]] = [
    (App, BlockingApp),
    (AsyncResult, BlockingResult),
    (DeadLetters, BlockingDeadLetters),
    (Queues, BlockingQueues),
    (Schedules, BlockingSchedules),
    (Jobs, BlockingJobs),
    (Executors, BlockingExecutors),
    (Task, BlockingTask),
    (JobContext, BlockingJobContext),
    (Operations, BlockingOperations),
    (Limits, BlockingLimits),
    (RunTimes, BlockingRunTimes),
    (Audit, BlockingAudit),
    (History, BlockingHistory),
    (Queue, BlockingQueue),
]


def test_every_blocking_class_that_can_be_imported_is_compared_with_its_asynchronous_twin() -> None:
    """`BlockingOperation` is a `with` block: its methods are those of the `async with` block, by inheritance."""
    compared = {blocking.__name__ for _, blocking in TWINS}
    assert {name for name in fennelq.__all__ if name.startswith("Blocking")} == compared | {
        "BlockingOperation"
    }
    assert public_methods(BlockingOperation) == public_methods(AwaitedOperation)


@pytest.mark.parametrize(("awaited", "blocking"), TWINS, ids=lambda kind: kind.__name__)
def test_every_asynchronous_method_has_a_synchronous_one_with_the_same_parameters(
    awaited: type[object], blocking: type[object]
) -> None:
    methods = {
        name: method
        for name, method in inspect.getmembers(awaited)
        if is_public_and_asynchronous(name, method)
    }
    assert methods
    assert {name: parameters(method) for name, method in methods.items()} == {
        name: parameters(getattr(blocking, name, None)) for name in methods
    }


NOT_WITHOUT_A_LOOP: dict[str, str] = {
    **dict.fromkeys(
        ("App.task", "App.cron", "App.every", "App.describe"),
        "it sends nothing: the app's own method is for all code",
    ),
    **dict.fromkeys(
        (
            "App.sending",
            "App.performing",
            "App.on",
            "App.use",
            "App.carry",
            "App.redacting",
            "App.overrides",
            "App.route",
        ),
        "it changes what the app does, with a loop and without: the app's own method is for all code",
    ),
    **dict.fromkeys(
        ("Task.job", "Task.jobs", "Task.cron", "Task.every"),
        "it sends nothing: the task's own method is for all code",
    ),
}
"""Public methods that exist for code with an event loop only, and why."""
OF_THE_APP = ("gather", "wait", "as_completed")
"""Functions for code with an event loop. Without one they are methods, because a thread has no app of its own."""


@pytest.mark.parametrize(("awaited", "blocking"), TWINS, ids=lambda kind: kind.__name__)
def test_every_public_method_is_there_with_a_loop_and_without_or_has_a_reason(
    awaited: type[object], blocking: type[object]
) -> None:
    with_loop, without = public_methods(awaited), public_methods(blocking)
    assert with_loop
    assert without
    missing = {f"{awaited.__name__}.{name}" for name in with_loop.keys() - without.keys()}
    assert missing == {name for name in NOT_WITHOUT_A_LOOP if name.startswith(f"{awaited.__name__}.")}
    assert without.keys() - with_loop.keys() - {*OF_THE_APP} == set()
    for name in with_loop.keys() & without.keys():
        assert parameters(without[name]) == parameters(with_loop[name]), name


def public_methods(kind: type[object]) -> dict[str, object]:
    """Its public methods, inherited ones included: the operations of a family are written in a base class."""
    return {
        name: method
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


@pytest.mark.parametrize("function", [gather, wait, as_completed], ids=lambda function: function.__name__)
def test_every_asynchronous_function_is_a_method_of_the_synchronous_app(function: Callable[..., Any]) -> None:
    ours = parameters(getattr(BlockingApp, function.__name__))
    assert ours == parameters(function)


def test_whatever_an_app_brings_along_is_brought_by_its_synchronous_side() -> None:
    brought = {
        "dlq": BlockingDeadLetters,
        "queues": BlockingQueues,
        "schedules": BlockingSchedules,
        "jobs": BlockingJobs,
        "executors": BlockingExecutors,
        "times": BlockingRunTimes,
        "operations": BlockingOperations,
        "limits": BlockingLimits,
        "audit": BlockingAudit,
        "history": BlockingHistory,
    }
    app = App("shop", redis_url="redis://localhost")
    assert {name: type(getattr(app.sync, name)) for name in brought} == brought
    assert app.sync is app.sync


def is_public_and_asynchronous(name: str, method: object) -> bool:
    asynchronous = inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)
    return asynchronous and not name.startswith("_")


def parameters(method: Any) -> list[tuple[str, object, object, str]]:
    """Each parameter, without self: its name, how it is given, its default, its type."""
    if method is None:
        return []
    every = [value for value in inspect.signature(method).parameters.values() if value.name != "self"]
    return [
        (
            value.name,
            value.kind,
            value.default,
            str(value.annotation).replace("AsyncResult", "BlockingResult"),
        )
        for value in every
    ]


# Mistakes

NOT_TAKEN: dict[str, tuple[Callable[[Shop], object], str]] = {
    "many jobs": (
        lambda shop: cast("Any", shop.app.sync).enqueue(shop.double.job(1), shop.double.job(2)),
        "app.sync.enqueue takes one list of jobs: write app.sync.enqueue([double.job(1), double.job(2)])",
    ),
    "one job": (
        lambda shop: shop.app.sync.enqueue(cast("Any", shop.double.job(1))),
        "app.sync.enqueue takes a list of jobs: write app.sync.enqueue([double.job(1)])",
    ),
    "a call of a task": (
        lambda shop: shop.app.sync.call(cast("Any", shop.double)),
        "app.sync.call takes a job, not a task: write app.sync.call(double.job(…))",
    ),
    "many results to wait for": (
        lambda shop: cast("Any", shop.app.sync).wait(one_of(shop), one_of(shop)),
        "app.sync.wait takes one list of results: write app.sync.wait([first, second])",
    ),
    "one result to wait for": (
        lambda shop: shop.app.sync.wait(cast("Any", one_of(shop))),
        "app.sync.wait takes a list of results, not one: write app.sync.wait([result])",
    ),
    "a result to be awaited": (
        lambda shop: shop.app.sync.as_completed([cast("Any", shop.app.result("mail:1"))]),
        "app.sync.as_completed takes a list of results, and element 0 is the result of a job that was sent: an "
        "AsyncResult is for code with an event loop: use app.sync.result(result.id) in code without one",
    ),
    "jobs that were not sent": (
        lambda shop: shop.app.sync.as_completed([cast("Any", shop.double.job(1))]),
        "app.sync.as_completed takes a list of results, and element 0 is a job: "
        "`double.sync.delay(…)` returns a result",
    ),
    "a list to gather": (
        lambda shop: shop.app.sync.gather(cast("Any", [one_of(shop)])),
        "app.sync.gather takes results one by one, not a list of them: write app.sync.gather(*results)",
    ),
    "options without names": (
        lambda shop: cast("Any", shop.double.sync).options("mail"),
        'double.options takes options by name, like double.options(queue="mail")',
    ),
}


@pytest.mark.parametrize("mistake", NOT_TAKEN)
def test_a_mistake_is_refused_with_what_to_write_instead(shop: Shop, mistake: str) -> None:
    call, sentence = NOT_TAKEN[mistake]
    with pytest.raises(UsageError) as refused:
        call(shop)
    assert str(refused.value) == sentence


def one_of(shop: Shop) -> BlockingResult[Any]:
    return shop.app.sync.result("mail:1")


# How jobs end


def test_every_other_end_raises(shop: Shop) -> None:
    with running_aside(shop.app):
        dead = shop.double.sync.delay(-1)
        for _ in range(2):
            with pytest.raises(TaskFailed, match="less than nothing"):
                dead.get(timeout=30)
        due = datetime.now(UTC) + timedelta(seconds=0.02)
        expired = shop.double.options(at=due, expires=0.001).sync.delay(1)
        with pytest.raises(JobExpired):
            expired.get(timeout=30)
        cancelled = shop.double.options(delay=500).sync.delay(1)
        assert cancelled.status() is Status.SCHEDULED
        info = cancelled.info()
        assert info is not None
        assert info.due_at is not None
        assert cancelled.cancel()
        assert not cancelled.cancel()
        with pytest.raises(JobCancelled):
            cancelled.get(timeout=30)
    unknown = sync.BlockingResult[int](shop.app, "default:missing", None)
    assert (unknown.status(), unknown.info(), unknown.cancel()) == (Status.UNKNOWN, None, False)
    with pytest.raises(ResultExpired):
        unknown.get()


def test_a_waiting_thread_learns_of_a_cancellation(shop: Shop, server: Server) -> None:
    result = shop.double.options(delay=500).sync.delay(1)
    with ThreadPoolExecutor(1) as threads:
        waiter = threads.submit(result.get)
        eventually(lambda: waiters_on(server) == 1)
        assert result.cancel()
        with pytest.raises(JobCancelled):
            waiter.result(timeout=30)


@pytest.mark.parametrize("timeout", [0, 0.05, 0.4])
def test_a_timeout_is_honoured(shop: Shop, timeout: float) -> None:
    result = shop.double.options(delay=500).sync.delay(1)
    assert (
        timeout
        <= quickest(ResultTimeout, lambda: result.get(timeout=timeout), timeout + SLACK)
        < timeout + SLACK
    )


def test_with_a_timeout_of_zero_get_checks_once(shop: Shop) -> None:
    with running_aside(shop.app):
        result = shop.double.sync.delay(21)
        result.get(timeout=30)
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
        sync.BlockingResult[int](shop.app, "default:missing", None).get(timeout=0)


def test_a_process_that_polls_uses_one_connection_and_registers_once(
    patient: Shop, shop: Shop, proxy: Proxy, server: Server
) -> None:
    result = patient.double.options(delay=500).sync.delay(1)
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
        eventually(lambda: shop.app.blocking.inbox.waiting == 1)
        shop.open.set()
        assert waiter.result(timeout=30) == {1, 2}


@pytest.mark.parametrize("right", ["resetchannels", "-subscribe"])
def test_without_the_right_to_subscribe_results_are_polled_for(
    server: Server, caplog: pytest.LogCaptureFixture, right: str
) -> None:
    namespace = new_namespace()
    shop = Shop(server.url, namespace=namespace)
    with user_who_may_not(server, right) as url:
        deaf = Shop(url, namespace=namespace)
        shop.open.clear()
        with running_aside(shop.app), ThreadPoolExecutor(5) as threads:
            handles = deaf.double.sync.map(range(5))
            waiters = [threads.submit(handle.get, 10) for handle in handles]
            eventually(lambda: refusals(caplog))
            shop.open.set()
            assert [waiter.result(timeout=30) for waiter in waiters] == [0, 2, 4, 6, 8]
            with pytest.raises(TaskFailed):
                deaf.double.sync.delay(-1).get(timeout=30)
        deaf.app.blocking.close()
        shop.app.blocking.close()
    (line,) = refusals(caplog)
    assert line.levelname == "WARNING"
    assert "NOPERM" in line.getMessage()


def test_polling_gets_slower_up_to_a_bound(
    shop: Shop, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def noted(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 5:
            assert shop.app.sync.result(result.id).cancel()

    with user_who_may_not(server, "-subscribe") as url:
        deaf = Shop(url)
        result = deaf.double.sync.delay(1)
        monkeypatch.setattr("fennelq.sync.waiting.time.sleep", noted)
        with pytest.raises(JobCancelled):
            result.get()
        monkeypatch.undo()
        deaf.app.blocking.close()
    assert pauses == [0.25, 0.5, 1.0, 1.0, 1.0]


# A broken network


@pytest.mark.parametrize("network", ["refuse", "blackhole", "half"])
def test_a_timeout_is_honoured_while_redis_does_not_answer(flaky: Shop, proxy: Proxy, network: str) -> None:
    result = flaky.double.options(delay=500).sync.delay(1)
    getattr(proxy, network)()
    assert 0.3 <= quickest(ResultTimeout, lambda: result.get(timeout=0.3), 0.3 + SLACK) < 0.3 + SLACK


@pytest.mark.parametrize("network", ["refuse", "blackhole", "half"])
def test_without_redis_a_delay_fails_within_its_bound(flaky: Shop, proxy: Proxy, network: str) -> None:
    flaky.double.sync.delay(0)
    getattr(proxy, network)()
    assert 0.5 <= quickest(BrokerUnavailable, lambda: flaky.double.sync.delay(1), 0.5 + SLACK) < 0.5 + SLACK
    assert (
        0.5
        <= quickest(BrokerUnavailable, lambda: flaky.double.sync.map(range(500)), 0.5 + SLACK)
        < 0.5 + SLACK
    )


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
    results = flaky.app.sync.enqueue(unavailable.value.jobs)
    assert not any(result.deduplicated for result in results)
    with running_aside(shop.app, concurrency=32):
        eventually(lambda: len(shop.runs) == 250)
    assert shop.runs == Counter(range(250))


def test_a_delay_whose_replies_are_lost_makes_exactly_one_job(
    patient: Shop, shop: Shop, proxy: Proxy
) -> None:
    patient.double.sync.delay(0)
    fate = random.Random(7)
    proxy.drop_replies(lambda _: fate.random() < 0.3, command="EVALSHA", cut=True)
    results = [patient.double.sync.delay(n) for n in range(1, 21)]
    assert proxy.counters.dropped >= 3
    assert not any(result.deduplicated for result in results)
    with running_aside(shop.app):
        eventually(lambda: len(shop.runs) == 21)
    assert shop.runs == Counter(range(21))


def test_a_waiter_survives_the_loss_of_its_connection(
    patient: Shop, shop: Shop, proxy: Proxy, server: Server
) -> None:
    shop.open.clear()
    with running_aside(shop.app), ThreadPoolExecutor(1) as threads:
        result = patient.double.sync.delay(21)
        waiter = threads.submit(result.get, 10)
        for _ in range(3):
            eventually(lambda: waiters_on(server) == 1)
            assert proxy.cut_all()
        eventually(lambda: waiters_on(server) == 1)
        shop.open.set()
        assert waiter.result(timeout=30) == 42


def test_one_refused_job_of_a_bulk_call_is_named_and_the_others_are_sent(shop: Shop) -> None:
    shop.double.options(job_id="taken").sync.delay(0)
    refused = shop.double.options(job_id="taken").job(1)
    with pytest.raises(EnqueueFailed, match="1 of 3") as failed:
        shop.app.sync.enqueue([shop.double.job(2), refused, shop.double.job(3)])
    assert isinstance(failed.value.failures[1], DuplicateJob)
    with running_aside(shop.app):
        assert [failed.value.handles[i].get(timeout=30) for i in (0, 2)] == [4, 6]


def quickest(expected: type[BaseException], call: Callable[[], object], quick: float) -> float:
    """The seconds until it raises: of the quickest of three attempts, or of more when none of them was quick."""
    took: list[float] = []
    while len(took) < 3 or (min(took) >= quick and len(took) < 12):
        began = time.monotonic()
        with pytest.raises(expected):
            call()
        took.append(time.monotonic() - began)
    return min(took)


def registered(shop: Shop, server: Server, job_id: str) -> list[bytes]:
    """The channels that the job's record names."""
    queue, _, key = job_id.partition(":")
    with server.client() as client:
        channels = cast("bytes | None", client.hget(queue_keys(shop.app.namespace, queue).record(key), "W"))
    return (channels or b"").split()
