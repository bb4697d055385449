"""`call`: a task with all that a worker puts around it, and overrides of its providers."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any

import pytest

from fennelq import App, ConfigurationError, Depends, InvalidArguments, Job, JobContext, Shared, current_job
from fennelq.testing import BlockingTesting, Summary, Testing, testing

log: list[str] = []


async def resources(app: App) -> AsyncIterator[str]:
    log.append("open")
    yield f"resources of {app.name}"
    log.append("close")


def make_pool() -> str:
    log.append("pool")
    return "pool"


async def get_db(pool: str = Shared(make_pool)) -> AsyncIterator[str]:
    log.append("enter")
    try:
        yield f"db from {pool}"
    finally:
        log.append("leave")


def get_file() -> Generator[str]:
    log.append(f"file in {threading.current_thread().name.rpartition('_')[0]}")
    yield "file"


async def fake_db() -> str:
    return "fake db"


app = App("shop", lifespan=resources)


@app.sending
def stamp(job: Job[Any]) -> Job[Any]:
    return job.with_headers({"stamp": "s-1"})


@app.performing
async def noted(job: JobContext, call: Callable[[], Awaitable[Any]]) -> Any:
    log.append(f"around {job.task.partition(':')[2]} {job.headers['stamp']}")
    return await call()


@app.task
async def charge(order: int, db: str = Depends(get_db), job: JobContext = Depends(current_job)) -> str:
    log.append(f"charge {order}")
    if order < 0:
        raise LookupError(order)
    return f"{order} in {db}, try {job.tries}, with {app.state}"


@app.task
def pack(order: int, file: str = Depends(get_file)) -> str:
    return f"{order} in {file}"


@app.task(timeout=0.02)
async def hang() -> None:
    await asyncio.Event().wait()


@app.task
async def waits_for_itself() -> str:
    return pack.sync.delay(1).id


@pytest.fixture(autouse=True)
def nothing_has_happened() -> None:
    log.clear()


@pytest.fixture
async def t() -> AsyncIterator[Testing]:
    async with testing(app) as t:
        yield t


async def test_a_call_has_providers_middleware_context_and_lifespan(t: Testing) -> None:
    assert await t.call(charge, 7) == "7 in db from pool, try 1, with resources of shop"
    around = "around charge s-1"
    assert log == ["open", around, "pool", "enter", "charge 7", "leave", "close"]
    assert t.sent() == []
    assert t.left() == []


async def test_a_call_raises_the_error_of_the_task_itself(t: Testing) -> None:
    with pytest.raises(LookupError) as raised:
        await t.call(charge, -1)
    assert raised.value.args == (-1,)
    assert log[-3:] == ["charge -1", "leave", "close"]
    with pytest.raises(TimeoutError, match=r"longer than its timeout of 0\.02 s"):
        await t.call(hang)


async def test_the_arguments_of_a_call_go_through_the_codec(t: Testing) -> None:
    with pytest.raises(InvalidArguments, match="order"):
        await t.call(charge, "seven")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def test_a_plain_function_is_called_in_a_thread(t: Testing) -> None:
    assert await t.call(pack, 7) == "7 in file"
    assert log == ["open", "around pack s-1", "file in fennelq-task", "close"]


async def test_a_call_that_blocks_the_loop_is_refused_as_in_a_worker(t: Testing) -> None:
    with pytest.raises(ConfigurationError, match="would block the event loop"):
        await t.call(waits_for_itself)


def test_a_call_without_a_loop() -> None:
    with testing(app) as t:
        assert t.call(charge, 7).startswith("7 in db from pool")


async def test_providers_are_overridden_in_calls_and_in_jobs(t: Testing) -> None:
    with app.overrides({get_db: fake_db}):
        assert (await t.call(charge, 7)).startswith("7 in fake db")
        result = await charge.delay(8)
        assert await t.run_until_idle() == Summary(succeeded=1)
        assert (await result.get(timeout=0)).startswith("8 in fake db")
    assert "enter" not in log


async def test_testing_takes_overrides_for_the_whole_block() -> None:
    async with testing(app, overrides={get_db: fake_db}) as t:
        assert (await t.call(charge, 7)).startswith("7 in fake db")
    async with testing(app) as t:
        assert (await t.call(charge, 7)).startswith("7 in db from pool")


async def test_an_override_of_no_provider_is_refused_and_the_app_is_as_before() -> None:
    before = app.namespace
    with pytest.raises(ConfigurationError, match="no task of shop has the provider fake_db"):
        testing(app, overrides={fake_db: get_db}).open()
    assert app.namespace == before


async def test_eager_jobs_have_providers_and_middleware_and_are_sent_with_theirs(t: Testing) -> None:
    with t.eager():
        result = await charge.delay(7)
    assert (await result.get(timeout=0)).startswith("7 in db from pool, try 1")
    assert log == ["open", "around charge s-1", "pool", "enter", "charge 7", "leave", "close"]
    (job,) = t.sent(charge)
    assert (job.args, job.headers) == ((7,), {"stamp": "s-1"})


def test_what_a_test_can_do_with_a_loop_it_can_do_without_in_the_same_words() -> None:
    def public(kind: type[object]) -> dict[str, list[str]]:
        methods = inspect.getmembers(kind, inspect.isfunction)
        return {
            name: list(map(str, inspect.signature(method).parameters.values()))
            for name, method in methods
            if not name.startswith("_")
        }

    assert public(BlockingTesting) == public(Testing)
