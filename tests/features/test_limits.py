"""Limits: how many jobs run at once, how many start per second, and whose jobs take turns."""

from __future__ import annotations

import asyncio
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from fennelq import (
    App,
    AsyncTask,
    ConfigurationError,
    JobCancelled,
    JobExpired,
    Limit,
    LimitInfo,
    Rate,
    RateLimited,
    ResultTimeout,
    RetryPolicy,
    Snooze,
    Status,
    UnknownLimit,
    current_job,
)
from fennelq.manage import acting
from fennelq.testing import Summary, Testing
from fennelq.worker.executor import Executor
from fennelq.worker.processes.config import ExecutorConfig
from tests.features.conftest import MakeApp
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.kit.workers import running


class AtOnce:
    """Counts the jobs of each key that are at work at the same time."""

    def __init__(self) -> None:
        self.now, self.most = Counter[int](), Counter[int]()

    async def __call__(self, key: int) -> None:
        self.now[key] += 1
        self.most[key] = max(self.most[key], self.now[key])
        for _ in range(3):
            await asyncio.sleep(0)
        self.now[key] -= 1


def noting(app: App, **options: Any) -> tuple[AsyncTask[[int, int], None], list[tuple[int, int]]]:
    """A task with the parameters `tenant` and `n`, which notes its arguments."""
    ran: list[tuple[int, int]] = []

    async def note(tenant: int, n: int) -> None:
        ran.append((tenant, n))

    return app.task(name="shop:note", **options)(note), ran


# Concurrency


async def test_jobs_of_one_key_never_overlap_over_two_executors_and_all_end(app: App) -> None:
    at_once = AtOnce()

    @app.task(concurrency=Limit(1, key="account"))
    async def sync(account: int, n: int) -> int:
        await at_once(account)
        return n

    async with running(app), running(app):
        results = await app.enqueue([sync.job(n % 4, n) for n in range(60)])
        values = await asyncio.gather(*(result.get(timeout=30) for result in results))
    assert values == list(range(60))
    assert at_once.most == Counter({0: 1, 1: 1, 2: 1, 3: 1})


async def test_a_limit_of_a_task_lets_as_many_run_as_it_says_and_not_one_more(app: App) -> None:
    may_end = asyncio.Event()

    @app.task(concurrency=Limit(3))
    async def hold() -> None:
        await may_end.wait()

    @app.task
    async def free() -> str:
        return "free"

    results = await app.enqueue([hold.job() for _ in range(10)])
    async with running(app, concurrency=8):
        assert await (await free.delay()).get(timeout=30) == "free"

        async def statuses() -> Counter[Status]:
            return Counter([await result.status() for result in results])

        await aeventually(lambda: _three_run(statuses))
        may_end.set()
        await asyncio.gather(*(result.get(timeout=30) for result in results))


async def _three_run(statuses: Callable[[], Any]) -> bool:
    counted = await statuses()
    assert counted[Status.EXECUTING] <= 3
    return bool(counted == {Status.EXECUTING: 3, Status.SENT: 7})


async def test_two_tasks_share_a_limit_by_its_name(app: App, t: Testing) -> None:
    at_once = AtOnce()

    @app.task(concurrency=Limit(2, name="crm"))
    async def read() -> None:
        await at_once(0)

    @app.task(concurrency=Limit(2, name="crm"))
    def write() -> None:
        at_once.now[0] += 1
        at_once.most[0] = max(at_once.most[0], at_once.now[0])
        at_once.now[0] -= 1

    await app.enqueue([task.job() for _ in range(10) for task in (read, write)])
    assert (await t.run_until_idle()).succeeded == 20
    assert at_once.most[0] <= 2


async def test_a_retry_gives_the_slot_to_the_next_and_comes_to_the_end_of_the_line(
    app: App, t: Testing
) -> None:
    ran: list[tuple[int, int]] = []

    @app.task(concurrency=Limit(1, key="account"), retry=RetryPolicy.fixed(1, delay=60))
    async def flaky(account: int, n: int) -> None:
        ran.append((n, current_job().tries))
        if n == 0 and current_job().tries == 1:
            raise ConnectionError

    await app.enqueue([flaky.job(7, n) for n in range(3)])
    assert (await t.run_until_idle()).retried == 1
    assert ran == [(0, 1), (1, 1), (2, 1)]
    t.tick(60)
    assert (await t.run_until_idle()).succeeded == 1
    assert ran[-1] == (0, 2)


