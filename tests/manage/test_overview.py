"""What an overview reads besides a snapshot: how much it asks, and what one unreadable queue hides."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from fennelq import App
from fennelq.broker.keys import AppKeys, queue_keys
from fennelq.broker.verb import Command
from fennelq.manage.attention import Urgency
from fennelq.manage.overview import dead_groups, overview, running_jobs
from fennelq.manage.watch import Snapshot, Watch
from tests.kit.apps import LocalApp
from tests.kit.waiting import aeventually
from tests.kit.workers import running

SPOILT = pytest.mark.audit(skip="a key is spoilt on purpose")


@pytest.fixture
async def app(redis_url: str) -> AsyncIterator[App]:
    app = LocalApp("shop", redis_url=redis_url)

    @app.task(name="shop:charge", queue="cards", retries=0)
    async def charge(n: int) -> None:
        raise ValueError(f"no money for {n}")

    @app.task(name="shop:resize", queue="images", retries=0)
    async def resize(n: int) -> None:
        raise KeyError(n)

    with capture_logs():
        async with app:
            results = [await task.delay(n) for n in range(3) for task in (charge, resize)]
            async with running(app):
                for result in results:
                    await aeventually_ended(result.id, app)
            yield app


async def aeventually_ended(job: str, app: App) -> None:
    async def ended() -> bool:
        info = await app.client.info(job)
        return info is not None and info.status.ended

    await aeventually(ended)


async def snapshot_of(app: App) -> Snapshot:
    async with Watch(app) as watch:
        return await watch.snapshot()


async def test_an_overview_has_the_causes_of_death_and_says_that_they_are_new(app: App) -> None:
    found = await app.client.converse(overview(app, await snapshot_of(app)))
    assert list(found.groups) == await app.dlq.groups()
    assert [group.jobs for group in found.groups] == [3, 3]
    assert found.unread == {}
    assert {(need.kind, need.name) for need in found.needs} == {
        ("new error", group.fingerprint) for group in found.groups
    }


@SPOILT
async def test_a_queue_that_cannot_be_read_does_not_hide_the_others(app: App) -> None:
    spoilt = queue_keys("shop", "cards")["dlq"]
    snapshot = await snapshot_of(app)
    await app.client.ask(Command(["DEL", spoilt], int))
    await app.client.ask(Command(["SET", spoilt, "x"], bool))
    found = await app.client.converse(overview(app, snapshot))
    assert [(group.task, group.jobs) for group in found.groups] == [("shop:resize", 3)]
    assert [*found.unread] == ["dead jobs of cards"]
    last = found.needs[-1]
    assert (last.kind, last.urgency, last.of) == ("unknown", Urgency.NOTE, "part")
    assert last.sentence.startswith("dead jobs of cards unknown: Redis replied WRONGTYPE")


@SPOILT
async def test_a_schedule_of_a_later_version_is_unknown_and_logs_nothing(app: App) -> None:
    keys = AppKeys("shop")
    await app.client.ask(Command(["SADD", keys["cron:names"], "later"], int))
    await app.client.ask(Command(["HSET", keys.schedule("later"), "definition", "?"], int))
    with capture_logs() as log:
        found = await app.client.converse(overview(app, await snapshot_of(app)))
    assert [*found.unread] == ["schedule later"]
    assert log == []


async def test_queues_without_dead_or_running_jobs_are_not_asked(app: App) -> None:
    snapshot = await snapshot_of(app)
    calm = Snapshot(
        queues={"default": snapshot.queues["default"]}, executors={}, rates={}, seconds=snapshot.seconds
    )
    before = await calls(app)
    assert (await app.client.converse(dead_groups(app, calm))).groups == []
    assert (await app.client.converse(running_jobs(app, calm, 10))).jobs == []
    assert await calls(app) - before == 1, "only this INFO"


async def calls(app: App) -> int:
    """The commands that the server has executed."""
    stats: str = await app.client.ask(Command(["INFO", "stats"], bytes.decode))
    (line,) = [line for line in stats.splitlines() if line.startswith("total_commands_processed:")]
    return int(line.partition(":")[2])
