"""`deliver_twice`, `kill_executor` and `eager`: crashes in a test, by the real scripts."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from fennelq import App, BrokerUnavailable, Status, TaskFailed
from fennelq.broker import scripts
from fennelq.testing import Summary, Testing, testing
from tests.testing.shop import app, charge, flaky, poll, renew, report, resize, runs, sign_up, welcome

# deliver_twice


async def test_delivered_twice_every_job_runs_twice_and_ends_once(t: Testing) -> None:
    with t.deliver_twice():
        results = [await charge.delay(1), await charge.delay(2)]
        assert await t.run_until_idle() == Summary(succeeded=2)
    assert sorted(runs) == ["begin 1", "begin 1", "begin 2", "begin 2", "end 1", "end 1", "end 2", "end 2"]
    assert [await result.get(timeout=0) for result in results] == [2, 2]
    assert [[event.what for event in await result.history()] for result in results] == [["stopped"]] * 2


async def test_after_the_block_jobs_run_once(t: Testing) -> None:
    with t.deliver_twice():
        await welcome.delay(7)
        await t.run_until_idle()
    await welcome.delay(8)
    assert await t.run_until_idle() == Summary(succeeded=1)
    assert runs == ["welcome 7", "welcome 7", "welcome 8"]


async def test_a_failure_that_gets_lost_counts_no_try(t: Testing) -> None:
    await flaky.delay(1)
    with t.deliver_twice():
        assert (await t.run_until_idle()).retried == 1
    assert runs == ["flaky 1", "flaky 1"]
    t.tick(60)
    assert await t.run_until_idle() == Summary(succeeded=1)


async def test_of_a_batch_only_the_outcomes_of_new_jobs_get_lost(t: Testing) -> None:
    with t.deliver_twice():
        results = await welcome.map(range(50))
        assert await t.run_until_idle() == Summary(succeeded=50)
    assert len(runs) == 100
    assert {await result.get(timeout=0) for result in results} == {
        f"sent 'hello' to user {n}" for n in range(50)
    }


# kill_executor


async def test_a_job_whose_executor_was_killed_runs_again(t: Testing) -> None:
    result = await charge.delay(7)
    await t.kill_executor(during=charge)
    assert runs == ["begin 1"]
    assert await result.status() is Status.SENT
    assert await t.run_until_idle() == Summary(succeeded=1)
    assert runs == ["begin 1", "begin 2", "end 2"]
    assert await result.get(timeout=0) == 2
    (recovered,) = await result.history()
    assert (recovered.what, recovered.more) == ("recovered", "killed by kill_executor")


async def test_a_job_that_kills_each_executor_is_dead_in_the_end(t: Testing) -> None:
    result = await charge.delay(7)
    for _ in range(2):
        await t.kill_executor(during=charge)
    assert await t.run_until_idle() == Summary(succeeded=1)  # the third delivery runs in quarantine
    again = await charge.delay(8)
    info = await result.info()
    assert info is not None
    assert (info.status, info.deliveries) == (Status.SUCCESS, 3)
    await t.run_until_idle()
    assert await again.get(timeout=0) == 1


async def test_the_jobs_beside_it_are_lost_as_well_and_recovered(t: Testing) -> None:
    beside = asyncio.Event()

    @app.task(name="tests:waits")
    async def waits() -> None:
        runs.append("waits")
        await beside.wait()

    await waits.delay()
    await charge.delay(7)
    await t.kill_executor(during=charge)
    beside.set()
    assert await t.run_until_idle() == Summary(succeeded=2)
    assert runs.count("waits") == 2 - (runs.index("begin 1") < runs.index("waits"))


async def test_a_thread_goes_on_and_its_outcome_does_not_count(t: Testing) -> None:
    result = await resize.delay("a.png")
    await t.kill_executor(during=resize)
    assert await t.run_until_idle() == Summary(succeeded=1)
    assert runs == ["resize 1", "resize 2"]
    info = await result.info()
    assert info is not None
    assert (info.status, info.deliveries) == (Status.SUCCESS, 2)


async def test_a_function_that_never_waits_has_run_and_its_outcome_is_lost(t: Testing) -> None:
    result = await welcome.delay(7)
    await t.kill_executor(during=welcome)
    assert (runs, await result.status()) == (["welcome 7"], Status.SENT)
    assert await t.run_until_idle() == Summary(succeeded=1)


async def test_an_executor_is_killed_only_during_a_job_that_begins(t: Testing) -> None:
    with pytest.raises(
        AssertionError, match=r"^no job of tests.testing.shop:charge has begun; no job waits$"
    ):
        await t.kill_executor(during=charge)
    later = await charge.options(delay=60).delay(7)
    with pytest.raises(AssertionError) as raised:
        await t.kill_executor(during=charge)
    assert "has begun; these jobs wait:" in str(raised.value)
    scheduled = rf"{later.id} tests\.testing\.shop:charge\(order=7\) SCHEDULED, due in 0:0(1:00|0:\d\d)"
    assert re.search(scheduled, str(raised.value))
    assert await later.cancel()


# eager


async def test_an_eager_job_has_run_when_delay_returns(t: Testing) -> None:
    with t.eager():
        result = await welcome.delay(7)
        assert runs == ["welcome 7"]
        assert await result.get(timeout=0) == "sent 'hello' to user 7"
    later = await welcome.delay(8)
    assert await later.status() is Status.SENT
    assert await t.run_until_idle() == Summary(succeeded=1)


async def test_an_eager_job_that_sends_jobs_waits_for_them(t: Testing) -> None:
    with t.eager():
        await sign_up.delay(7)
    assert runs == ["sign_up 7", "welcome 7"]


async def test_an_eager_job_that_sends_itself_again_does_not_wait_for_its_own_end(t: Testing) -> None:
    with t.eager():
        result = await asyncio.wait_for(renew.options(job_id="7").delay(7), 20)
    assert (runs, await result.status()) == (["renew 7"], Status.SUCCESS)


async def test_eager_waits_for_no_delay_and_no_retry(t: Testing) -> None:
    with t.eager():
        result = await flaky.options(delay=3600).delay(2)
        assert await result.get(timeout=0) == 3
        dead = await flaky.delay(3)
        with pytest.raises(TaskFailed, match="the mail server is away"):
            await dead.get(timeout=0)
    assert runs == ["flaky 1", "flaky 2", "flaky 3"] * 2


async def test_an_eager_job_that_is_snoozed_runs_once_and_stays_scheduled(t: Testing) -> None:
    with t.eager():
        result = await poll.delay()
    assert (runs, await result.status()) == (["poll"], Status.SCHEDULED)
    assert await result.cancel()


async def test_many_eager_jobs_have_all_run(t: Testing) -> None:
    with t.eager():
        together = await asyncio.gather(*(charge.delay(n) for n in range(5)))
        results = [*together, *await charge.map(range(5))]
    assert [await result.get(timeout=0) for result in results] == [1] * 10


def test_eager_works_without_a_loop_and_in_threads_of_jobs() -> None:
    with testing(app) as t, t.eager():
        assert report.sync.delay(7).get(timeout=0) > 0
        assert [result.get(timeout=0) for result in resize.sync.map(["a", "b"])] == ["a", "b"]
    assert runs == ["report 7", "resize 1", "resize 1", "resize 1"]


# Nothing of this is in a production app


async def test_no_script_of_production_looks_for_an_offset(t: Testing) -> None:
    """A clock that was moved in the namespace of an app moves nothing, unless the app is under test."""
    url = app.settings.redis_url
    plain = App("shop", redis_url=url, namespace=app.namespace)
    plain.task(name="tests.testing.shop:welcome", queue="mail")(welcome.function)
    async with plain:
        delayed = await plain.tasks[welcome.name].options(delay=60).delay(7)
        t.tick(3600)
        info = await delayed.info()
        assert info is not None
        assert info.due_at is not None
        assert info.enqueued_at is not None
        second = await plain.tasks[welcome.name].options(delay=60).delay(8)
        known = await second.info()
        assert known is not None
        assert known.enqueued_at is not None
        assert abs((known.enqueued_at - info.enqueued_at).total_seconds()) < 30
    plain.blocking.close()
    assert await t.run_until_idle() == Summary(succeeded=2)


async def test_an_app_whose_server_is_away_raises_the_error_of_the_test() -> None:
    async def test() -> None:
        async with testing(app, redis_url="redis://127.0.0.1:1"):
            app.settings = app.settings.model_copy(update={"enqueue_timeout": 0.05})
            await welcome.delay(7)

    with pytest.raises(BrokerUnavailable, match="refused"):
        await test()


def test_a_script_of_production_reads_no_clock_but_that_of_the_server() -> None:
    folder = Path(scripts.__file__).parent / "lua"
    names = [path.stem for path in folder.glob("*.lua")]
    assert len(names) > 20
    assert [name for name in names if ":clock" in scripts.script(name).source] == []
