"""The bus of an executor: facts reach those who subscribed, and a plain job pays for none."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from structlog.typing import EventDict

from fennelq import App, Status, TaskFailed
from fennelq.model import outcome
from fennelq.worker.bus import Bus, HandOverWaits, JobDue, JobEnded, JobStarted, LeasesLost
from tests.kit.waiting import aeventually
from tests.kit.workers import running
from tests.worker import shop
from tests.worker.shop import task_of

ERRORS = [ValueError, asyncio.CancelledError, SystemExit]


def test_a_fact_reaches_the_subscribers_of_its_kind_in_their_order() -> None:
    bus, heard = Bus(), list[object]()
    bus.subscribe(JobDue, lambda job: heard.append(("first", job.seconds)))
    bus.subscribe(JobDue, lambda job: heard.append(("second", job.seconds)))
    bus.subscribe(HandOverWaits, heard.append)
    bus.publish(JobDue(7, "mail"))
    assert heard == [("first", 7), ("second", 7)]


def test_a_fact_without_subscribers_is_dropped() -> None:
    Bus().publish(JobDue(7, "mail"))


@pytest.mark.parametrize("kind", ERRORS)
def test_a_subscriber_that_fails_is_logged_and_harms_no_other(
    kind: type[BaseException], logged: list[EventDict]
) -> None:
    bus, heard = Bus(), list[float]()

    def fail(_: JobDue) -> None:
        raise kind("no such meter")

    bus.subscribe(JobDue, fail)
    bus.subscribe(JobDue, lambda job: heard.append(job.seconds))
    bus.publish(JobDue(1, "mail"))
    bus.publish(JobDue(2, "mail"))
    assert heard == [1, 2]
    (line,) = logged
    assert (line["event"], line["what"], line["fact"]) == ("trouble", "a subscriber", "JobDue")
    assert line["error"] == f"{kind.__name__}: no such meter"


@pytest.mark.parametrize("kind", ERRORS)
async def test_a_subscriber_that_fails_loses_no_job_and_does_not_end_the_executor(
    app: App, kind: type[BaseException]
) -> None:
    failed, heard = Counter[str](), Counter[str]()

    def fail(fact: object) -> None:
        failed.update([type(fact).__name__])
        raise kind("no such meter")

    async with running(app) as executor:
        for fact in (JobStarted, JobEnded):
            executor.state.bus.subscribe(fact, fail)
            executor.state.bus.subscribe(fact, lambda fact: heard.update([type(fact).__name__]))
        for n in range(3):
            assert await (await task_of(app, shop.double).delay(n)).get(timeout=30) == 2 * n
        await aeventually(lambda: heard == {"JobStarted": 3, "JobEnded": 3})
        assert failed == heard


async def test_a_fact_of_a_thread_is_delivered_on_the_loop() -> None:
    bus, heard = Bus(), list[object]()
    bus.attach(asyncio.get_running_loop())
    bus.subscribe(HandOverWaits, lambda _: heard.append(asyncio.get_running_loop()))
    await asyncio.to_thread(bus.publish_from_thread, HandOverWaits())
    await aeventually(lambda: heard)
    assert heard == [asyncio.get_running_loop()]


async def test_a_subscriber_can_count_jobs_by_their_outcome(app: App) -> None:
    async with running(app) as executor:
        started, ended = Counter[str](), Counter[str]()
        executor.state.bus.subscribe(JobStarted, lambda job: started.update([job.delivery.task]))
        executor.state.bus.subscribe(JobEnded, lambda job: ended.update([job.outcome.kind]))
        for n in range(3):
            await (await task_of(app, shop.double).delay(n)).get(timeout=30)
        failed = await task_of(app, shop.whisper).delay("secret", "answer", fail=True)
        with pytest.raises(TaskFailed):
            await failed.get(timeout=30)
    assert started == {f"{shop.__name__}:double": 3, f"{shop.__name__}:whisper": 1}
    assert ended == {outcome.SUCCESS: 3, outcome.DEAD: 1}


async def test_for_a_job_without_subscribers_no_fact_is_even_made(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []

    def unwanted(*fact: object) -> None:
        made.append(fact)

    for kind in (JobStarted, JobEnded):
        monkeypatch.setattr(kind, "__new__", unwanted)
    async with running(app):
        assert await (await task_of(app, shop.double).delay(4)).get(timeout=30) == 8
    assert made == [], "a plain job pays for a fact"


async def test_the_run_of_a_job_whose_lease_was_lost_is_stopped(redis_url: str) -> None:
    stopped = asyncio.Event()

    async with shop.app_of(redis_url=redis_url, lease=1, heartbeat_interval=0.05) as app:

        @app.task(name="shop:hold")
        async def hold() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

        async with running(app, grace=0.1) as executor:
            held = executor.state.held
            handle = await hold.delay()
            await aeventually(lambda: [one for one in held.by_token.values() if one.entered])
            executor.state.bus.publish(LeasesLost(held.tokens()))
            await asyncio.wait_for(stopped.wait(), 20)
            assert held.tokens() == []
            # No other executor has it: it is stranded here, is handed back, and runs again.
            await aeventually(lambda: [one for one in held.by_token.values() if one.entered])
            assert await handle.status() is Status.EXECUTING
