"""A job that does not run has a reason, for clients that wait for it and for inspection."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable

import pytest

from fennelq import App, AsyncResult, ResultTimeout, RetryPolicy, Status, TaskFailed, UnknownArgument
from fennelq.waiting import reasons
from fennelq.waiting.reasons import executors_of
from tests.features.conftest import MakeApp
from tests.kit.jobs import altered
from tests.kit.proxy import Proxy
from tests.kit.waiting import aeventually
from tests.kit.workers import running

NO_WORKER = "no worker runs; start one with `fennelq worker`"
UNKNOWN = (
    r"the workers that took it since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC could not run it "
    r"\(is their code older than the sender's\?\): "
)


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, a reason is found."""
    monkeypatch.setattr(reasons, "SHORTEST", 10.0)
    monkeypatch.setattr(reasons, "LONGEST", 10.0)


async def add(a: int, b: int = 0) -> int:
    return a + b


def deploy(app: App) -> App:
    """The app with one task, whose code is the older one."""

    @app.task(name="shop:add")
    async def old(a: int) -> int:
        return a

    return app


async def reason(result: AsyncResult[int], timeout: float = 0.05) -> str | None:
    with pytest.raises(ResultTimeout) as late:
        await result.get(timeout=timeout)
    expected = f"job {result.id} has not ended after {timeout:g} s"
    if late.value.reason is None:
        assert str(late.value) == f"{expected}; it goes on: ask again, or cancel it"
    else:
        assert str(late.value) == f"{expected}: {late.value.reason}. The job is kept: ask again, or cancel it"
    return late.value.reason


async def because(result: AsyncResult[int]) -> str | None:
    info = await result.info()
    assert info is not None
    return info.waiting_because


async def test_without_any_worker_async_and_sync_code_get_that_as_the_reason(app: App) -> None:
    task = app.task(name="shop:add")(add)
    result = await task.delay(1)
    assert await reason(result) == NO_WORKER
    assert await because(result) == NO_WORKER
    same = await asyncio.to_thread(task.sync.options(job_id="mine").delay, 1)
    with pytest.raises(ResultTimeout) as late:
        await asyncio.to_thread(same.get, timeout=0.05)
    assert late.value.reason == NO_WORKER
    info = await asyncio.to_thread(same.info)
    assert info is not None
    assert info.waiting_because == NO_WORKER


async def test_a_queue_without_a_worker_is_named_with_the_command_that_serves_it(app: App) -> None:
    task = app.task(name="shop:add", queue="mail")(add)
    async with running(app, queues="default"):
        result = await task.delay(1)
        expected = (
            "no worker serves queue 'mail' (the running ones serve: default); "
            "start one with `fennelq worker -q mail`, or without -q for every queue"
        )
        await aeventually(lambda: _is(because(result), expected))
        assert await reason(result) == expected
    await result.cancel()


async def test_a_priority_that_no_worker_takes_is_named(app: App) -> None:
    task = app.task(name="shop:add")(add)
    async with running(app, priorities=["high", "normal"]):
        result = await task.options(priority="low").delay(1)
        expected = "no worker takes jobs of low priority from queue 'default'; start one without --priority"
        await aeventually(lambda: _is(because(result), expected))
        assert await reason(result) == expected
    await result.cancel()


async def test_a_new_queue_is_not_reported_while_a_worker_serves_every_queue(app: App) -> None:
    task = app.task(name="shop:add")(add)
    async with running(app) as executor:
        await aeventually(lambda: _known(app, executor.name))
        executor.slots.taken += executor.slots.count  # it has no time
        result = await task.options(queue="brand-new").delay(1)
        assert await because(result) is None
        executor.slots.taken -= executor.slots.count
        executor.slots.notify()
        assert await result.get(timeout=30) == 1