async def test_a_snoozed_job_gives_its_slot_to_the_next(app: App, t: Testing) -> None:
    ran: list[int] = []

    @app.task(concurrency=Limit(1))
    async def poll(n: int) -> None:
        ran.append(n)
        if ran.count(0) == 1 and n == 0:
            raise Snooze(60)

    await poll.map(range(3))
    assert await t.run_until_idle() == Summary(succeeded=2, snoozed=1)
    t.tick(60)
    assert await t.run_until_idle() == Summary(succeeded=1)
    assert ran == [0, 1, 2, 0]


async def test_a_cancelled_job_leaves_its_line_and_one_that_runs_gives_its_slot_on(app: App) -> None:
    started: list[int] = []

    @app.task(concurrency=Limit(1))
    async def hold(n: int) -> None:
        started.append(n)
        if n == 0:
            await asyncio.Event().wait()

    async with running(app):
        first, second, third = await hold.map(range(3))
        await aeventually(lambda: started == [0])
        assert await second.cancel()
        assert await first.cancel()
        await third.get(timeout=30)
    assert started == [0, 2]
    for result in (first, second):
        with pytest.raises(JobCancelled):
            await result.get(timeout=0)


async def test_a_job_that_expires_in_a_line_does_not_run_and_those_behind_it_do(app: App, t: Testing) -> None:
    task, ran = noting(app, rate_limit=Rate("1/m"))
    first, second, third = await app.enqueue(
        [task.job(1, 1), task.options(expires=30).job(1, 2), task.job(1, 3)]
    )
    await t.run_until_idle()
    t.tick(60)
    await t.run_until_idle()
    t.tick(60)
    await t.run_until_idle()
    assert ran == [(1, 1), (1, 3)]
    assert [await one.status() for one in (first, second, third)] == [
        Status.SUCCESS,
        Status.CANCELLED,
        Status.SUCCESS,
    ]
    with pytest.raises(JobExpired):
        await second.get(timeout=0)


async def test_an_executor_that_dies_with_a_slot_gives_it_back_when_its_job_is_run_again(
    app: App, t: Testing
) -> None:
    @app.task(concurrency=Limit(1))
    async def work(n: int) -> int:
        await asyncio.sleep(0)
        return current_job().fence

    results = await work.map(range(3))
    await t.kill_executor(during=work)
    await t.run_until_idle()
    assert [await result.get(timeout=0) for result in results] == [2, 1, 1]


# Rates


async def test_a_rate_lets_one_job_start_per_interval_by_the_clock_of_the_test(app: App, t: Testing) -> None:
    task, ran = noting(app, rate_limit=Rate("1/m"))
    results = await app.enqueue([task.job(0, n) for n in range(3)])
    assert await t.run_until_idle() == Summary(succeeded=1)
    assert [await result.status() for result in results] == [Status.SUCCESS, Status.SENT, Status.SENT]
    t.tick(59)
    assert await t.run_until_idle() == Summary()
    t.tick(1)
    assert await t.run_until_idle() == Summary(succeeded=1)
    t.tick(timedelta(hours=1))
    assert await t.run_until_idle() == Summary(succeeded=1)
    assert ran == [(0, 0), (0, 1), (0, 2)]


async def test_a_burst_may_start_at_once_and_each_value_of_a_key_has_its_own_rate(
    app: App, t: Testing
) -> None:
    task, ran = noting(app, rate_limit=Rate("1/m", "tenant", burst=2))
    await app.enqueue([task.job(tenant, n) for n in range(4) for tenant in (1, 2)])
    assert (await t.run_until_idle()).succeeded == 4
    assert sorted(ran) == [(1, 0), (1, 1), (2, 0), (2, 1)]
    t.tick(120)
    assert (await t.run_until_idle()).succeeded == 4


async def test_in_real_time_starts_are_as_far_apart_as_the_rate_says(app: App) -> None:
    loop, starts = asyncio.get_running_loop(), list[float]()

    @app.task(rate_limit=Rate("50/s"))
    async def send(n: int) -> None:
        starts.append(loop.time())

    async with running(app), running(app):
        results = await send.map(range(25))
        await asyncio.gather(*(result.get(timeout=30) for result in results))
    assert len(starts) == 25
    # 24 intervals of 20 ms, less the 100 ms by which late starts are made up for.
    assert starts[-1] - starts[0] >= 0.36


