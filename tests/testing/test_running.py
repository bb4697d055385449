"""`run_until_idle` and `tick`: the jobs of a test run in its loop, and its time passes when it says so."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta

import pytest

from fennelq import JobExpired, ResultExpired, Status
from fennelq.testing import Summary, Testing, testing
from fennelq.worker.executor import Executor
from tests.testing.shop import (
    app,
    charge,
    clean_up,
    download,
    flaky,
    poll,
    render,
    resize,
    runs,
    sign_up,
    welcome,
)


async def test_jobs_run_and_what_they_send(t: Testing) -> None:
    await sign_up.delay(7)
    sent = await welcome.delay(8)
    assert await t.run_until_idle() == Summary(succeeded=3)
    assert sorted(runs) == ["sign_up 7", "welcome 7", "welcome 8"]
    assert await sent.get(timeout=0) == "sent 'hello' to user 8"


async def test_a_job_that_becomes_ready_while_the_executor_ends_is_run(
    t: Testing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a retry does that the executor brings into its lane at the last moment."""
    run = Executor.run

    async def late(executor: Executor) -> None:
        await run(executor)
        monkeypatch.undo()
        await welcome.delay(9)

    monkeypatch.setattr(Executor, "run", late)
    await welcome.delay(8)
    assert await t.run_until_idle() == Summary(succeeded=2)
    assert runs == ["welcome 8", "welcome 9"]


async def test_jobs_of_a_paused_queue_are_left(t: Testing) -> None:
    await welcome.delay(7)
    await charge.delay(1)
    await t.app.queues.pause("mail")
    assert await t.run_until_idle() == Summary(succeeded=1)
    await t.app.queues.resume("mail")
    assert await t.run_until_idle() == Summary(succeeded=1)


async def test_without_a_job_it_returns_at_once(t: Testing) -> None:
    assert await t.run_until_idle() == Summary()


async def test_a_job_that_is_due_later_runs_when_the_time_has_passed(t: Testing) -> None:
    result = await welcome.options(delay=timedelta(hours=1)).delay(7)
    t.tick(3590)
    assert await t.run_until_idle() == Summary()
    assert await result.status() is Status.SCHEDULED
    t.tick(timedelta(seconds=10))
    assert await t.run_until_idle() == Summary(succeeded=1)
    assert await result.get(timeout=0) == "sent 'hello' to user 7"


async def test_a_failed_job_waits_for_its_next_try_and_the_summary_tells_why(t: Testing) -> None:
    result = await flaky.delay(1)
    summary = await t.run_until_idle()
    (failed,) = summary.failures
    assert (summary.retried, failed.id, failed.task) == (1, result.id, flaky.name)
    assert (failed.error_type, failed.message) == ("ConnectionError", "the mail server is away")
    assert 'raise ConnectionError("the mail server is away")' in failed.traceback
    t.tick(60)
    assert await t.run_until_idle() == Summary(succeeded=1)
    assert await result.get(timeout=0) == 2


async def test_a_job_in_a_process_that_was_refused_stops_all_of_its_rate(t: Testing) -> None:
    refused = await download.delay("shop.example", refused=True)
    assert await t.run_until_idle() == Summary(snoozed=1)
    waiting, other = await download.delay("shop.example"), await download.delay("other.example")
    assert await t.run_until_idle() == Summary(succeeded=1)
    assert [await one.status() for one in (refused, waiting, other)] == [
        Status.SENT,
        Status.SENT,
        Status.SUCCESS,
    ]
    t.tick(61)
    assert await t.run_until_idle() == Summary(succeeded=2)
    assert [await one.get(timeout=0) for one in (refused, waiting)] == [1, 1]


async def test_a_job_whose_tries_are_used_up_is_dead(t: Testing) -> None:
    result = await flaky.delay(3)
    summaries: list[Summary] = []
    for _ in range(3):
        summaries.append(await t.run_until_idle())
        t.tick(60)
    assert [(s.retried, s.died, len(s.failures)) for s in summaries] == [(1, 0, 1), (1, 0, 1), (0, 1, 1)]
    assert await result.status() is Status.DEAD
    assert runs == ["flaky 1", "flaky 2", "flaky 3"]


