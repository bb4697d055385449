"""Runner: from a delivery to an outcome, without Redis."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, cast

import orjson
import pytest
from pydantic import AfterValidator

from fennelq import App, Reject, Retry, RetryPolicy, Snooze, current_job
from fennelq.model import outcome
from fennelq.model.job import Delivery
from fennelq.model.outcome import Outcome
from fennelq.worker.running.held import LOST, STOPPED, Held
from fennelq.worker.running.runner import Runner
from fennelq.worker.shared import SharedValues
from tests.kit.apps import LocalApp
from tests.kit.waiting import aeventually

FAILURE_MS, RESULT_MS = 86_400_000, 3_600_000
Function = Callable[..., Any]


def app_with(function: Function, *, most_bytes: int = 1 << 20, **options: Any) -> App:
    app = LocalApp(
        "shop",
        redis_url="redis://127.0.0.1:1/0",
        failure_ttl=FAILURE_MS / 1000,
        max_payload_bytes=most_bytes,
    )
    app.task(name="shop:task", **options)(function)
    return app


def runner_of(app: App) -> Runner:
    return Runner(app, 4, SharedValues())


def never(held: Held) -> None:
    raise AssertionError(f"{held.delivery.id} has timed out")


def time_out(held: Held) -> None:
    held.time_out()


def held_by(task: asyncio.Task[Any] | None, of: Delivery) -> Held:
    """As the workbench holds it: the run has begun."""
    held = Held(of)
    held.begun, held.task = True, task
    return held


def delivery(
    args: bytes = b"[[],{}]", *, task: str = "shop:task", options: bytes = b"", tries: int = 0
) -> Delivery:
    return Delivery("mail", "s", "1-1", "7", task, args, options, tries, 1, 1, 1_700_000_000_000)


async def run(function: Function, args: bytes = b"[[],{}]", **given: Any) -> Outcome:
    of_delivery = {name: given.pop(name) for name in ("options", "tries") if name in given}
    held = held_by(asyncio.current_task(), delivery(args, **of_delivery))
    return await runner_of(app_with(function, **given)).run(held, time_out)


def failure(ended: Outcome) -> dict[str, Any]:
    failure: dict[str, Any] = orjson.loads(ended.error)
    return failure


async def add(a: int, b: int) -> int:
    return a + b


def add_in_thread(a: int, b: int) -> int:
    return a + b


async def nothing() -> None: ...


async def fail() -> None:
    raise ConnectionError("connection refused")


# What would end the process


async def leave() -> None:
    sys.exit("enough")


def leave_in_thread() -> None:
    sys.exit("enough")


@pytest.mark.parametrize("function", [leave, leave_in_thread])
async def test_a_job_that_asks_to_exit_has_failed(function: Function) -> None:
    ended = await run(function, retries=0)
    assert (ended.kind, ended.reason) == (outcome.DEAD, "failed")
    assert (failure(ended)["type"], failure(ended)["message"]) == ("SystemExit", "enough")


class Mute(Exception):
    def __str__(self) -> str:
        raise SystemExit("no words")


async def test_an_error_whose_message_exits_is_a_failure_like_any_other() -> None:
    async def fail_mutely() -> None:
        raise Mute

    ended = await run(fail_mutely, retries=0)
    assert (ended.kind, ended.reason) == (outcome.DEAD, "failed")
    assert failure(ended)["message"] == "(its message cannot be shown: SystemExit)"


def exits(_: Any) -> Any:
    sys.exit("in a validator")


Exits = Annotated[int, AfterValidator(exits)]


async def test_arguments_whose_validation_exits_are_a_bad_payload() -> None:
    async def take(n: Exits) -> None: ...

    take.__annotations__["n"] = Exits
    assert (await run(take, b"[[1],{}]")).reason == "bad_payload"


async def test_a_result_whose_validation_exits_is_a_bad_result() -> None:
    async def give() -> Exits:
        return 1

    give.__annotations__["return"] = Exits
    ended = await run(give)
    assert (ended.kind, ended.reason) == (outcome.DEAD, "bad_result")


async def test_a_retry_curve_that_exits_is_a_bad_retry_policy() -> None:
    ended = await run(fail, retry=RetryPolicy.calling(exits))
    assert (ended.kind, ended.reason) == (outcome.DEAD, "bad_retry_policy")


# Success


@pytest.mark.parametrize("function", [add, add_in_thread])
async def test_what_a_task_returns_is_its_success(function: Function) -> None:
    assert await run(function, b'[[1],{"b":2}]') == Outcome(outcome.SUCCESS, b'{"ok":3}', ttl_ms=RESULT_MS)


async def test_nothing_returned_is_a_success_without_value() -> None:
    assert (await run(nothing)).kind == outcome.SUCCESS_WITHOUT_VALUE


async def test_the_tasks_options_and_then_the_calls_decide_how_long_a_result_is_kept() -> None:
    assert (await run(add, b"[[1,2],{}]", result_ttl=5)).ttl_ms == 5000
    assert (await run(add, b"[[1,2],{}]", result_ttl=5, options=b'{"s":7}')).ttl_ms == 7000


async def test_a_task_sees_its_delivery_as_the_current_job() -> None:
    async def look() -> list[Any]:
        job = current_job()
        return [job.id, job.task, job.queue, job.tries, job.max_retries, job.fence, dict(job.headers)]

    ended = await run(look, tries=2, retries=5, options=b'{"h":{"a":"b"}}')
    assert orjson.loads(ended.value)["ok"] == ["mail:7", "shop:task", "mail", 3, 5, 1, {"a": "b"}]


# Failure


async def test_a_failed_try_is_retried_with_what_went_wrong() -> None:
    ended = await run(fail, retry=RetryPolicy.fixed(2, delay=1.5))
    assert (ended.kind, ended.value) == (outcome.RETRY, b"1500")
    assert failure(ended)["type"] == "ConnectionError"
    assert failure(ended)["message"] == "connection refused"


async def test_a_retried_try_knows_how_many_there_are() -> None:
    assert (await run(fail, retries=4)).of == 5
    assert (await run(fail, retries=4, options=b'{"r":1}')).of == 2


@pytest.mark.parametrize(("tries", "kind"), [(0, "R"), (1, "R"), (2, "D")])
async def test_the_last_try_that_fails_is_the_jobs_death(tries: int, kind: str) -> None:
    ended = await run(fail, retries=2, tries=tries)
    assert ended.kind == kind
    if kind == "D":
        assert failure(ended)["tries"] == tries + 1
        assert failure(ended)["reason"] == "failed"
        assert "in fail" in failure(ended)["traceback"]
        assert ended.ttl_ms == FAILURE_MS


async def test_a_task_may_choose_how_it_goes_on() -> None:
    async def choose(what: str) -> None:
        raise {"retry": Retry(delay=2), "snooze": Snooze(3), "reject": Reject("no")}[what]

    retry, snooze, reject = [
        await run(choose, b'[["%s"],{}]' % what) for what in (b"retry", b"snooze", b"reject")
    ]
    assert (retry.kind, retry.value) == (outcome.RETRY, b"2000")
    assert (snooze.kind, snooze.value) == (outcome.SNOOZE, b"+3000")
    assert (reject.kind, reject.reason) == (outcome.DEAD, "rejected")


async def test_a_run_that_takes_too_long_has_timed_out() -> None:
    async def dawdle() -> None:
        await asyncio.sleep(60)

    ended = await run(dawdle, timeout=0.02, retries=0)
    assert (ended.kind, ended.reason) == (outcome.DEAD, "timeout")


# What cannot be run


async def test_an_unknown_task_is_left_to_a_worker_that_knows_it() -> None:
    ended = await runner_of(app_with(add)).run(Held(delivery(task="shop:tusk")), never)
    assert (ended.kind, ended.reason) == (outcome.UNKNOWN_TASK, "unknown_task")
    assert "did you mean 'shop:task'" in failure(ended)["message"]


async def test_a_name_that_comes_from_redis_is_never_imported() -> None:
    ended = await runner_of(app_with(add)).run(Held(delivery(b'[["true"],{}]', task="os:system")), never)
    assert ended.reason == "unknown_task"


@pytest.mark.parametrize("args", [b"", b"{", b'[["x","y"],{}]', b"[[],{}]", b"\xff"])
async def test_a_call_that_cannot_be_read_is_dead_and_has_spent_no_try(args: bytes) -> None:
    ended = await run(add, args)
    assert (ended.kind, ended.reason) == (outcome.DEAD, "bad_payload")
    assert failure(ended)["tries"] == 0


@pytest.mark.parametrize("args", [b'[[1,2],{"colour":"red"}]', b'[[],{"colour":"red"}]', b"[[1,2,3],{}]"])
async def test_an_argument_that_the_task_does_not_take_is_left_to_a_worker_with_newer_code(
    args: bytes,
) -> None:
    ended = await run(add, args)
    assert (ended.kind, ended.reason) == (outcome.UNKNOWN_TASK, "unknown_argument")
    assert failure(ended)["type"] == "UnknownArgument"
    assert failure(ended)["tries"] == 0


async def test_options_that_cannot_be_read_are_a_bad_payload() -> None:
    assert (await run(add, b"[[1,2],{}]", options=b'{"r":-1}')).reason == "bad_payload"


async def test_a_result_that_cannot_be_written_is_the_jobs_death_without_a_retry() -> None:
    async def lie() -> int:
        return "seven"  # type: ignore[return-value]  # pyright: ignore[reportReturnType]

    ended = await run(lie, retries=5)
    assert (ended.kind, ended.reason) == (outcome.DEAD, "bad_result")


async def test_a_result_over_the_limit_is_the_jobs_death() -> None:
    async def repeat(n: int) -> str:
        return "x" * n

    runner = runner_of(app_with(repeat, most_bytes=100))
    assert (await runner.run(Held(delivery(b"[[98],{}]")), never)).kind == outcome.SUCCESS
    assert (await runner.run(Held(delivery(b"[[99],{}]")), never)).reason == "bad_result"


async def test_a_result_that_cannot_be_written_is_a_cancel_when_the_job_was_cancelled() -> None:
    runner, held = runner_of(app_with(lambda: "x" * 101, most_bytes=100)), Held(delivery(b"[[],{}]"))
    held.ask("no longer needed")
    ended = await runner.run(held, never)
    assert (ended.kind, ended.reason) == (outcome.CANCELLED, "no longer needed")


# Being stopped


@pytest.fixture
def started() -> threading.Event:
    """Set by a handler as soon as it runs."""
    return threading.Event()


@pytest.mark.parametrize("timeout", [None, 30])
async def test_a_cancellation_from_outside_has_no_outcome(
    started: threading.Event, timeout: float | None
) -> None:
    async def wait() -> None:
        started.set()
        await asyncio.sleep(60)

    with pytest.raises(asyncio.CancelledError):
        await stopped(wait, started, timeout=timeout)


@pytest.mark.parametrize("timeout", [None, 30])
async def test_an_error_that_a_handler_raises_when_it_is_cancelled_does_not_count_as_a_failure(
    started: threading.Event, timeout: float | None
) -> None:
    """Many libraries turn a cancellation into an error of their own; a deploy must not cost a try."""

    async def wait() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise ConnectionError("lost in between") from None

    with pytest.raises(asyncio.CancelledError):
        await stopped(wait, started, timeout=timeout)


async def test_a_run_in_a_thread_lasts_as_long_as_its_thread(started: threading.Event) -> None:
    """A slot that looked free would hand the next job to a pool without a free thread."""
    may_end = threading.Event()

    def wait() -> str:
        started.set()
        may_end.wait(20)
        return "finished"

    run = await begun(wait, started)
    run.stop()
    run.stop()
    await asyncio.sleep(0)
    assert not run.outcome.done()
    may_end.set()
    async with asyncio.timeout(15):
        assert (await run.outcome).value == b'{"ok":"finished"}'


# Being asked


@pytest.mark.parametrize("timeout", [None, 30])
@pytest.mark.parametrize("raised", [None, ConnectionError("lost"), Snooze(5), Retry(delay=5), Reject("no")])
async def test_a_run_that_was_asked_to_stop_and_did_not_succeed_is_cancelled(
    started: threading.Event, timeout: float | None, raised: Exception | None
) -> None:
    async def wait() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            assert current_job().cancelled == "not wanted"
            if raised is not None:
                raise raised from None
            raise

    run = await begun(wait, started, timeout=timeout)
    assert run.held.ask("not wanted")
    assert not run.held.ask("again")
    async with asyncio.timeout(15):
        ended = await run.outcome
    assert (ended.kind, ended.reason, ended.ttl_ms) == (outcome.CANCELLED, "not wanted", FAILURE_MS)
    assert ended.value == b'{"cancelled":"not wanted"}'


async def test_a_run_that_succeeds_although_it_was_asked_to_stop_has_succeeded(
    started: threading.Event,
) -> None:
    """The work is done: in a thread, and on the loop."""

    def finish_in_thread() -> str:
        started.set()
        while (why := current_job().cancelled) is None:
            time.sleep(0.001)
        return why

    async def finish() -> str:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass
        return current_job().cancelled or ""

    for function in (finish, finish_in_thread):
        started.clear()
        run = await begun(function, started)
        run.held.ask("not wanted")
        async with asyncio.timeout(15):
            assert (await run.outcome).value == b'{"ok":"not wanted"}'


@pytest.mark.parametrize("timeout", [None, 60])
async def test_a_function_in_a_thread_may_raise_the_cancellation_that_a_coroutine_would_get(
    started: threading.Event, timeout: float | None
) -> None:
    def work() -> None:
        job = current_job()
        started.set()
        while job.cancelled is None:
            time.sleep(0.001)
        raise asyncio.CancelledError

    run = await begun(work, started, timeout=timeout, retries=0)
    run.held.ask("not wanted") if timeout is None else run.held.time_out()
    async with asyncio.timeout(15):
        ended = await run.outcome
    if timeout is None:
        assert (ended.kind, ended.reason) == (outcome.CANCELLED, "not wanted")
        return
    assert (ended.kind, ended.reason) == (outcome.DEAD, "timeout")
    assert ", in work\n" in failure(ended)["traceback"]


@pytest.mark.parametrize(("why", "shown"), [(STOPPED, None), (LOST, "lost")])
async def test_a_function_in_a_thread_does_not_see_that_its_executor_stops(
    started: threading.Event, why: str, shown: str | None
) -> None:
    """It might return early: then it would have succeeded, and its job would not run again."""
    may_end = threading.Event()

    def work() -> str | None:
        started.set()
        may_end.wait(20)
        return current_job().cancelled

    run = await begun(work, started)
    run.held.stop(why)
    may_end.set()
    async with asyncio.timeout(15):
        assert orjson.loads((await run.outcome).value) == {"ok": shown}


async def test_a_timeout_after_a_cancel_changes_nothing(started: threading.Event) -> None:
    async def wait() -> None:
        started.set()
        await asyncio.sleep(60)

    run = await begun(wait, started, timeout=60)
    run.held.ask("not wanted")
    assert not run.held.time_out()
    async with asyncio.timeout(15):
        assert (await run.outcome).reason == "not wanted"


async def test_a_run_that_is_stopped_after_its_timeout_has_no_outcome(started: threading.Event) -> None:
    """Its executor stops: the job is handed back."""

    asked = 0

    async def wait() -> None:
        nonlocal asked
        started.set()
        while asked < 2:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                asked += 1
        raise ConnectionError("lost")

    run = await begun(wait, started, timeout=60)
    assert run.held.time_out()
    await asyncio.sleep(0)
    run.stop()
    async with asyncio.timeout(15):
        with pytest.raises(asyncio.CancelledError):
            await run.outcome
    assert run.held.asked == "timeout"


@pytest.mark.parametrize("function", [add, add_in_thread])
async def test_only_a_job_with_a_timeout_has_a_timer(
    function: Function, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers: list[asyncio.TimerHandle] = []
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def noted(delay: float, callback: Any, *args: Any) -> asyncio.TimerHandle:
        timers.append(call_later(delay, callback, *args))
        return timers[-1]

    monkeypatch.setattr(loop, "call_later", noted)
    assert (await run(function, b"[[1,2],{}]")).kind == outcome.SUCCESS
    assert timers == []
    assert (await run(function, b"[[1,2],{}]", timeout=30)).kind == outcome.SUCCESS
    assert [timer.cancelled() for timer in timers] == [True]


async def test_a_cancellation_that_the_executor_did_not_ask_for_is_a_failed_try(
    started: threading.Event,
) -> None:
    """Of a job that cancels itself, or that another job cancels with everything else."""

    async def wait() -> None:
        started.set()
        await asyncio.sleep(60)

    run = await begun(wait, started, retries=0)
    run.outcome.cancel()
    async with asyncio.timeout(15):
        ended = await run.outcome
    assert (ended.kind, ended.reason) == (outcome.DEAD, "failed")
    assert failure(ended)["type"] == "fennelq.RunCancelled"


async def test_a_handler_may_still_finish_when_it_is_cancelled(started: threading.Event) -> None:
    async def wait() -> str:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "finished quickly"
        return "never"

    assert (await stopped(wait, started)).value == b'{"ok":"finished quickly"}'


@pytest.mark.parametrize(("raised", "kind"), [(Snooze(5), "Z"), (Retry(delay=5), "R"), (Reject("no"), "D")])
async def test_a_handler_may_choose_how_its_job_goes_on_when_it_is_cancelled(
    started: threading.Event, raised: Exception, kind: str
) -> None:
    async def wait() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise raised from None

    assert (await stopped(wait, started)).kind == kind


async def stopped(function: Function, started: threading.Event, **options: Any) -> Outcome:
    """The outcome of a run that is cancelled on its way, if it has one."""
    run = await begun(function, started, **options)
    run.stop()
    async with asyncio.timeout(15):
        return await run.outcome


class Run(NamedTuple):
    """A run of a held job, as the workbench makes it."""

    held: Held
    outcome: asyncio.Task[Outcome]

    def stop(self) -> None:
        self.held.stop(STOPPED)


async def begun(function: Function, started: threading.Event, **options: Any) -> Run:
    held = held_by(None, delivery())
    run = Run(held, asyncio.create_task(runner_of(app_with(function, **options)).run(held, time_out)))
    held.task = cast("asyncio.Task[None]", run.outcome)
    await aeventually(started.is_set)
    return run
