"""Progress: a task reports how far it has come, and any number of readers follow it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fennelq import (
    App,
    BrokerUnavailable,
    Progress,
    RetryPolicy,
    Status,
    TaskFailed,
    UsageError,
    current_job,
)
from fennelq.broker import verbs
from fennelq.broker.verb import Command
from fennelq.worker.executor import Executor
from tests.features.conftest import MakeApp, new_namespace, refusals, user_who_may_not, waiters_on
from tests.kit.proxy import Proxy
from tests.kit.server import Server
from tests.kit.waiting import aeventually, eventually
from tests.kit.workers import running, running_aside

HALF = Progress(5, 10, "rows")


class Steps:
    """A task that reports what the test tells it to, and ends when it is told nothing more."""

    def __init__(self, app: App, **options: Any) -> None:
        self.orders = asyncio.Queue[Progress | BaseException | None]()
        self.runs = 0
        self.cancelled: str | None = None

        @app.task(name="shop:steps", retries=0, **options)
        async def steps() -> str:
            self.runs += 1
            job = current_job()
            try:
                while (order := await self.orders.get()) is not None:
                    if isinstance(order, BaseException):
                        raise order
                    await job.progress(order.done, order.total, order.note)
            except asyncio.CancelledError:
                self.cancelled = job.cancelled
                raise
            return "done"

        self.task = steps

    def tell(self, *orders: Progress | BaseException | None) -> None:
        for order in orders:
            self.orders.put_nowait(order)


@pytest.fixture
def steps(app: App) -> Steps:
    return Steps(app)


async def collected(progress: AsyncIterator[Progress]) -> list[Progress]:
    return [one async for one in progress]


# From inside of a task


async def test_progress_is_there_while_the_job_runs_and_when_it_has_ended(app: App, steps: Steps) -> None:
    async with running(app):
        result = await steps.task.delay()
        assert await result.progress() is None
        steps.tell(HALF)
        await aeventually(lambda: has(result.progress, HALF))
        steps.tell(Progress(10, 10, "rows"), None)
        assert await result.get(timeout=30) == "done"
    assert await result.progress() == Progress(10, 10, "rows")
    info = await result.info()
    assert info is not None
    assert info.progress == Progress(10, 10, "rows")


async def test_a_task_that_is_a_plain_function_reports_from_its_thread(app: App) -> None:
    @app.task
    def crunch(pages: int) -> None:
        job = current_job()
        for page in range(pages):
            job.sync.progress(page + 1, pages)

    async with running(app):
        result = await crunch.delay(5)
        await result.get(timeout=30)
    assert await result.progress() == Progress(5, 5)


async def test_any_thread_of_a_job_may_report(app: App) -> None:
    @app.task
    def crunch() -> None:
        job = current_job()
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(job.sync.progress, range(200)))
        job.sync.progress(200)

    async with running(app):
        result = await crunch.delay()
        await result.get(timeout=30)
    assert await result.progress() == Progress(200)


@pytest.mark.parametrize("scripts_known", [True, False])
async def test_the_last_progress_is_written_before_the_outcome(
    app: App, server: Server, scripts_known: bool
) -> None:
    """Also by the first job that reports something to this server, which then has to be sent the script."""

    @app.task
    async def count(to: int) -> None:
        for done in range(to + 1):
            await current_job().progress(done, to)

    async with running(app):
        if not scripts_known:
            with server.client() as client:
                client.script_flush()
        results = [await count.delay(to) for to in range(20)]
        for to, result in enumerate(results):
            await result.get(timeout=30)
            assert await result.progress() == Progress(to, to)


async def test_a_thousand_reports_a_second_are_at_most_five_writes_a_second(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task
    async def count() -> tuple[int, float]:
        job, began, calls = current_job(), time.monotonic(), 0
        while (seconds := time.monotonic() - began) < 0.6 or calls < 600:
            for _ in range(50):
                calls += 1
                await job.progress(calls)
            await asyncio.sleep(0.005)
        return calls, seconds

    async with running(app) as executor:
        written = notes_of(executor, monkeypatch)
        result = await count.delay()
        calls, seconds = await result.get(timeout=30)
    assert calls >= 600
    assert await result.progress() == Progress(calls)
    assert 3 <= len(written) <= 5 * seconds + 1


async def test_jobs_that_run_at_the_same_time_share_calls(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.task
    async def count(n: int) -> None:
        await current_job().progress(n)
        await everything_sent.wait()

    everything_sent = asyncio.Event()
    results = await count.map(range(50))
    async with running(app, concurrency=50) as executor:
        written = notes_of(executor, monkeypatch)
        await aeventually(lambda: sum(written) == 50)
        everything_sent.set()
        for n, result in enumerate(results):
            await result.get(timeout=30)
            assert await result.progress() == Progress(n)
    assert len(written) <= 10


async def test_progress_stays_over_a_retry_and_a_dead_job_keeps_it(app: App) -> None:
    tries: list[Progress | None] = []

    @app.task(retry=RetryPolicy.fixed(1, delay=0.01))
    async def fail() -> None:
        job = current_job()
        tries.append(await app.result(job.id).progress())
        if job.tries == 1:
            await job.progress(3, 10, "first try")
        raise ValueError("no")

    async with running(app):
        result = await fail.delay()
        with pytest.raises(TaskFailed):
            await result.get(timeout=30)
    assert tries == [None, Progress(3, 10, "first try")]
    assert await result.status() is Status.DEAD
    assert await result.progress() == Progress(3, 10, "first try")
    (letter,) = await app.dlq.list()
    assert letter.id == result.id


@pytest.mark.parametrize(
    ("report", "error"),
    [
        ((-1,), ValueError),
        ((11, 10), ValueError),
        ((float("nan"),), ValueError),
        ((1, 2, "n" * 201), ValueError),
        (("1",), UsageError),
    ],
)
async def test_a_report_that_makes_no_sense_raises_where_it_is_made(
    app: App, report: tuple[Any, ...], error: type[Exception]
) -> None:
    raised: list[BaseException] = []

    @app.task
    async def awaits() -> None:
        with pytest.raises(error) as caught:
            await current_job().progress(*report)
        raised.append(caught.value)

    @app.task
    def blocks() -> None:
        with pytest.raises(error) as caught:
            current_job().sync.progress(*report)
        raised.append(caught.value)

    async with running(app):
        for task in (awaits, blocks):
            result = await task.delay()
            await result.get(timeout=30)
            assert await result.progress() is None
    assert len(raised) == 2


async def test_the_form_for_threads_is_refused_on_the_loop_of_a_worker(app: App) -> None:
    @app.task(retries=0)
    async def wrong() -> None:
        current_job().sync.progress(1)

    async with running(app):
        with pytest.raises(TaskFailed, match=r"use `await job\.progress\(…\)`"):
            await (await wrong.delay()).get(timeout=30)


# Taken away, and outages


async def test_a_run_that_was_taken_away_writes_nothing_and_is_cancelled(app: App, steps: Steps) -> None:
    """U6."""
    async with running(app) as executor:
        result = await steps.task.delay()
        await aeventually(lambda: steps.runs == 1)
        ((queue, lane, entry),) = executor.state.held.tokens()
        await app.client.broker.run(verbs.runs.release(app.client.keys(queue), [(lane, entry)]))
        await aeventually(lambda: steps.runs == 2)
        steps.tell(HALF)  # the first run has waited for longer
        await aeventually(lambda: steps.cancelled is not None)
        assert steps.cancelled == "lost"
        assert await result.progress() is None
        steps.tell(Progress(1, 10), None)
        assert await result.get(timeout=30) == "done"
        assert await result.progress() == Progress(1, 10)


@pytest.mark.parametrize("outage", ["refuse", "blackhole"])
async def test_an_outage_of_redis_does_not_fail_a_job_that_reports(
    app: App, make_app: MakeApp, proxy: Proxy, outage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fennelq.worker.running.progress_notes.AFTER_ERROR", 0.05)
    through = make_app(redis_url=proxy.url)
    steps = Steps(through)
    result = await steps.task.delay()
    async with running(through):
        steps.tell(Progress(1, 10))
        await aeventually(lambda: has(app.result(result.id).progress, Progress(1, 10)))
        getattr(proxy, outage)()
        steps.tell(Progress(2, 10), Progress(3, 10))
        await aeventually(steps.orders.empty)
        proxy.up()
        await aeventually(lambda: has(app.result(result.id).progress, Progress(3, 10)))
        steps.tell(Progress(4, 10), None)
        assert await app.result(result.id).get(timeout=30) == "done"
    assert await app.result(result.id).progress() == Progress(4, 10)


# Following


async def test_a_reader_gets_every_report_that_is_written_and_ends_with_the_job(
    app: App, steps: Steps
) -> None:
    async with running(app):
        result = await steps.task.delay()
        seen: list[Progress] = []

        async def follow() -> None:
            async for progress in result.watch():
                seen.append(progress)
                if progress.done < 3:
                    steps.tell(Progress(progress.done + 1, 3))
                else:
                    steps.tell(None)

        steps.tell(Progress(1, 3))
        await asyncio.wait_for(follow(), 30)
        assert seen == [Progress(1, 3), Progress(2, 3), Progress(3, 3)]
        assert await result.get(timeout=0) == "done"


async def test_readers_in_other_processes_see_the_same(app: App, make_app: MakeApp, steps: Steps) -> None:
    async with running(app):
        result = await steps.task.delay()
        readers = [
            asyncio.create_task(collected(where.result(result.id).watch()))
            for where in (app, app, make_app(), make_app())
        ]
        await aeventually(lambda: follows(app, result.id))
        steps.tell(HALF, None)
        assert await asyncio.wait_for(asyncio.gather(*readers), 20) == [[HALF]] * 4


async def test_a_late_reader_gets_the_last_progress(app: App, steps: Steps) -> None:
    async with running(app):
        result = await steps.task.delay()
        steps.tell(Progress(1, 2), Progress(2, 2), None)
        await result.get(timeout=30)
        assert await collected(result.watch()) == [Progress(2, 2)]


@pytest.mark.parametrize("end", [ValueError("no"), asyncio.CancelledError()], ids=["fails", "is cancelled"])
async def test_a_reader_is_told_of_no_failure(app: App, steps: Steps, end: BaseException) -> None:
    async with running(app):
        result = await steps.task.delay()
        steps.tell(HALF, end)
        assert await asyncio.wait_for(collected(result.watch()), 20) == [HALF]
        assert await result.status() is Status.DEAD


async def test_an_unknown_job_has_no_progress_and_its_reader_ends_at_once(app: App) -> None:
    unknown = app.result("mail:unknown")
    assert await unknown.progress() is None
    assert await asyncio.wait_for(collected(unknown.watch()), 20) == []


async def test_a_slow_reader_gets_the_newest_only(
    app: App, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fennelq.worker.running.progress_notes.INTERVAL", 0.0)
    async with running(app):
        result = await steps.task.delay()
        watching = result.watch()
        steps.tell(Progress(0, 50))
        seen = [await anext(watching)]
        for done in range(1, 50):
            steps.tell(Progress(done, 50))
            await aeventually(lambda: has(result.progress, Progress(done, 50)))  # noqa: B023
        seen.append(await anext(watching))
        steps.tell(Progress(50, 50), None)
        seen += await collected(watching)
    assert seen == [Progress(0, 50), Progress(49, 50), Progress(50, 50)]


async def test_a_reader_that_breaks_off_leaves_nothing_behind(app: App, steps: Steps) -> None:
    async with running(app):
        result = await steps.task.delay()
        for done in range(3):
            steps.tell(Progress(done))
            watching = result.watch()
            await anext(watching)
            await watching.aclose()
        await aeventually(lambda: app.client.waiting.stored == (0, 0, 0))
        assert app.client.waiting.followed == 0
        steps.tell(None)
        assert await result.get(timeout=30) == "done"


async def test_a_reader_that_breaks_off_takes_nothing_from_another(app: App, steps: Steps) -> None:
    async with running(app):
        result = await steps.task.delay()
        steps.tell(Progress(0))
        staying, leaving = result.watch(), result.watch()
        assert [await anext(staying), await anext(leaving)] == [Progress(0)] * 2
        await leaving.aclose()
        steps.tell(Progress(1))
        assert await asyncio.wait_for(anext(staying), 20) == Progress(1)
        steps.tell(None)
        assert await asyncio.wait_for(collected(staying), 20) == []


async def test_following_needs_no_connection_of_its_own(app: App, steps: Steps, server: Server) -> None:
    async with running(app, concurrency=50):
        results = [await steps.task.delay() for _ in range(50)]
        readers = [asyncio.create_task(collected(result.watch())) for result in results]
        waiters = [asyncio.create_task(result.get()) for result in results]
        await aeventually(lambda: steps.runs == 50 and waiters_on(server) > 0)
        assert waiters_on(server) == 1
        steps.tell(*[HALF] * 50, *[None] * 50)
        async with asyncio.timeout(20):
            assert await asyncio.gather(*waiters) == ["done"] * 50
            assert await asyncio.gather(*readers) == [[HALF]] * 50


async def test_a_reader_survives_the_loss_of_its_connection(app: App, steps: Steps, server: Server) -> None:
    async with running(app):
        result = await steps.task.delay()
        watching = result.watch()
        for done in range(3):
            steps.tell(Progress(done))
            assert await asyncio.wait_for(anext(watching), 20) == Progress(done)
            with server.client() as client:
                client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        steps.tell(Progress(3), None)
        assert await asyncio.wait_for(collected(watching), 20) == [Progress(3)]


async def test_a_reader_finds_what_a_lost_message_said_at_the_next_look(
    app: App, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fennelq.waiting.waiting.RECHECK", 0.05)
    async with running(app):
        result = await steps.task.delay()
        watching = result.watch()
        steps.tell(Progress(0))
        await anext(watching)
        await forget_followers(app, result.id)
        steps.tell(Progress(1))
        assert await asyncio.wait_for(anext(watching), 20) == Progress(1)
        steps.tell(None)
        assert await asyncio.wait_for(collected(watching), 20) == []


async def test_without_the_right_to_subscribe_a_reader_polls(
    make_app: MakeApp, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    name = new_namespace()
    app = make_app(name)
    steps = Steps(app)
    with user_who_may_not(server, "-subscribe") as url:
        deaf = make_app(name, redis_url=url)
        async with running(app):
            result = await steps.task.delay()
            watching = deaf.result(result.id).watch()
            for done in range(2):
                steps.tell(Progress(done))
                assert await asyncio.wait_for(anext(watching), 20) == Progress(done)
            steps.tell(None)
            assert await asyncio.wait_for(collected(watching), 20) == []
    assert len(refusals(caplog)) == 1


async def test_a_reader_cannot_begin_without_redis(make_app: MakeApp, proxy: Proxy) -> None:
    app = make_app(redis_url=proxy.url, enqueue_timeout=0.1)
    proxy.refuse()
    with pytest.raises(BrokerUnavailable):
        await collected(app.result("mail:1").watch())


# Without an event loop


class Threaded:
    """A task in a thread that reports what the test tells it to."""

    def __init__(self, app: App) -> None:
        self.go_on = threading.Semaphore(0)

        @app.task(name="shop:threaded", retries=0)
        def threaded(total: int, fail: bool = False) -> int:
            for done in range(1, total + 1):
                self.go_on.acquire(timeout=30)
                current_job().sync.progress(done, total)
            self.go_on.acquire(timeout=30)
            if fail:
                raise ValueError("no")
            return total

        self.task = threaded


@pytest.fixture
def blocking_app(redis_url: str) -> Any:
    from tests.features.conftest import IMPATIENT
    from tests.kit.apps import LocalApp

    app = LocalApp("shop", redis_url=redis_url, **IMPATIENT)
    yield app
    app.blocking.close()


@pytest.mark.parametrize("fail", [False, True])
def test_a_thread_follows_a_job_to_its_end(blocking_app: App, fail: bool) -> None:
    threaded = Threaded(blocking_app)
    with running_aside(blocking_app):
        result = threaded.task.sync.delay(3, fail)
        assert result.progress() is None
        seen: list[Progress] = []
        threaded.go_on.release()
        for progress in result.watch():
            seen.append(progress)
            threaded.go_on.release()
        assert seen == [Progress(1, 3), Progress(2, 3), Progress(3, 3)]
        assert result.progress() == Progress(3, 3)
        assert list(result.watch()) == [Progress(3, 3)]
        assert result.status() is (Status.DEAD if fail else Status.SUCCESS)
    assert list(blocking_app.sync.result("mail:unknown").watch()) == []


def test_a_slow_thread_gets_the_newest_only(blocking_app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would fall behind the job more and more."""
    monkeypatch.setattr("fennelq.worker.running.progress_notes.INTERVAL", 0.0)
    threaded = Threaded(blocking_app)
    with running_aside(blocking_app):
        result = threaded.task.sync.delay(20)
        threaded.go_on.release()
        watching = result.watch()
        seen = [next(watching)]
        for done in range(2, 20):
            threaded.go_on.release()
            eventually(lambda: result.progress() == Progress(done, 20))  # noqa: B023
        seen.append(next(watching))
        threaded.go_on.release(2)
        seen += list(watching)
    assert (seen[0], seen[-1]) == (Progress(1, 20), Progress(20, 20))
    # The last messages may be on their way yet when it reads.
    assert len(seen) < 10