async def test_eager_jobs_under_test_do_not_wait_for_their_rate(app: App, t: Testing) -> None:
    task, ran = noting(app, rate_limit=Rate("1/h"), concurrency=Limit(1))
    await app.enqueue([task.job(0, n) for n in range(3)])
    with t.eager():
        await task.delay(0, 3)
    assert ran == [(0, n) for n in range(4)]


async def test_an_eager_job_whose_slot_is_held_by_its_sender_runs_when_the_sender_has_ended(
    app: App, t: Testing
) -> None:
    ran: list[int] = []

    @app.task(concurrency=Limit(1))
    async def follow(n: int) -> None:
        if n:
            await follow.delay(n - 1)
        ran.append(n)

    with t.eager():
        await follow.delay(2)
    assert ran == [2, 1, 0]


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_job_that_was_refused_stops_all_of_its_rate_and_no_others(
    app: App, t: Testing, kind: str
) -> None:
    ran: list[tuple[str, int, int]] = []

    def call(host: str, n: int) -> None:
        ran.append((host, n, current_job().tries))
        if ran == [("a", 0, 1)]:
            raise RateLimited(retry_after=300)

    async def called(host: str, n: int) -> None:
        call(host, n)

    decorate = app.task(name="shop:call", rate_limit=Rate(key="host"), retries=0, concurrency=Limit(1))
    task: Any = decorate(called) if kind == "async" else decorate(call)
    results = await app.enqueue([task.job("a", n) for n in range(3)] + [task.job("b", 0)])
    assert await t.run_until_idle() == Summary(snoozed=1, succeeded=1)
    assert ran == [("a", 0, 1), ("b", 0, 1)]
    t.tick(299)
    assert await t.run_until_idle() == Summary()
    t.tick(2)
    assert await t.run_until_idle() == Summary(succeeded=3)
    assert ran[2:] == [("a", 0, 1), ("a", 1, 1), ("a", 2, 1)]
    assert {await result.status() for result in results} == {Status.SUCCESS}


async def test_without_a_rate_a_refused_job_is_snoozed_and_the_others_go_on(app: App, t: Testing) -> None:
    ran: list[int] = []

    @app.task(retries=0)
    async def call(n: int) -> None:
        ran.append(n)
        if ran == [0]:
            raise RateLimited(timedelta(minutes=5))

    await call.map(range(3))
    assert await t.run_until_idle() == Summary(snoozed=1, succeeded=2)
    t.tick(300)
    assert await t.run_until_idle() == Summary(succeeded=1)
    assert ran == [0, 1, 2, 0]


# Turns


async def test_a_single_job_of_a_tenant_starts_after_one_job_of_each_other_tenant(make_app: MakeApp) -> None:
    app = make_app()
    task, ran = noting(app, fair_key="tenant")
    await app.enqueue([task.job(1, n) for n in range(1000)] + [task.job(2, n) for n in range(5)])
    last = await task.delay(3, 0)
    async with running(app, concurrency=1):
        await last.get(timeout=30)
    assert ran[:3] == [(1, 0), (2, 0), (3, 0)]
    assert [n for tenant, n in ran if tenant == 1] == list(range(Counter(tenant for tenant, _ in ran)[1]))
    assert await app.queues.purge("default") == 1006 - len(ran)


async def test_a_tenant_that_comes_later_waits_for_one_job_of_each_and_those_that_run(
    make_app: MakeApp,
) -> None:
    app, ran, may_end = make_app(), list[tuple[int, int]](), asyncio.Event()

    @app.task(fair_key="tenant")
    async def work(tenant: int, n: int) -> None:
        ran.append((tenant, n))
        if len(ran) <= 4:
            await may_end.wait()

    async with running(app, concurrency=4):
        results = await app.enqueue([work.job(1, n) for n in range(40)])
        await aeventually(lambda: len(ran) == 4)
        results.append(await work.delay(2, 0))
        may_end.set()
        await asyncio.gather(*(result.get(timeout=30) for result in results))
    # Four ran, and one waited in the lane.
    assert ran.index((2, 0)) <= 5


