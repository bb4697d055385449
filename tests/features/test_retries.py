"""Retries: what becomes of a job whose task raises."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from fennelq import App, Reject, Retry, RetryPolicy, Snooze, Status, TaskFailed, current_job
from fennelq.testing import Testing
from tests.kit.workers import running

AT_ONCE = RetryPolicy.fixed(3, delay=0)


class Refused(ConnectionError):
    """An error of the user's own."""


async def test_a_failed_job_runs_again_until_it_succeeds(app: App) -> None:
    tries: list[int] = []

    @app.task(retry=AT_ONCE)
    async def flaky() -> str:
        tries.append(current_job().tries)
        if len(tries) < 3:
            raise Refused("not yet")
        return "at last"

    async with running(app):
        result = await flaky.delay()
        assert await result.get(timeout=30) == "at last"
        info = await result.info()
    assert tries == [1, 2, 3]
    assert info is not None
    assert (info.status, info.tries) == (Status.SUCCESS, 3)


async def test_retries_counts_the_runs_after_the_first(app: App) -> None:
    runs = Counter[str]()

    @app.task(retry=AT_ONCE)
    async def fail(name: str) -> None:
        runs[name] += 1
        raise ValueError(name)

    async with running(app):
        for name, task in (
            ("declared", fail),
            ("two", fail.options(retries=2)),
            ("none", fail.options(retries=0)),
        ):
            with pytest.raises(TaskFailed) as failed:
                await (await task.delay(name)).get(timeout=30)
            assert failed.value.tries == runs[name]
    assert runs == {"declared": 4, "two": 3, "none": 1}


async def test_an_exhausted_job_is_dead_and_raises_what_happened(app: App) -> None:
    @app.task(retry=RetryPolicy.fixed(1, delay=0))
    async def fail() -> None:
        raise Refused("connection refused on port 99")

    async with running(app):
        result = await fail.delay()
        with pytest.raises(TaskFailed, match="connection refused") as failed:
            await result.get(timeout=30)
        info = await result.info()
    error = failed.value
    assert error.job_id == result.id
    assert error.error_type == f"{__name__}.Refused"
    assert error.message == "connection refused on port 99"
    assert error.tries == 2
    assert 'raise Refused("connection refused on port 99")' in error.traceback
    assert info is not None
    assert (info.status, info.tries, info.reason) == (Status.DEAD, 2, "failed")
    assert info.error is not None
    assert info.error.traceback == error.traceback


async def test_a_dead_job_is_listed_with_all_that_is_known_about_it(app: App, t: Testing) -> None:
    @app.task(queue="mail", retries=0)
    async def fail(user: str) -> None:
        raise Refused(user)

    result = await fail.options(headers={"request": "r-1"}).delay("ann")
    await t.run_until_idle()
    (letter,) = await app.dlq.list()
    full = await app.dlq.get(result.id)
    assert (letter.id, letter.queue, letter.task) == (result.id, "mail", fail.name)
    assert (letter.error_type, letter.message, letter.reason) == (f"{__name__}.Refused", "ann", "failed")
    assert full is not None
    assert full.tries == 1
    assert "raise Refused(user)" in full.traceback
    assert full.info is not None
    assert full.info.arguments == b'[["ann"],{}]'
    assert full.info.headers == {"request": "r-1"}
    assert full.info.enqueued_at is not None
    assert full.info.ended_at is not None
    assert full.info.enqueued_at <= full.info.ended_at


async def test_of_a_long_failure_only_the_end_of_the_traceback_and_the_begin_of_the_message_are_kept(
    app: App,
) -> None:
    def dig(depth: int, message: str) -> None:
        if depth:
            return dig_on(depth - 1, message)
        raise ValueError(message)

    def dig_on(depth: int, message: str) -> None:
        dig(depth, message)

    @app.task(retries=0)
    async def fail() -> None:
        dig(200, "Grüße 🌿 " * 100_000)

    @app.task(retries=0)
    async def fail_deeply() -> None:
        dig(200, "the end")

    async with running(app):
        for task in (fail, fail_deeply):
            with pytest.raises(TaskFailed) as failed:
                await (await task.delay()).get(timeout=30)
            assert len(failed.value.traceback.encode()) <= 8192
            assert len(failed.value.message.encode()) <= 4096
            assert failed.value.traceback.rstrip().endswith(("the end", "🌿"))
        assert "dig(depth, message)" in failed.value.traceback


