"""Middleware: `app.sending` around the way into Redis, `app.performing` around the function of a task."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from fennelq import (
    App,
    ConfigurationError,
    Job,
    JobContext,
    Reject,
    Retry,
    RetryPolicy,
    Snooze,
    Status,
    TaskFailed,
    UsageError,
    current_job,
)
from tests.features.conftest import MakeApp
from tests.kit.waiting import aeventually
from tests.kit.workers import running

Call = Callable[[], Awaitable[Any]]
Names = list[str]


def stamping(text: str) -> Callable[[Job[Any]], Job[Any]]:
    """A sender that adds a letter to the header `way`."""

    def stamp(job: Job[Any]) -> Job[Any]:
        return job.with_headers({"way": job.headers.get("way", "") + text})

    return stamp


def layer(seen: Names, name: str) -> Callable[[JobContext, Call], Awaitable[Any]]:
    """A performer that notes when it is entered and left."""

    async def around(_: JobContext, call: Call) -> Any:
        seen.append(f"{name} in")
        try:
            return await call()
        finally:
            seen.append(f"{name} out")

    return around


# Sending


async def test_a_sender_sees_every_job_however_it_is_sent(app: App) -> None:
    app.sending(stamping("a"))
    ways: dict[str, str] = {}

    @app.task(name="shop:note")
    async def note(how: str) -> None:
        ways[how] = current_job().headers["way"]

    note.every(0.05, args=("every",), name="often")

    def send_without_a_loop() -> None:
        note.sync.delay("sync.delay")
        note.sync.map(["sync.map"])
        app.sync.enqueue([note.job("sync.enqueue")])
        app.sync.send("shop:note", "sync.send")
        app.sync.schedules.run("often")

    async with running(app):
        await note.delay("delay")
        await note.map(["map"])
        await app.enqueue([note.job("enqueue")])
        await app.send("shop:note", "send")
        await app.call(note.job("call"), timeout=30)
        await aeventually(lambda: "every" in ways)
        await asyncio.to_thread(send_without_a_loop)
        await (await app.schedules.run("often")).get(timeout=30)
        await aeventually(lambda: len(ways) == 10)
    assert ways == dict.fromkeys(
        [
            "delay",
            "map",
            "enqueue",
            "send",
            "call",
            "every",
            "sync.delay",
            "sync.map",
            "sync.enqueue",
            "sync.send",
        ],
        "a",
    )


async def test_senders_are_called_in_their_order_and_those_of_the_task_last(app: App) -> None:
    app.sending(stamping("a"))

    @app.task(sending=[stamping("c"), stamping("d")])
    async def charge() -> None: ...

    @app.task
    async def welcome() -> None: ...

    app.sending(stamping("b"))
    charged, welcomed = await charge.delay(), await welcome.delay()
    assert [(await one.info()).headers for one in (charged, welcomed)] == [{"way": "abcd"}, {"way": "ab"}]  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
    assert await charged.cancel()
    assert await welcomed.cancel()


async def test_a_sender_may_change_the_options_of_a_job(app: App) -> None:
    @app.sending
    def later(job: Job[Any]) -> Job[Any]:
        return job.with_options(delay=60, priority="high")

    @app.task
    async def welcome() -> None: ...

    result = await welcome.delay()
    info = await result.info()
    assert info is not None
    assert (info.status, info.priority) == (Status.SCHEDULED, "high")
    assert await result.cancel()


async def test_what_a_sender_raises_reaches_the_caller_and_nothing_is_sent(app: App) -> None:
    @app.sending
    def limit(job: Job[Any]) -> Job[Any]:
        if job.headers.get("tenant") == "acme":
            raise PermissionError("acme has used up its quota")
        return job

    @app.task
    async def welcome(n: int) -> None: ...

    acme = welcome.options(headers={"tenant": "acme"})
    with pytest.raises(PermissionError):
        await acme.delay(1)
    with pytest.raises(PermissionError) as refused:
        await app.enqueue([welcome.job(1), acme.job(2), welcome.job(3)])
    assert refused.value.__notes__ == ["(a sender raised this for element 1; nothing was sent)"]
    assert (await app.queues.info("default")).waiting == 0


def returns_none(_: Job[Any]) -> Any:
    return None


def returns_another(job: Job[Any]) -> Any:
    return job.with_headers({}) if job.task == "shop:other" else OTHER[0]


def returns_a_coroutine(_: Job[Any]) -> Any:
    return asyncio.sleep(0)


OTHER: list[Job[Any]] = []


@pytest.mark.parametrize(
    ("sender", "rule"),
    [
        (returns_none, r"returns_none returned None: a sender returns the job"),
        (
            returns_another,
            r"returned <Job \S+ of shop:other> in place of <Job .*>: a sender keeps the id, the queue",
        ),
        (returns_a_coroutine, r"returned a coroutine: a sender is a plain function"),
    ],
)
async def test_a_sender_that_breaks_a_rule_is_an_error_that_names_the_rule(
    app: App, sender: Callable[[Job[Any]], Any], rule: str
) -> None:
    @app.task
    async def welcome() -> None: ...

    @app.task(name="shop:other")
    async def other() -> None: ...

    OTHER[:] = [other.job()]
    app.sending(sender)
    with pytest.raises(UsageError, match=rule):
        await welcome.delay()
    with pytest.raises(UsageError, match=rule):
        await asyncio.to_thread(welcome.sync.delay)
    assert (await app.queues.info("default")).waiting == 0


async def test_a_schedule_waits_while_its_sender_raises_and_the_executor_lives(app: App) -> None:
    errors: list[BaseException] = [SystemExit(3), asyncio.CancelledError(), ValueError("not now")]
    ran = asyncio.Event()

    @app.sending
    def fail(job: Job[Any]) -> Job[Any]:
        if errors:
            raise errors.pop()
        return job

    @app.every(0.02)
    async def sweep() -> None:
        ran.set()

    async with running(app):
        await asyncio.wait_for(ran.wait(), 30)
    assert errors == []


@pytest.mark.parametrize("register", ["sending", "task"])
async def test_an_async_sender_is_refused_when_it_is_registered(app: App, register: str) -> None:
    async def stamp(job: Job[Any]) -> Job[Any]:
        return job

    anything: Any = stamp
    with pytest.raises(
        ConfigurationError, match="must be a plain def, because it is also called where no event"
    ):
        app.sending(anything) if register == "sending" else app.task(sending=[anything])


@pytest.mark.parametrize("bad", [None, 5, "stamp", Job, lambda: None])
async def test_what_is_no_sender_is_refused_when_it_is_registered(app: App, bad: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=r"takes a function of a job, not .*: write def stamp\(job\)"
    ):
        app.sending(bad)


# Performing


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_performers_are_around_the_function_and_those_of_the_app_are_the_outermost(
    app: App, kind: str
) -> None:
    seen: Names = []
    threads: set[int] = set()
    app.performing(layer(seen, "app"))

    def body() -> str:
        seen.append("function")
        threads.add(threading.get_ident())
        return current_job().id

    @app.task(performing=[layer(seen, "task")])
    async def on_the_loop() -> str:
        return body()

    @app.task(performing=[layer(seen, "task")])
    def in_a_thread() -> str:
        return body()

    app.performing(layer(seen, "second"))
    task: Any = on_the_loop if kind == "async" else in_a_thread
    async with running(app):
        result = await task.delay()
        assert await result.get(timeout=30) == result.id
    assert seen == ["app in", "second in", "task in", "function", "task out", "second out", "app out"]
    assert (threading.get_ident() in threads) == (kind == "async")


async def test_a_performer_sees_the_job_and_may_replace_its_value(app: App) -> None:
    @app.performing
    async def describe(job: JobContext, call: Call) -> str:
        return f"{job.task} {job.tries} {job is current_job()} {await call()}"

    @app.task(name="shop:double", headers={"tenant": "acme"})
    async def double(n: int) -> str:
        return str(2 * n)

    async with running(app):
        assert await app.call(double.job(4), timeout=30) == "shop:double 1 True 8"


@pytest.mark.parametrize(
    ("raised", "status", "reason", "tries"),
    [
        (ValueError, Status.DEAD, "failed", 2),
        (partial(Retry, 0), Status.DEAD, "failed", 2),
        (Reject, Status.DEAD, "rejected", 1),
        (SystemExit, Status.DEAD, "failed", 2),
        (asyncio.CancelledError, Status.DEAD, "failed", 2),
        (GeneratorExit, Status.DEAD, "failed", 2),
    ],
)
async def test_what_a_performer_raises_is_judged_as_the_tasks_own(
    app: App, raised: Callable[[], BaseException], status: Status, reason: str, tries: int
) -> None:
    @app.performing
    async def fail(_: JobContext, call: Call) -> None:
        await call()
        raise raised()

    @app.task(retry=RetryPolicy.fixed(1, delay=0).only_on(BaseException))
    async def welcome() -> None: ...

    async with running(app):
        result = await welcome.delay()
        with pytest.raises(TaskFailed):
            await result.get(timeout=30)
        info = await result.info()
    assert info is not None
    assert (info.status, info.reason, info.tries) == (status, reason, tries)


async def test_a_performer_may_snooze_a_job_before_its_function_runs(app: App) -> None:
    ran: Names = []

    @app.performing
    async def not_yet(_: JobContext, call: Call) -> Any:
        if not ran:
            ran.append("snoozed")
            raise Snooze(0)
        return await call()

    @app.task
    async def welcome() -> int:
        return current_job().tries

    async with running(app):
        assert await app.call(welcome.job(), timeout=30) == 1
    assert ran == ["snoozed"]


async def test_a_performer_that_swallows_an_error_decides_the_value(app: App) -> None:
    @app.performing
    async def fall_back(_: JobContext, call: Call) -> Any:
        try:
            return await call()
        except ConnectionError:
            return "from the cache"

    @app.task
    async def fetch() -> str:
        raise ConnectionError

    async with running(app):
        result = await fetch.delay()
        assert await result.get(timeout=30) == "from the cache"
        assert await result.status() is Status.SUCCESS


async def test_the_value_of_a_performer_must_fit_the_annotation_of_the_task(app: App) -> None:
    @app.performing
    async def forget(_: JobContext, call: Call) -> None:
        await call()

    @app.task
    async def fetch() -> str:
        return "value"

    async with running(app):
        with pytest.raises(TaskFailed, match=r"fetch returned None, but its annotation is str"):
            await app.call(fetch.job(), timeout=30)


async def test_a_performer_that_swallows_a_timeout_does_not_make_a_success(app: App) -> None:
    @app.performing
    async def swallow(_: JobContext, call: Call) -> Any:
        with suppress(asyncio.CancelledError):
            return await call()
        return "swallowed"

    @app.task(timeout=0.05, retries=0)
    async def dawdle() -> str:
        await asyncio.sleep(60)
        return "late"

    async with running(app):
        result = await dawdle.delay()
        with pytest.raises(TaskFailed, match="longer than its timeout"):
            await result.get(timeout=30)
        info = await result.info()
    assert info is not None
    assert info.reason == "timeout"


async def test_the_timeout_covers_the_performers(app: App) -> None:
    @app.performing
    async def hang(_: JobContext, __: Call) -> None:
        await asyncio.sleep(60)

    @app.task(timeout=0.05, retries=0)
    async def welcome() -> None: ...

    async with running(app):
        with pytest.raises(TaskFailed, match="longer than its timeout"):
            await app.call(welcome.job(), timeout=30)


async def test_a_second_call_is_an_error_that_names_the_rule(app: App) -> None:
    runs: Names = []

    @app.performing
    async def twice(_: JobContext, call: Call) -> Any:
        await call()
        return await call()

    @app.task(retries=0)
    async def charge() -> None:
        runs.append("charged")

    async with running(app):
        with pytest.raises(
            TaskFailed, match=r"twice has called call\(\) twice: a try runs the function once"
        ) as failed:
            await app.call(charge.job(), timeout=30)
    assert failed.value.error_type == "RuntimeError"
    assert runs == ["charged"]


def plain_performer(_: JobContext, call: Call) -> Awaitable[Any]:
    return call()


@pytest.mark.parametrize("bad", [None, 5, stamping, JobContext, plain_performer])
async def test_what_is_no_performer_is_refused_when_it_is_registered(app: App, bad: Any) -> None:
    rule = r"takes an async function of a job and a call, not .*: write async def timed\(job, call\)"
    with pytest.raises(ConfigurationError, match=rf"app\.performing {rule}"):
        app.performing(bad)
    with pytest.raises(ConfigurationError, match=rf"app\.task\(performing=…\) {rule}"):
        app.task(performing=[bad])


async def test_a_single_function_in_place_of_a_list_is_refused(app: App) -> None:
    anything: Any = stamping("a")
    with pytest.raises(ConfigurationError, match=r"app\.task\(sending=…\) takes a list of senders"):
        app.task(sending=anything)


async def test_a_task_without_middleware_stays_plain(make_app: MakeApp) -> None:
    app = make_app()

    @app.task
    async def welcome() -> None: ...

    assert (welcome.plain, app.middleware.senders) == (True, None)
    app.performing(layer([], "app"))
    assert not welcome.plain