async def test_limits_of_all_kinds_hold_together(app: App, t: Testing) -> None:
    at_once, ran = AtOnce(), defaultdict[int, list[int]](list)

    @app.task(concurrency=Limit(1, "tenant"), rate_limit=Rate("1/m", "tenant", burst=3), fair_key="tenant")
    async def work(tenant: int, n: int) -> None:
        await at_once(tenant)
        ran[tenant].append(n)

    await app.enqueue([work.job(tenant, n) for tenant in (1, 2, 3) for n in range(5)])
    assert (await t.run_until_idle()).succeeded == 9
    assert ran == {1: [0, 1, 2], 2: [0, 1, 2], 3: [0, 1, 2]}
    t.tick(120)
    assert (await t.run_until_idle()).succeeded == 6
    assert at_once.most == Counter({1: 1, 2: 1, 3: 1})


# However a job is sent


async def test_a_limit_holds_however_a_job_is_sent(app: App, t: Testing) -> None:
    task, ran = noting(app, rate_limit=Rate("1/m", "tenant"))
    await task.delay(1, 0)
    await app.enqueue([task.job(1, 1)])
    await app.send("shop:note", 1, 2)
    await app.send("shop:note", _kwargs={"tenant": 1, "n": 3})
    await asyncio.to_thread(task.sync.delay, 1, 4)
    await asyncio.to_thread(app.sync.enqueue, [task.job(1, 5)])
    await task.options(delay=30).delay(1, 6)
    t.tick(30)
    assert await t.run_until_idle() == Summary(succeeded=1)
    for _ in range(6):
        t.tick(60)
        assert await t.run_until_idle() == Summary(succeeded=1)
    assert sorted(ran) == [(1, n) for n in range(7)]


async def test_recurring_jobs_have_the_limits_of_their_task(app: App, t: Testing) -> None:
    task, ran = noting(app, concurrency=Limit(1, "tenant"), rate_limit=Rate("1/h", "tenant"))
    task.every(60, args=(1, 1), name="often")
    schedule = app.declared.schedules["often"]
    assert schedule.carried["gates"] == "c1:shop:note/1 r3600000000/1:shop:note/1"
    await app.schedules.add(task.job(2, 2), name="by.hand", every=60)
    for _ in range(3):
        await app.schedules.run("by.hand")
    assert await t.run_until_idle() == Summary(succeeded=1)
    assert ran == [(2, 2)]
    await app.schedules.remove("by.hand")


async def test_a_replayed_job_has_its_limits_again(app: App, t: Testing) -> None:
    ran: list[int] = []

    @app.task(rate_limit=Rate("1/m"), retries=0)
    async def fail(n: int) -> None:
        ran.append(n)
        if len(ran) <= 2:
            raise ValueError

    await fail.map(range(2))
    await t.run_until_idle()
    t.tick(60)
    await t.run_until_idle()
    t.tick(60)
    assert (await app.dlq.replay()).replayed == 2
    assert await t.run_until_idle() == Summary(succeeded=1)
    t.tick(60)
    assert await t.run_until_idle() == Summary(succeeded=1)


# Bursts


async def _burst(app: App, concurrency: int = 4) -> None:
    async with asyncio.timeout(30):
        await Executor(app, ExecutorConfig(concurrency=concurrency, burst=True)).run()


async def test_a_burst_runs_what_waits_in_lines_and_leaves_what_a_rate_holds_back(app: App) -> None:
    at_once = AtOnce()

    @app.task(concurrency=Limit(1, "account"))
    async def sync(account: int, n: int) -> None:
        await at_once(account)

    @app.task(rate_limit=Rate("1/h"))
    async def send(n: int) -> None: ...

    synced = await app.enqueue([sync.job(n % 3, n) for n in range(30)])
    sent = await send.map(range(3))
    await _burst(app)
    assert {await result.status() for result in synced} == {Status.SUCCESS}
    assert [await result.status() for result in sent] == [Status.SUCCESS, Status.SENT, Status.SENT]
    assert await app.queues.purge("default") == 2


# What operators see


async def test_jobs_in_lines_are_counted_listed_cancelled_and_purged(app: App) -> None:
    sync, _ = noting(app, concurrency=Limit(1, "tenant"), rate_limit=Rate("1/h", "tenant", burst=100))
    results = await app.enqueue([sync.job(tenant, n) for tenant in (1, 2) for n in range(4)])
    info = await app.queues.info("default")
    assert (info.waiting, info.in_lines, info.lines, info.ended) == (2, 6, 2, {})
    found = [job.id for job in await app.queues.peek("default", 20, "line")]
    assert found == [result.id for result in results[1:4] + results[5:]]
    assert [job.id for job in await app.queues.peek("default", 4, "line")] == found[:4]
    assert await app.cancel(task="note", limit=1) == 1
    assert await app.queues.purge("default") == 7
    after = await app.queues.info("default")
    assert (after.waiting, after.in_lines, after.lines, after.ended) == (0, 0, 0, {"cancelled": 8})