async def test_a_task_that_the_workers_do_not_have_is_named_with_the_nearest(
    app: App, make_app: MakeApp
) -> None:
    new = make_app()
    result = await new.send("shop:ad", 1)
    async with running(deploy(app)):
        await aeventually(lambda: _is_scheduled(result))
        expected = UNKNOWN + re.escape("unknown task 'shop:ad': did you mean 'shop:add'?")
        assert re.fullmatch(expected, await because(result) or "")
        assert re.fullmatch(expected, await reason(result) or "")
        (event,) = await result.history()
        assert (event.what, event.more) == (
            "unknown_task",
            "unknown task 'shop:ad': did you mean 'shop:add'?",
        )
        assert event.owner is not None
    assert await because(result) == NO_WORKER
    await result.cancel()


async def test_an_argument_that_the_worker_does_not_know_waits_for_the_worker_that_does(
    app: App, make_app: MakeApp
) -> None:
    new = make_app()
    result = await new.task(name="shop:add")(add).delay(1, b=2)
    async with running(deploy(app)):
        await aeventually(lambda: _is_scheduled(result))
        expected = "shop:add, parameter 'b': the task has no such parameter; it takes (a: 'int') -> 'int'"
        assert re.fullmatch(UNKNOWN + re.escape(expected), await because(result) or "")
        assert [(event.what, event.more) for event in await result.history()] == [
            ("unknown_argument", expected)
        ]
    async with running(new):
        assert await result.get(timeout=30) == 3
    info = await result.info()
    assert info is not None
    assert (info.status, info.tries, info.waiting_because) == (Status.SUCCESS, 1, None)


async def test_an_argument_that_no_worker_knows_in_time_makes_the_job_dead_with_its_name(
    make_app: MakeApp,
) -> None:
    old, new = deploy(make_app(unknown_task_patience=0)), make_app()
    result = await new.task(name="shop:add")(add).delay(1, b=2)
    async with running(old):
        with pytest.raises(TaskFailed, match="parameter 'b': the task has no such parameter") as failed:
            await result.get(timeout=30)
    assert failed.value.error_type == UnknownArgument.__name__
    info = await result.info()
    assert info is not None
    assert (info.reason, info.waiting_because) == ("unknown_argument", None)


@pytest.mark.parametrize("args", [b'[["one"],{}]', b"[[],{}]"], ids=["another type", "a missing argument"])
async def test_an_argument_that_does_not_fit_is_dead_at_once(app: App, args: bytes) -> None:
    deploy(app)
    job = altered(app.describe("shop:add", 1), args=args)
    async with running(app):
        result = await app.client.send(job)
        with pytest.raises(TaskFailed):
            await result.get(timeout=30)
    info = await result.info()
    assert info is not None
    assert info.reason == "bad_payload"


async def test_a_job_that_has_begun_since_is_not_called_unknown_any_more(app: App, make_app: MakeApp) -> None:
    new = make_app()

    @new.task(name="shop:later", retry=RetryPolicy.fixed(1, delay=9))
    async def later() -> int:
        raise ConnectionError("try again")

    result = await later.delay()
    async with running(deploy(app)):
        await aeventually(lambda: _is_scheduled(result))
    async with running(new):
        await aeventually(lambda: _has_status(result, Status.RETRY))
        assert await because(result) is None
        assert re.fullmatch(
            r"try 1 has failed \(ConnectionError: try again\), the next one is due in \d s",
            await reason(result) or "",
        )
    await result.cancel()


async def test_the_reason_of_a_job_that_waits_for_its_time_is_when_it_is_due(app: App) -> None:
    result = await app.task(name="shop:add")(add).options(delay=3000).delay(1)
    assert await reason(result) == "it is scheduled, due in 50 min"
    assert await because(result) is None


async def test_the_reason_of_a_job_that_runs_is_since_when_and_where(app: App) -> None:
    gate = asyncio.Event()

    @app.task(name="shop:wait")
    async def wait() -> int:
        await gate.wait()
        return 1

    async with running(app) as executor:
        result = await wait.delay()
        await aeventually(lambda: _has_status(result, Status.EXECUTING))
        assert re.fullmatch(
            rf"it has been running for \d s on {re.escape(executor.name)}", await reason(result) or ""
        )
        gate.set()
        assert await result.get(timeout=30) == 1