async def test_an_exception_that_cannot_be_shown_is_a_failure_like_any_other(app: App) -> None:
    class Shy(Exception):
        def __str__(self) -> str:
            raise RuntimeError("without a reason")

    @app.task(retries=0)
    async def fail() -> None:
        raise Shy

    @app.task(retries=0)
    async def fail_in_utf16() -> None:
        raise ValueError("half a \ud83c letter")

    async with running(app):
        with pytest.raises(TaskFailed, match="cannot be shown"):
            await (await fail.delay()).get(timeout=30)
        with pytest.raises(TaskFailed, match=r"half a . letter"):
            await (await fail_in_utf16.delay()).get(timeout=30)


# Which errors


async def test_only_the_errors_named_by_on_are_retried(app: App) -> None:
    runs = Counter[str]()

    @app.task(retry=AT_ONCE.only_on(ConnectionError, TimeoutError))
    async def fail(kind: str) -> None:
        runs[kind] += 1
        raise {"refused": Refused, "timeout": TimeoutError, "value": ValueError}[kind]

    async with running(app):
        for kind in ("refused", "timeout", "value"):
            with pytest.raises(TaskFailed):
                await (await fail.delay(kind)).get(timeout=30)
    assert runs == {"refused": 4, "timeout": 4, "value": 1}


async def test_errors_to_give_up_on_are_not_retried(app: App) -> None:
    runs = Counter[str]()

    @app.task(retry=AT_ONCE.giving_up_on(ConnectionError))
    async def fail(kind: str) -> None:
        runs[kind] += 1
        raise {"refused": Refused, "value": ValueError}[kind]

    async with running(app):
        for kind in ("refused", "value"):
            with pytest.raises(TaskFailed):
                await (await fail.delay(kind)).get(timeout=30)
    assert runs == {"refused": 1, "value": 4}


async def test_a_task_that_asks_the_process_to_exit_has_failed_and_the_worker_goes_on(app: App) -> None:
    @app.task(retry=AT_ONCE)
    async def leave() -> None:
        raise SystemExit(3)

    @app.task(retry=AT_ONCE)
    def leave_from_a_thread() -> None:
        raise KeyboardInterrupt

    async with running(app):
        for task, kind in ((leave, "SystemExit"), (leave_from_a_thread, "KeyboardInterrupt")):
            with pytest.raises(TaskFailed) as failed:
                await (await task.delay()).get(timeout=30)
            assert (failed.value.error_type, failed.value.tries) == (kind, 1)


async def test_a_task_that_cancels_itself_has_failed(app: App) -> None:
    @app.task(retries=0)
    async def give_in() -> None:
        raise asyncio.CancelledError

    async with running(app):
        with pytest.raises(TaskFailed, match="CancelledError"):
            await (await give_in.delay()).get(timeout=30)


# How long to wait

CURVES = {
    "exponential": (RetryPolicy.exponential(3, base=100, factor=3, cap=500, jitter=False), [100, 300, 500]),
    "linear": (RetryPolicy.linear(3, step=100, cap=250), [100, 200, 250]),
    "fixed": (RetryPolicy.fixed(3, delay=100), [100, 100, 100]),
    "explicit": (RetryPolicy.explicit([100, 300, 200]), [100, 300, 200]),
    "a function": (RetryPolicy.calling(lambda tries: 100.0 + tries, 3), [101, 102, 103]),
}


@pytest.mark.parametrize("curve", CURVES)
async def test_a_policy_decides_when_the_next_run_is_due(app: App, t: Testing, curve: str) -> None:
    policy, waits = CURVES[curve]

    @app.task(retry=policy)
    async def fail() -> None:
        raise ValueError

    result = await fail.delay()
    for tries, wait in enumerate(waits, start=1):
        await t.run_until_idle()
        assert wait - 5 < await seconds_to_retry(t, result.id, tries) <= wait
        t.tick(wait)
    await t.run_until_idle()
    with pytest.raises(TaskFailed):
        await result.get(timeout=30)


async def test_full_jitter_is_anything_up_to_the_wait(app: App, t: Testing) -> None:
    longest = 1_000_000  # so long that no job is due again while the others are looked at

    @app.task(retry=RetryPolicy.exponential(1, base=longest, cap=longest, jitter=True))
    async def fail() -> None:
        raise ValueError

    results = await app.enqueue([fail.job() for _ in range(20)])
    await t.run_until_idle()
    waits = [await seconds_to_retry(t, result.id, 1) for result in results]
    assert all(0 <= wait <= longest for wait in waits)
    assert len({round(wait) for wait in waits}) > 5
    assert min(waits) < longest / 2 < max(waits)