@pytest.mark.parametrize("how", [{"queue": "default"}, {"task": "note"}, {"status": Status.SENT}])
async def test_jobs_in_lines_are_cancelled_with_the_others(
    app: App, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acting, "MOST_JOBS", 10)
    sync, _ = noting(app, concurrency=Limit(1, "tenant"))
    results = await app.enqueue(
        [sync.job(n % 30, n) for n in range(100)] + [sync.job(99, n) for n in range(200)]
    )
    assert await app.cancel(**how) == 300
    assert {await result.status() for result in results[::7]} == {Status.CANCELLED}
    assert (await app.queues.info("default")).lines == 0


async def test_the_limits_of_a_queue_are_listed_with_what_waits_for_them(app: App) -> None:
    sync, _ = noting(app, concurrency=Limit(1, "tenant", name="account"), fair_key="tenant")

    @app.task(name="shop:send", queue="mail", rate_limit=Rate("10/s", burst=5, name="send"))
    async def send() -> None: ...

    await app.enqueue([sync.job(tenant, n) for tenant in (1, 2) for n in range(4)])
    account, tenant, rate = await app.limits.list()
    assert account == LimitInfo(
        name="account",
        queue="default",
        kind="concurrency",
        code="1",
        changed=None,
        tasks=["shop:note"],
        gates=2,
        waiting=6,
    )
    assert (tenant.name, tenant.kind, tenant.numbers, tenant.waiting) == ("tenant", "turn", None, 0)
    assert (rate.name, rate.queue, rate.kind, rate.code, rate.waiting) == (
        "send",
        "mail",
        "rate",
        "10/s, burst 5",
        0,
    )
    assert await app.limits.list("mail") == [rate]
    assert await asyncio.to_thread(app.sync.limits.list, "mail") == [rate]
    await app.queues.purge("default")


@pytest.mark.audit(skip="a line of a later version")
async def test_gates_of_a_kind_that_a_later_version_knows_are_not_listed(app: App, server: Server) -> None:
    """Nor are they offered."""
    with server.client() as client:
        client.hset(app.client.keys("default")["lines"], "x:tenant/1@s", "x:tenant/1")
    assert await app.limits.list("default") == []
    with pytest.raises(UnknownLimit) as caught:
        await app.limits.reset("tenant", queue="default")
    assert "tenant" not in str(caught.value).partition(":")[2]


async def test_a_raised_limit_lets_in_what_waits_and_a_reset_one_is_what_the_code_says(app: App) -> None:
    may_end, running_now = asyncio.Event(), set[int]()

    @app.task(name="shop:hold", concurrency=Limit(1))
    async def hold(n: int) -> None:
        running_now.add(n)
        await may_end.wait()
        running_now.remove(n)

    async with running(app):
        results = await hold.map(range(6))
        await aeventually(lambda: running_now == {0})
        info = await app.limits.set("hold", 3, queue="default")
        assert (info.name, info.numbers, info.code, info.changed) == ("shop:hold", "3", "1", "3")
        await aeventually(lambda: running_now == {0, 1, 2})
        (after,) = await app.limits.reset("shop:hold", queue="default")
        assert (after.numbers, after.changed, after.waiting) == ("1", None, 3)
        assert await app.limits.reset("shop:hold", queue="default") == []
        may_end.set()
        await asyncio.gather(*(result.get(timeout=30) for result in results))


async def test_a_changed_rate_counts_for_what_waits(app: App, t: Testing) -> None:
    task, ran = noting(app, rate_limit=Rate("1/h", burst=2, name="send"))
    await app.enqueue([task.job(0, n) for n in range(5)])
    assert (await t.run_until_idle()).succeeded == 2
    assert (await app.limits.set("send", "1/m", queue="default")).changed == "1/m, burst 2"
    t.tick(60)
    assert (await t.run_until_idle()).succeeded == 1
    assert (await app.limits.set("send", "1/s", queue="default", burst=9)).changed == "1/s, burst 9"
    for _ in range(2):
        t.tick(1)
        assert await t.run_until_idle() == Summary(succeeded=1)
    assert ran == [(0, n) for n in range(5)]