async def test_the_reason_of_a_job_that_waits_behind_others_is_their_number(app: App) -> None:
    task = app.task(name="shop:add")(add)
    async with running(app) as executor:
        await aeventually(lambda: _known(app, executor.name))
        executor.slots.taken += executor.slots.count  # it has no time
        results = await task.map(range(1, 1202))
        assert (
            await reason(results[-1]) == "it waits in queue 'default' with 1,200 others; 1 executor serves it"
        )
        executor.slots.taken -= executor.slots.count
        executor.slots.notify()
        assert await results[-1].get(timeout=30) == 1201


async def test_looking_once_asks_for_no_reason(app: App) -> None:
    result = await app.task(name="shop:add")(add).delay(1)
    assert await reason(result, timeout=0) is None


async def test_without_redis_the_reason_of_a_timeout_is_the_outage(proxy: Proxy, make_app: MakeApp) -> None:
    app = make_app(redis_url=proxy.url)
    result = await app.task(name="shop:add")(add).delay(1)
    blocking = app.sync.result(result.id)
    proxy.refuse()
    outage = f"Redis at {proxy.url} cannot be reached: connection refused"
    assert await reason(result) == outage
    with pytest.raises(ResultTimeout) as late:
        await asyncio.to_thread(blocking.get, 0.05)
    assert late.value.reason == outage
    proxy.up()


async def test_if_redis_is_silent_the_reason_of_a_timeout_is_the_missing_reply(
    proxy: Proxy, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reasons, "LONGEST", 0.05)
    app = make_app(redis_url=proxy.url)
    result = await app.task(name="shop:add")(add).delay(1)
    proxy.blackhole()
    assert await reason(result) == f"Redis at {proxy.url} did not reply within 0.05 s"
    proxy.up()


async def test_a_job_that_ends_while_its_reason_is_looked_up_has_none(app: App) -> None:
    result = await app.task(name="shop:add")(add).delay(1)
    await result.cancel()
    assert await app.client.why_not_ended(result.id, 0.05) is None
    assert await asyncio.to_thread(app.blocking.converse, reasons.after_timeout(app, result.id, 0.05)) is None


async def test_of_very_many_timeouts_at_once_some_are_explained_and_the_others_name_where_to_look(
    app: App,
) -> None:
    result = await app.task(name="shop:add")(add).delay(1)
    gets = (app.result(result.id).get(timeout=0.05) for _ in range(200))
    errors = await asyncio.gather(*gets, return_exceptions=True)
    found = Counter(error.reason for error in errors if isinstance(error, ResultTimeout))
    assert found.total() == 200
    assert found.keys() == {NO_WORKER, reasons.NOT_LOOKED_UP}
    assert found[NO_WORKER] >= 20


async def test_a_name_that_is_not_registered_is_sent_with_a_warning_that_names_the_nearest(app: App) -> None:
    deploy(app)
    with pytest.warns(
        UserWarning, match=r"no task 'shop:ad' is registered in this app: did you mean 'shop:add'\?"
    ) as seen:
        result = await app.send("shop:ad", 1)
    assert [warning.filename for warning in seen] == [__file__]
    assert await result.status() is Status.SENT


async def test_a_program_without_tasks_of_its_own_sends_any_name_without_a_warning(
    app: App, recwarn: pytest.WarningsRecorder
) -> None:
    await app.send("shop:ad", 1)
    deploy(app)
    await app.send("shop:add", 1)
    assert [str(warning.message) for warning in recwarn] == []


async def _is(answer: Awaitable[str | None], expected: str) -> bool:
    return await answer == expected


async def _has_status(result: AsyncResult[int], status: Status) -> bool:
    return await result.status() is status


async def _is_scheduled(result: AsyncResult[int]) -> bool:
    return await result.status() is Status.SCHEDULED


async def _known(app: App, name: str) -> bool:
    executors = await app.client.converse(executors_of(app.namespace))
    return executors is not None and name in executors.living
