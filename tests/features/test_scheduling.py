"""Jobs that wait for their time: `delay`, `at`, `expires`."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, cast

import pytest
import redis

from fennelq import App, JobExpired, Limit, RetryPolicy, Snooze, Status, TaskFailed, current_job
from fennelq.broker.keys import GROUP, LANES, QueueKeys
from fennelq.testing import Testing
from tests.features.conftest import MakeApp
from tests.kit.clock import ServerClock
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.kit.workers import running


async def test_a_delayed_job_waits_and_then_runs(app: App) -> None:
    @app.task
    async def now() -> float:
        return (datetime.now(UTC) - current_job().enqueued_at).total_seconds()

    result = await now.options(delay=0.3).delay()
    assert await result.status() is Status.SCHEDULED
    async with running(app):
        assert await result.get(timeout=30) >= 0.3


async def test_a_job_runs_at_a_given_moment_and_not_before(app: App) -> None:
    @app.task
    async def now() -> datetime:
        return datetime.now(UTC)

    moment = datetime.now(UTC) + timedelta(seconds=0.3)
    async with running(app):
        # Redis counts in milliseconds.
        assert await app.call(now.options(at=moment).job(), timeout=30) >= moment - timedelta(milliseconds=1)


async def test_a_scheduled_job_knows_when_it_is_due(app: App) -> None:
    @app.task
    async def later() -> None: ...

    moment = datetime.now(UTC) + timedelta(days=400)
    by_date = await later.options(at=moment).delay()
    by_delay = await later.options(delay=timedelta(days=2)).delay()
    for result, due in ((by_date, moment), (by_delay, datetime.now(UTC) + timedelta(days=2))):
        info = await result.info()
        assert info is not None
        assert info.status is Status.SCHEDULED
        assert info.due_at is not None
        assert abs(info.due_at - due) < timedelta(seconds=5)
        assert await result.cancel()


async def test_a_moment_that_has_passed_is_now(app: App) -> None:
    @app.task
    async def late() -> str:
        return "done"

    async with running(app):
        job = late.options(at=datetime.now(UTC) - timedelta(days=1)).job()
        assert await app.call(job, timeout=30) == "done"


async def test_scheduled_jobs_run_in_the_order_they_are_due_whatever_the_order_they_were_sent_in(
    app: App,
) -> None:
    order: list[int] = []

    @app.task
    async def note(n: int) -> None:
        order.append(n)

    start = datetime.now(UTC) + timedelta(seconds=0.2)
    jobs = [note.options(at=start + timedelta(milliseconds=20 * n)).job(n) for n in (3, 1, 4, 0, 2)]
    results = await app.enqueue(jobs)
    async with running(app, concurrency=1):
        await asyncio.gather(*(result.get(timeout=30) for result in results))
    assert order == [0, 1, 2, 3, 4]


async def test_many_jobs_that_are_due_at_once_all_run(app: App) -> None:
    @app.task
    async def double(n: int) -> int:
        return 2 * n

    moment = datetime.now(UTC) + timedelta(seconds=0.1)
    results = await app.enqueue([double.options(at=moment).job(n) for n in range(350)])
    async with running(app):
        values = await asyncio.gather(*(result.get(timeout=30) for result in results))
    assert values == [2 * n for n in range(350)]


async def test_a_scheduled_job_keeps_its_priority(app: App) -> None:
    order: list[str] = []

    @app.task
    async def note(name: str) -> None:
        order.append(name)

    soon = note.options(delay=0.05)
    jobs = [
        soon.options(priority="low").job("low"),
        soon.job("normal"),
        soon.options(priority="high").job("high"),
    ]
    begun, blocker = asyncio.Event(), asyncio.Event()

    @app.task
    async def block() -> None:
        begun.set()
        await blocker.wait()

    async with running(app, concurrency=1):
        await block.delay()
        await begun.wait()
        results = await app.enqueue(jobs)
        for result in results:
            await aeventually(partial(is_sent, app, result.id))
        blocker.set()
        await asyncio.gather(*(result.get(timeout=30) for result in results))
    assert order == ["high", "normal", "low"]


# Expiry


async def test_a_job_that_expired_before_it_could_start_never_runs(app: App, t: Testing) -> None:
    runs: list[int] = []

    @app.task
    async def greet(n: int) -> None:
        runs.append(n)

    expired = await greet.options(expires=10).delay(1)
    fresh = await greet.options(expires=100).delay(2)
    t.tick(11)
    await t.run_until_idle()
    with pytest.raises(JobExpired) as raised:
        await expired.get(timeout=30)
    await fresh.get(timeout=30)
    info = await expired.info()
    assert raised.value.job_id == expired.id
    assert runs == [2]
    assert info is not None
    assert (info.status, info.reason, info.tries) == (Status.CANCELLED, "expired", 0)


async def test_a_job_that_expires_before_it_is_due_never_runs(app: App, t: Testing) -> None:
    runs: list[int] = []

    @app.task
    async def greet(n: int) -> None:
        runs.append(n)

    due = datetime.now(UTC) + timedelta(seconds=20)
    result = await greet.options(at=due, expires=10).delay(1)
    t.tick(20)
    await t.run_until_idle()
    with pytest.raises(JobExpired):
        await result.get(timeout=30)
    assert runs == []


async def test_a_waiter_is_notified_when_its_job_expires(app: App, t: Testing) -> None:
    @app.task
    async def greet() -> None: ...

    result = await greet.options(expires=10).delay()
    waiting = asyncio.create_task(result.get(timeout=30))
    t.tick(11)
    await t.run_until_idle()
    with pytest.raises(JobExpired):
        await waiting


@pytest.mark.parametrize(
    "options", [{}, {"at": datetime.now(UTC) + timedelta(hours=1)}, {"concurrency": Limit(1, key="n")}]
)
async def test_without_a_worker_a_waiter_learns_that_its_job_has_expired(
    app: App, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    for module in ("waiting", "sync"):
        monkeypatch.setattr(f"fennelq.{module}.waiting.RECHECK", 0.02)

    @app.task
    async def greet(n: int) -> None: ...

    results = [await greet.options(expires=0.15, **options).delay(1) for _ in range(3)]
    blocking = app.sync.result(results[1].id)
    aside = asyncio.create_task(asyncio.to_thread(blocking.get, timeout=30))
    for waiting in (results[0].get(timeout=30), aside, results[2].get(timeout=30)):
        with pytest.raises(JobExpired):
            await waiting


async def test_a_job_that_has_started_does_not_expire(app: App, t: Testing) -> None:
    @app.task
    async def slow() -> str:
        t.tick(60)
        return "done"

    with t.eager():
        assert await app.call(slow.options(expires=30).job(), timeout=30) == "done"


@pytest.mark.parametrize("how", ["retry", "snooze"])
async def test_a_job_that_has_started_once_runs_again_after_its_expiry(
    app: App, t: Testing, how: str
) -> None:
    runs = 0

    @app.task(retry=RetryPolicy.fixed(1, delay=10))
    async def fetch_page(n: int) -> int:
        nonlocal runs
        runs += 1
        if runs == 1:
            t.tick(60)
            raise Snooze(10) if how == "snooze" else ConnectionError("the first try fails")
        return n + runs

    result = await fetch_page.options(expires=30).delay(40)
    await t.run_until_idle()
    t.tick(10)
    await t.run_until_idle()
    assert await result.get(timeout=30) == 42
    assert runs == 2


async def test_a_job_that_a_deploy_has_interrupted_runs_again_after_its_expiry(
    app: App, server_clock: ServerClock
) -> None:
    starts: list[int] = []
    interrupted = asyncio.Event()

    @app.task
    async def report(n: int) -> str:
        starts.append(n)
        if len(starts) == 1:
            interrupted.set()
            await asyncio.sleep(3600)
        return f"report {n}"

    result = await report.options(expires=30).delay(7)
    async with running(app, grace=0):
        await asyncio.wait_for(interrupted.wait(), 30)
        server_clock.pass_by(60_000)
    assert await result.status() is Status.SENT
    async with running(app):
        assert await result.get(timeout=30) == "report 7"
    assert starts == [7, 7]


async def test_a_backlog_of_expired_jobs_does_not_keep_the_fresh_ones_waiting(make_app: MakeApp) -> None:
    app = make_app()

    @app.task
    async def greet(n: int) -> int:
        return n

    stale = await app.enqueue([greet.options(expires=0.001).job(n) for n in range(3000)])
    fresh = await greet.delay(7)
    await asyncio.sleep(0.01)  # the passing of time is what this is about
    async with running(app):
        assert await fresh.get(timeout=30) == 7
        for result in (stale[0], stale[-1]):
            with pytest.raises(JobExpired):
                await result.get(timeout=30)


async def is_sent(app: App, job_id: str) -> bool:
    return await app.result(job_id).status() is Status.SENT


async def test_a_server_whose_clock_has_been_set_back_goes_on_with_everything(
    app: App, server: Server
) -> None:
    broken = True

    @app.task(retry=RetryPolicy.fixed(1, delay=0.01))
    async def moody(n: int) -> int:
        if broken:
            raise ValueError(n)
        return n

    async with running(app):
        first = await moody.delay(1)
        with pytest.raises(TaskFailed):
            await first.get(timeout=30)
        look_an_hour_ahead(server.client(), app.client.keys("default"))
        second = await moody.delay(2)
        with pytest.raises(TaskFailed):
            await second.get(timeout=30)
        assert [dead.id for dead in await app.dlq.list(order="oldest")] == [first.id, second.id]
        broken = False
        assert (await app.dlq.replay()).replayed == 2
        assert [await again.get(timeout=30) for again in (first, second)] == [1, 2]
        assert await app.call(moody.options(delay=0.1, priority="high").job(3), timeout=30) == 3
        assert await app.dlq.count() == 0


def look_an_hour_ahead(client: redis.Redis, keys: QueueKeys) -> None:
    """Make the streams look as if the server's clock had been an hour ahead until now: no id goes back."""
    ahead = f"{int(time.time() * 1000) + 3_600_000}-7"
    for stream in (*LANES.values(), "dlq"):
        if client.exists(keys[stream]):
            cast("Any", client).execute_command("XSETID", keys[stream], ahead)
    client.xgroup_setid(keys[LANES["normal"]], GROUP, ahead)