@pytest.mark.parametrize(
    ("name", "number", "burst", "error", "text"),
    [
        ("acount", 3, None, UnknownLimit, "queue 'default' has no limit 'acount': did you mean 'account'?"),
        ("account", "3/s", None, ConfigurationError, "limit 'account' of queue 'default' counts running jobs: write "),
        ("send", 3, None, ConfigurationError, "limit 'send' of queue 'default' counts how many jobs start per second"),
        ("tenant", 3, None, ConfigurationError, "limit 'tenant' of queue 'default' is a fair_key, which has no number"),
        ("account", 0, None, ConfigurationError, "Limit(0): use a whole number from 1 to 1000000. To stop a queue, "),
        ("account", 3, 5, ConfigurationError, "burst is for rates: write 50/s, and not only a number"),
        ("send", "fast", None, ConfigurationError, "the rate 'fast' cannot be read: write "),
    ],
)  # fmt: skip
async def test_a_limit_cannot_be_set_to_what_it_is_not(
    app: App, name: str, number: int | str, burst: int | None, error: type[Exception], text: str
) -> None:
    noting(app, concurrency=Limit(1, name="account"), rate_limit=Rate("1/s", name="send"), fair_key="tenant")
    with pytest.raises(error) as caught:
        await app.limits.set(name, number, queue="default", burst=burst)
    assert str(caught.value).startswith(text)
    with pytest.raises(UnknownLimit):
        await app.limits.reset("elsewhere", queue="default")


async def test_a_job_in_a_line_says_which_gate_it_waits_for_and_what_holds_it(app: App) -> None:
    may_end = asyncio.Event()

    @app.task(concurrency=Limit(2, "account", name="account"))
    async def hold(account: int) -> None:
        await may_end.wait()

    async with running(app):
        results = [await hold.delay(17) for _ in range(4)]
        await aeventually(lambda: _are(results[:2], Status.EXECUTING))
        held = f"held by {results[0].id}, {results[1].id}"
        third, fourth = [await result.info() for result in results[2:]]
        assert third is not None
        assert fourth is not None
        assert (
            third.waiting_because == f"it waits for the limit account/17, next in its line; {_sorted(held)}"
        )
        assert (
            fourth.waiting_because
            == f"it waits for the limit account/17, with 1 other before it; {_sorted(held)}"
        )
        with pytest.raises(ResultTimeout) as late:
            await results[2].get(timeout=0.01)
        assert late.value.reason == third.waiting_because
        may_end.set()
        await asyncio.gather(*(result.get(timeout=30) for result in results))


def _sorted(held: str) -> str:
    """As Redis lists jobs of the same score: by their keys."""
    begin, _, jobs = held.partition(" by ")
    return f"{begin} by {', '.join(sorted(jobs.split(', ')))}"


async def _are(results: list[Any], status: Status) -> bool:
    return all([await result.status() is status for result in results])


async def test_a_job_that_waits_for_a_rate_or_for_its_turn_says_so(app: App) -> None:
    may_end, begun = asyncio.Event(), asyncio.Event()

    @app.task
    async def hold() -> None:
        begun.set()
        await may_end.wait()

    rated, _ = noting(app, rate_limit=Rate("1/h", name="send"))
    turns, _ = noting(app, fair_key="tenant")
    async with running(app, concurrency=1):
        busy = await hold.delay()
        await begun.wait()
        sent = await app.enqueue([rated.job(0, n) for n in range(2)])
        fair = await app.enqueue([turns.job(9, n) for n in range(3)])
        infos = [await result.info() for result in (sent[1], fair[2])]
        assert [info and info.waiting_because for info in infos] == [
            f"it waits for the rate send, next in its line; after {sent[0].id}",
            f"it waits for the turn of tenant/9, with 1 other before it; after {fair[0].id}",
        ]
        may_end.set()
        await asyncio.gather(*(result.get(timeout=30) for result in (busy, sent[0], *fair)))
        last = await sent[1].info()
        assert last is not None
        assert last.waiting_because is not None
        assert re.fullmatch(
            r"it waits for the rate send, next in its line; it opens in (60|3600|3599) (min|s)",
            last.waiting_because,
        )
    await app.queues.purge("default")