def test_a_thread_follows_while_others_wait_for_the_same_job(blocking_app: App) -> None:
    threaded = Threaded(blocking_app)
    with running_aside(blocking_app), ThreadPoolExecutor(3) as threads:
        result = threaded.task.sync.delay(2)
        values = [threads.submit(result.get, 10) for _ in range(2)]
        follower = threads.submit(lambda: list(result.watch()))
        threaded.go_on.release(3)
        assert [value.result(10) for value in values] == [2, 2]
        assert follower.result(10)[-1] == Progress(2, 2)


def test_without_the_right_to_subscribe_a_thread_polls(blocking_app: App, server: Server) -> None:
    from tests.kit.apps import LocalApp

    threaded = Threaded(blocking_app)
    with running_aside(blocking_app), user_who_may_not(server, "-subscribe") as url:
        deaf = LocalApp("shop", redis_url=url)
        result = threaded.task.sync.delay(1)
        threaded.go_on.release()
        seen: list[Progress] = []
        for progress in deaf.sync.result(result.id).watch():
            seen.append(progress)
            threaded.go_on.release()
        assert seen == [Progress(1, 1)]
        deaf.blocking.close()


# Help


async def has(read: Callable[[], Any], progress: Progress) -> bool:
    found = await read()
    return bool(found == progress)


def notes_of(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many jobs each call of `note` is about, from now on."""
    calls: list[int] = []
    run = executor.broker.run

    async def counted(verb: Any, *args: Any) -> Any:
        if verb.name == "note":
            calls.append((len(verb.args) - 2) // 3)
        return await run(verb, *args)

    monkeypatch.setattr(executor.broker, "run", counted)
    return calls


def bytes_or_none(reply: bytes | None) -> bytes:
    return reply or b""


async def followers(app: App, job_id: str) -> list[bytes]:
    queue, _, key = job_id.partition(":")
    record = app.client.keys(queue).record(key)
    return (await app.client.ask(Command(["HGET", record, "G"], bytes_or_none))).split()


async def follows(app: App, job_id: str) -> bool:
    """Whether a process follows the job."""
    return len(await followers(app, job_id)) > 0


async def forget_followers(app: App, job_id: str) -> None:
    queue, _, key = job_id.partition(":")
    await app.client.ask(Command(["HDEL", app.client.keys(queue).record(key), "G"], int))
