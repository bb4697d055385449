"""Results: what is kept of a job that has ended, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel, field_serializer, field_validator

from fennelq import App, ResultExpired, Status, TaskFailed
from fennelq.broker.verb import Command
from tests.features.conftest import MakeApp
from tests.kit.ageing import age
from tests.kit.jobs import altered
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.kit.workers import running

HOUR, DAY = 3600_000, 86_400_000


async def test_a_result_is_kept_for_an_hour_and_its_record_for_a_day(app: App) -> None:
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    async with running(app):
        result = await add.delay(1, 2)
        await result.get(timeout=30)
    assert HOUR - 60_000 < await ttl(app, result.id, "r") <= HOUR
    assert DAY - 60_000 < await ttl(app, result.id, "j") <= DAY


async def test_a_failures_result_is_kept_for_a_day_and_its_record_as_long_as_it_is_in_the_dlq(
    app: App,
) -> None:
    @app.task(retries=0)
    async def fail() -> None:
        raise ValueError

    async with running(app):
        result = await fail.delay()
        with pytest.raises(TaskFailed):
            await result.get(timeout=30)
    assert DAY - 60_000 < await ttl(app, result.id, "r") <= DAY
    assert await ttl(app, result.id, "j") == -1


async def test_the_app_the_task_and_the_call_may_choose_how_long(make_app: MakeApp) -> None:
    app = make_app(result_ttl=100, failure_ttl=200, record_ttl=600)

    @app.task
    async def by_app() -> int:
        return 1

    @app.task(result_ttl=300)
    async def by_task() -> int:
        return 1

    @app.task(retries=0)
    async def fail() -> int:
        raise ValueError

    async with running(app):
        for task, seconds in (
            (by_app, 100),
            (by_task, 300),
            (by_task.options(result_ttl=400), 400),
            (fail, 200),
        ):
            result = await task.delay()
            await aeventually(partial(has_ended, app, result.id))
            assert (seconds - 60) * 1000 < await ttl(app, result.id, "r") <= seconds * 1000


async def test_a_record_outlives_its_result_and_a_late_retry(make_app: MakeApp) -> None:
    app = make_app(result_ttl=1, record_ttl=0)

    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    async with running(app):
        short = await add.delay(1, 2)
        await short.get(timeout=30)
        long = await add.options(result_ttl=1000).delay(1, 2)
        await long.get(timeout=30)
    assert 590_000 < await ttl(app, short.id, "j") <= 600_000
    assert 990_000 < await ttl(app, long.id, "j") <= 1_000_000


async def test_an_expired_result_raises_and_the_record_still_has_the_status(
    make_app: MakeApp, server: Server
) -> None:
    app = make_app(result_ttl=60)

    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    async with running(app):
        result = await add.delay(1, 2)
        assert await result.get(timeout=30) == 3
        age(server, 60)
        await aeventually(lambda: is_gone(app, result.id, "r"))
        with pytest.raises(ResultExpired, match="unknown or its result has expired") as expired:
            await result.get()
    assert expired.value.job_id == result.id
    assert await result.status() is Status.SUCCESS


async def test_an_expired_record_leaves_nothing_behind(make_app: MakeApp, server: Server) -> None:
    app = make_app(result_ttl=60, record_ttl=60)

    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    async with running(app):
        result = await add.delay(1, 2)
        assert await result.get(timeout=30) == 3
        age(server, 600)
        await aeventually(lambda: is_gone(app, result.id, "j"))
        with pytest.raises(ResultExpired):
            await result.get()
    assert await result.status() is Status.UNKNOWN
    assert await result.info() is None


# No result at all


async def test_a_task_that_returns_nothing_keeps_no_result_and_get_answers_none(app: App) -> None:
    @app.task
    async def note(text: str) -> None:
        del text

    async with running(app):
        result = await note.delay("x")
        for _ in range(2):
            value: object = await app.result(result.id).get(timeout=30)
            assert value is None
    assert await is_gone(app, result.id, "r")
    assert await result.status() is Status.SUCCESS


async def test_with_a_result_ttl_of_zero_only_those_who_wait_get_the_result(app: App) -> None:
    may_end = asyncio.Event()

    @app.task(result_ttl=0)
    async def add(a: int, b: int) -> int:
        await may_end.wait()
        return a + b

    async with running(app):
        result = await add.delay(1, 2)
        waiters = [asyncio.create_task(result.get(timeout=30)) for _ in range(3)]
        await aeventually(lambda: is_watched(app, result.id))
        may_end.set()
        assert await asyncio.gather(*waiters) == [3, 3, 3]
        with pytest.raises(ResultExpired):
            await result.get()
    assert await is_gone(app, result.id, "r")
    assert await result.status() is Status.SUCCESS


async def test_arguments_are_dropped_when_a_job_has_succeeded_and_kept_when_it_is_dead(app: App) -> None:
    @app.task(retries=0)
    async def divide(a: int, b: int) -> float:
        return a / b

    async with running(app):
        for b, kept in ((2, b""), (0, b"[[1,0],{}]")):
            result = await divide.delay(1, b)
            await aeventually(partial(has_ended, app, result.id))
            info = await result.info()
            assert info is not None
            assert info.arguments == kept


# Values that cannot be a result


class Odd(BaseModel):
    n: int

    @field_validator("n")
    @classmethod
    def is_odd(cls, n: int) -> int:
        return {1: 1, 3: 3}[n]  # a KeyError is what a careless validator raises


class Silent(BaseModel):
    n: int

    @field_serializer("n")
    def refuse(self, n: int) -> int:
        raise AttributeError(f"no {n}")


def not_what_was_promised() -> int:
    return "seven"  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


def no_json() -> Any:
    return object()


def itself() -> Any:
    ring: list[Any] = []
    ring.append(ring)
    return ring


def half_a_letter() -> str:
    return "\ud83c"


def broken_serializer() -> Silent:
    return Silent(n=1)


@pytest.mark.parametrize(
    "function", [not_what_was_promised, no_json, itself, half_a_letter, broken_serializer]
)
async def test_a_result_that_cannot_be_encoded_makes_the_job_dead_and_the_worker_goes_on(
    app: App, function: Callable[[], object]
) -> None:
    task = app.task(function)

    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    async with running(app, concurrency=1):
        result = await task.delay()
        with pytest.raises(TaskFailed) as failed:
            await result.get(timeout=30)
        assert failed.value.tries == 1
        info = await result.info()
        assert info is not None
        assert info.reason == "bad_result"
        assert await app.call(add.job(1, 2), timeout=30) == 3


async def test_a_validator_that_fails_costs_only_its_own_job(app: App) -> None:
    """Reading arguments and writing results runs the user's code, which may raise anything."""

    @app.task(retries=0)
    async def take(odd: Odd) -> int:
        return odd.n

    async with running(app, concurrency=1):
        wrong = await app.client.send(altered(take.job(Odd(n=1)), args=b'[[{"n":2}],{}]'))
        with pytest.raises(TaskFailed, match="2"):
            await wrong.get(timeout=30)
        info = await wrong.info()
        assert info is not None
        assert (info.reason, info.tries) == ("bad_payload", 0)
        assert await app.call(take.job(Odd(n=3)), timeout=30) == 3


