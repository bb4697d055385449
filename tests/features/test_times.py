"""Run and wait times: what `app.times` and the facts of executors say about the jobs that have run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from fennelq import (
    App,
    AsyncResult,
    ConfigurationError,
    Executors,
    Reject,
    RetryPolicy,
    RunMinute,
    Status,
    TaskFailed,
    TaskTimes,
    Times,
)
from fennelq.broker import verbs
from fennelq.broker.keys import queue_keys
from fennelq.broker.verbs.times import Report
from fennelq.model.times import BUCKETS
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.kit.workers import running


async def test_an_executor_that_stops_in_order_loses_no_count(app: App) -> None:
    @app.task(name="shop:note")
    async def note(n: int) -> int:
        return n

    @app.task(name="shop:fail", queue="mail", retry=RetryPolicy.fixed(1, delay=3600))
    async def fail() -> None:
        raise ValueError

    assert await app.times.list() == []
    async with running(app):
        results = await app.enqueue([note.job(n) for n in range(20)])
        delayed = await note.options(delay=0.1).delay(20)
        failed = await fail.delay()
        for result in (*results, delayed):
            await result.get(timeout=30)
        await aeventually(lambda: waits_for_its_next_try(failed))
    found = await app.times.list()
    assert [(one.task, one.run.count, one.wait.count) for one in found] == [
        ("shop:note", 21, 21),
        ("shop:fail", 1, 1),
    ]
    assert [one.ended for one in found] == [{"success": 21}, {"retry": 1}]
    assert await asyncio.to_thread(app.sync.times.list) == found
    assert [one.task for one in await app.times.list(queue="mail", within=60)] == ["shop:fail"]


async def waits_for_its_next_try(result: AsyncResult[Any]) -> bool:
    return await result.status() is Status.RETRY


async def test_the_facts_of_an_executor_have_its_own_times(app: App) -> None:
    @app.task(name="shop:pause")
    async def pause() -> None:
        await asyncio.sleep(0.03)

    async with running(app) as executor:
        await (await pause.delay()).get(timeout=30)
        facts = await aeventually(lambda: with_times(app.executors, executor.name))
    assert (facts["run_times"]["count"], facts["wait_times"]["count"]) == (1, 1)
    assert 0.025 < facts["run_times"]["p50"] <= facts["run_times"]["p95"]


async def with_times(executors: Executors, name: str) -> Any:
    (facts,) = [one.facts for one in await executors.list() if one.name == name] or [{}]
    return facts if "run_times" in facts else None


@pytest.mark.parametrize(
    ("within", "count"), [(600, 1), (601, 3), (1200, 3), (1201, 7), (10**12, 7), (-5, 1)]
)
async def test_times_are_read_as_far_back_as_asked(
    app: App, server: Server, within: float, count: int
) -> None:
    keys = queue_keys("shop", "default")
    now_ms = await app.client.ask(verbs.server.now())
    with server.client() as client:
        for ago, runs in enumerate((1, 2, 4)):
            client.hset(keys.times(now_ms // 600_000 - ago), "shop:note|r3", str(runs))
            client.expire(keys.times(now_ms // 600_000 - ago), 600)
    assert await app.times.list(within=within) == [
        TaskTimes(task="shop:note", run=counted(count), wait=Times((0,) * BUCKETS))
    ]


def counted(runs: int) -> Times:
    return Times(tuple(runs if bucket == 3 else 0 for bucket in range(BUCKETS)))


@pytest.mark.audit(skip="a key of a wrong type")
async def test_what_cannot_be_read_hides_nothing_else(app: App, server: Server) -> None:
    report = Report("anna", "a1", 1, {"shop:note|r3": 5})
    for queue in ("default", "mail"):
        await app.client.ask(verbs.queues.note_queues("shop", [queue]))
        await app.client.ask(verbs.times.meter(queue_keys("shop", queue), report, 60_000))
    with server.client() as client:
        for key in cast("Iterator[bytes]", client.scan_iter("fq:{shop/mail}:m:*")):
            client.delete(key)
            client.set(key, "mine", px=60_000)
    assert [(one.task, one.run.count) for one in await app.times.list()] == [("shop:note", 5)]
    with pytest.raises(ConfigurationError, match="queue"):
        await app.times.list(queue="no queue")


async def test_the_runs_of_an_hour_are_read_minute_by_minute(app: App) -> None:
    @app.task(name="shop:note")
    async def note() -> None: ...

    @app.task(name="shop:refuse", queue="mail")
    async def refuse() -> None:
        raise Reject("no")

    async with running(app):
        for result in await app.enqueue([note.job() for _ in range(7)]):
            await result.get(timeout=30)
        refused = await refuse.delay()
        with pytest.raises(TaskFailed):
            await refused.get(timeout=30)
    now_ms = await app.client.ask(verbs.server.now())
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    # The test may have begun before the hour.
    found = [*await app.times.hour(at=now - timedelta(hours=1)), *await app.times.hour()]
    assert total(found) == {"success": 7, "dead": 1}
    assert found[-1].at <= now < found[-1].at + timedelta(minutes=1, seconds=5)
    assert [one.at.minute for one in found] == [*range(60), *range(len(found) - 60)]
    mail = [
        *await app.times.hour(queue="mail", at=now - timedelta(hours=1)),
        *await app.times.hour(queue="mail"),
    ]
    assert total(mail) == {"dead": 1}
    assert await asyncio.to_thread(app.sync.times.hour, queue="mail", at=now) == await app.times.hour(
        queue="mail", at=now
    )
    assert await app.times.hour(at=now + timedelta(hours=2)) == []


def total(minutes: list[RunMinute]) -> dict[str, int]:
    return dict(sum((Counter(one.ended) for one in minutes), Counter[str]()))


async def test_an_hour_without_a_time_zone_is_refused(app: App) -> None:
    with pytest.raises(ConfigurationError, match=r"app\.times\.hour takes a datetime with a time zone"):
        await app.times.hour(at=datetime(2026, 1, 1))  # noqa: DTZ001