async def test_a_job_that_has_expired_is_counted_as_cancelled(t: Testing) -> None:
    result = await welcome.options(expires=30).delay(7)
    t.tick(31)
    assert await t.run_until_idle() == Summary(cancelled=1)
    with pytest.raises(JobExpired):
        await result.get(timeout=0)
    assert runs == []


async def test_a_snoozed_job_runs_again_after_its_time(t: Testing) -> None:
    await poll.delay()
    for _ in range(2):
        assert await t.run_until_idle() == Summary(snoozed=1)
        t.tick(60)
    assert runs == ["poll", "poll"]
    assert await app.queues.purge("default") == 1


async def test_results_are_forgotten_when_their_time_has_passed(t: Testing) -> None:
    result = await welcome.options(result_ttl=60).delay(7)
    await t.run_until_idle()
    t.tick(59)
    assert await result.get(timeout=0) == "sent 'hello' to user 7"
    t.tick(1)
    with pytest.raises(ResultExpired):
        await result.get(timeout=0)


async def test_a_key_is_free_again_when_its_time_has_passed(t: Testing) -> None:
    task = welcome.options(key="once", ttl=60)
    first = await task.delay(7)
    assert await task.delay(7) == first
    await t.run_until_idle()
    t.tick(61)
    assert await task.delay(7) != first
    assert await t.run_until_idle() == Summary(succeeded=1)


async def test_plain_functions_run_in_threads(t: Testing) -> None:
    result = await resize.delay("a.png")
    assert await t.run_until_idle() == Summary(succeeded=1)
    assert await result.get(timeout=0) == "a.png"


async def test_tasks_with_processes_of_their_own_have_them_in_jobs_and_in_calls(t: Testing) -> None:
    runs.append("only here")
    result = await render.delay(7)
    assert await t.run_until_idle() == Summary(succeeded=1)
    assert await result.get(timeout=0) == (7, False)
    assert await t.call(render, 8) == (8, False)


async def test_recurring_jobs_do_not_run_unless_the_test_asks_for_them(t: Testing) -> None:
    t.tick(600)
    assert await t.run_until_idle() == Summary()
    assert runs == []


async def test_recurring_jobs_run_once_for_each_time_that_has_come() -> None:
    async with testing(app, schedules=True) as t:
        assert await t.run_until_idle() == Summary()
        t.tick(60)
        assert await t.run_until_idle() == Summary(succeeded=1)
        t.tick(180)
        assert await t.run_until_idle() == Summary(succeeded=3)
        assert [job.task for job in t.sent()] == [clean_up.name] * 4
    assert runs == ["clean_up"] * 4


async def test_a_job_that_does_not_end_is_named(t: Testing) -> None:
    @app.task(name="tests:hang")
    async def hang(n: int) -> None:
        await asyncio.Event().wait()

    result = await hang.delay(7)
    with pytest.raises(AssertionError) as raised:
        await t.run_until_idle(timeout=0.05)
    lines = str(raised.value).splitlines()
    assert lines[:2] == ["jobs still run after 0.05 s:", f"  {result.id} tests:hang(n=7) EXECUTING"]
    assert lines[2] == "they wait in:"
    assert re.fullmatch(rf"  {result.id}: {__file__}:\d+ in hang > .*locks.py:\d+ in wait", lines[3])
    assert await result.status() is Status.SENT
    assert await result.cancel()


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), timedelta(days=-1)])
def test_time_does_not_go_back(seconds: float) -> None:
    with testing(app) as t, pytest.raises(ValueError, match="seconds that pass"):
        t.tick(seconds)


async def test_one_test_does_not_see_the_time_of_another(t: Testing) -> None:
    await welcome.options(delay=60).delay(7)
    async with testing(app) as other:
        await welcome.options(delay=60).delay(8)
        other.tick(60)
        assert await other.run_until_idle() == Summary(succeeded=1)
    assert await t.run_until_idle() == Summary()
    assert runs == ["welcome 8"]
    t.tick(60)
    assert await t.run_until_idle() == Summary(succeeded=1)


async def test_the_time_of_the_test_can_be_read(t: Testing) -> None:
    t.tick(timedelta(days=2))
    assert abs(t.now - datetime.now(UTC) - timedelta(days=2)) < timedelta(seconds=5)


async def test_a_hundred_jobs_run_together(t: Testing) -> None:
    results = await charge.map(range(100))
    assert await t.run_until_idle() == Summary(succeeded=100)
    assert {await result.get(timeout=0) for result in results} == {1}