async def test_a_result_over_the_limit_makes_the_job_dead_and_the_error_has_its_size(
    make_app: MakeApp,
) -> None:
    app = make_app(max_payload_bytes=1000)

    @app.task
    async def repeat(n: int) -> str:
        return "x" * n

    async with running(app, concurrency=1):
        with pytest.raises(TaskFailed, match=r"1,001 bytes.*1,000") as failed:
            await app.call(repeat.job(999), timeout=30)
        assert failed.value.error_type.endswith("PayloadTooLarge")
        assert len(await app.call(repeat.job(998), timeout=30)) == 998


async def test_a_result_that_is_not_what_the_caller_expects_is_an_error_of_the_callers(
    app: App, make_app: MakeApp
) -> None:
    @app.task(name="shop:when")
    async def when() -> str:
        return "tomorrow"

    caller = make_app()

    @caller.task(name="shop:when")
    async def expected() -> datetime:
        raise NotImplementedError

    async with running(app):
        with pytest.raises(ValueError, match="datetime"):
            await caller.call(expected.job(), timeout=30)


async def ttl(app: App, job_id: str, kind: str) -> int:
    """Milliseconds that the record (`j`) or the result (`r`) of a job has left; -1 is for ever, -2 is gone."""
    queue, _, key = job_id.partition(":")
    return await app.client.ask(Command(["PTTL", f"{app.client.keys(queue).prefix}{kind}:{key}"], int))


async def is_gone(app: App, job_id: str, kind: str) -> bool:
    return await ttl(app, job_id, kind) == -2


async def is_watched(app: App, job_id: str) -> bool:
    """Whether a client waits for the job's end."""
    queue, _, key = job_id.partition(":")
    return await app.client.ask(Command(["HEXISTS", app.client.keys(queue).record(key), "W"], bool))


async def has_ended(app: App, job_id: str) -> bool:
    return (await app.result(job_id).status()).ended