async def test_a_call_may_bring_a_policy_of_its_own(app: App, t: Testing) -> None:
    @app.task(retries=0)
    async def fail() -> None:
        raise ValueError

    result = await fail.options(retry=RetryPolicy.linear(2, step=70)).delay()
    await t.run_until_idle()
    assert 60 < await seconds_to_retry(t, result.id, 1) <= 70
    t.tick(70)
    await t.run_until_idle()
    assert 130 < await seconds_to_retry(t, result.id, 2) <= 140
    assert await result.cancel()


async def test_a_policy_that_fails_itself_costs_only_its_job(app: App) -> None:
    def broken(tries: int) -> float:
        raise ZeroDivisionError(f"after {tries}")

    @app.task(retry=RetryPolicy.calling(broken))
    async def fail() -> None:
        raise ValueError

    @app.task(retry=RetryPolicy.calling(lambda _: float("nan")))
    async def fail_never() -> None:
        raise ValueError

    async with running(app, concurrency=1):
        for task in (fail, fail_never):
            result = await task.delay()
            with pytest.raises(TaskFailed) as failed:
                await result.get(timeout=30)
            assert failed.value.tries == 1
            info = await result.info()
            assert info is not None
            assert info.reason == "bad_retry_policy"


# What a task may raise to choose how it goes on


async def test_a_task_may_ask_for_another_run_at_a_time(app: App, t: Testing) -> None:
    @app.task(retry=RetryPolicy.fixed(1, delay=500))
    async def poll(wait: float | None) -> int:
        if current_job().tries == 1:
            raise Retry(delay=wait, reason="not there yet")
        return current_job().tries

    at_once, later, by_policy = await poll.map([0, 100, None])
    await t.run_until_idle()
    assert await at_once.get(timeout=30) == 2
    assert 90 < await seconds_to_retry(t, later.id, 1) <= 100
    assert 490 < await seconds_to_retry(t, by_policy.id, 1) <= 500
    info = await later.info()
    assert info is not None
    assert info.error is not None
    assert info.error.message == "not there yet"


async def test_asking_for_another_run_counts_as_a_try(app: App) -> None:
    runs = 0

    @app.task(retries=2)
    async def poll() -> None:
        nonlocal runs
        runs += 1
        raise Retry(delay=0)

    async with running(app):
        with pytest.raises(TaskFailed, match="asked to retry") as failed:
            await (await poll.delay()).get(timeout=30)
    assert (runs, failed.value.tries) == (3, 3)


async def test_a_snooze_does_not_count_as_a_try(app: App) -> None:
    tries: list[int] = []

    @app.task(retries=0)
    async def wait_for_it() -> str:
        tries.append(current_job().tries)
        if len(tries) < 5:
            raise Snooze(0.01)
        return "there"

    async with running(app):
        assert await app.call(wait_for_it.job(), timeout=30) == "there"
    assert tries == [1, 1, 1, 1, 1]


async def test_a_snoozed_job_is_scheduled_for_the_moment_it_asked_for(app: App, t: Testing) -> None:
    moment = datetime.now(UTC) + timedelta(hours=1)

    @app.task
    async def tomorrow() -> None:
        raise Snooze(until=moment)

    result = await tomorrow.delay()
    await t.run_until_idle()
    info = await result.info()
    assert info is not None
    assert info.status is Status.SCHEDULED
    assert info.due_at is not None
    assert abs(info.due_at - moment) < timedelta(seconds=30)
    assert await result.cancel()


async def test_a_rejected_job_is_dead_at_once(app: App) -> None:
    @app.task(retries=100)
    async def pay() -> None:
        raise Reject("the card is stolen")

    async with running(app):
        result = await pay.delay()
        with pytest.raises(TaskFailed, match="the card is stolen") as failed:
            await result.get(timeout=30)
        info = await result.info()
    assert failed.value.tries == 1
    assert info is not None
    assert info.reason == "rejected"


async def test_the_reason_of_a_job_that_waits_for_its_retry_is_the_retry(app: App, t: Testing) -> None:
    @app.task(retry=RetryPolicy.fixed(1, delay=100))
    async def fail() -> None:
        raise Refused("busy")

    result = await fail.delay()
    await t.run_until_idle()
    info = await result.info()
    assert info is not None
    assert info.status is Status.RETRY
    assert info.tries == 1
    assert info.error is not None
    assert (info.error.error_type, info.error.message) == (f"{__name__}.Refused", "busy")
    assert await result.cancel()


async def seconds_to_retry(t: Testing, job_id: str, tries: int) -> float:
    """How long from now the job, which has failed so often, waits for its next run."""
    info = await t.app.result(job_id).info()
    assert info is not None
    assert (info.status, info.tries) == (Status.RETRY, tries)
    assert info.due_at is not None
    return (info.due_at - t.now).total_seconds()
