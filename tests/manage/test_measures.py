"""The metrics of what is in Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from fennelq import App, BrokerUnavailable, Limit, Reject, RetryPolicy, TaskFailed
from fennelq.broker import verbs
from fennelq.broker.keys import queue_keys
from fennelq.manage import measures as module
from fennelq.manage.measures import Measures
from fennelq.manage.watch import Watch
from fennelq.model.metrics import OF_REDIS
from tests.kit.apps import LocalApp
from tests.kit.metrics import Samples, samples_of, total
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.kit.workers import running

pytestmark = pytest.mark.audit(unfinished=True)


@pytest.fixture
def logged() -> Iterator[list[EventDict]]:
    with capture_logs() as lines:
        yield lines


@asynccontextmanager
async def exported(app: App) -> AsyncGenerator[Measures]:
    async with app, Watch(app) as watch, Measures(app, watch) as measures:
        yield measures


async def look(app: App) -> Samples:
    """The first page of an exporter."""
    async with exported(app) as measures:
        return samples_of((await measures.page()).text())


def shop_of(url: str, **settings: Any) -> App:
    app = LocalApp("shop", redis_url=url, **settings)

    @app.task(name="shop:note", queue="mail")
    async def note(n: int = 0) -> None: ...

    @app.task(name="shop:refuse", queue="mail")
    async def refuse() -> None:
        raise Reject("no")

    @app.task(name="shop:again", queue="slow", retry=RetryPolicy.fixed(3, delay=3600))
    async def again() -> None:
        raise ValueError("no")

    @app.task(name="shop:one", queue="slow", concurrency=Limit(1))
    async def one() -> None:
        await asyncio.Event().wait()

    return app


@pytest.fixture
def shop(redis_url: str) -> App:
    return shop_of(redis_url)


def jobs(samples: Samples, queue: str) -> dict[str, float]:
    states = ("waiting", "limited", "blocked", "running", "scheduled", "retry", "dead")
    found = {state: total(samples, "fennelq_queue_jobs", queue=queue, state=state) for state in states}
    return {state: number for state, number in found.items() if number}


async def test_the_jobs_of_each_queue_are_counted_by_state_and_priority(shop: App) -> None:
    note, again, one = (shop.tasks[f"shop:{name}"] for name in ("note", "again", "one"))
    async with shop:
        async with running(shop, grace=0.1):
            await again.delay()
            for _ in range(3):
                await one.delay()
            refused = await shop.tasks["shop:refuse"].delay()
            with pytest.raises(TaskFailed):
                await refused.get(timeout=30)
            await (await note.delay()).get(timeout=30)
            await aeventually(lambda: retries(shop))
            samples = samples_of((await Measures(shop, Watch(shop)).page()).text())
            assert jobs(samples, "slow") == {"limited": 2, "running": 1, "retry": 1}
            assert total(samples, "fennelq_queue_executors", queue="slow") == 1
        await note.options(priority="high").delay()
        await note.delay()
        await note.options(delay=3600).delay()
        await shop.queues.pause("mail", only="consume")
        await shop.queues.pause("slow", only="enqueue")
    samples = await look(shop_of(str(shop.settings.redis_url)))
    assert jobs(samples, "mail") == {"waiting": 2, "scheduled": 1, "dead": 1}
    waiting = {
        priority: samples[f'fennelq_queue_waiting{{queue="mail",priority="{priority}"}}']
        for priority in ("high", "normal", "low")
    }
    assert waiting == {"high": 1, "normal": 1, "low": 0}
    assert 0 < total(samples, "fennelq_queue_oldest_waiting_seconds", queue="mail") < 60
    assert total(samples, "fennelq_queue_overdue_seconds") == 0
    paused = {queue: total(samples, "fennelq_queue_paused", queue=queue) for queue in ("mail", "slow")}
    assert paused == {"mail": 1, "slow": 0}
    ended = {
        outcome: total(samples, "fennelq_queue_ended_total", queue="mail", outcome=outcome)
        for outcome in ("success", "dead", "cancelled")
    }
    assert ended == {"success": 1, "dead": 1, "cancelled": 0}
    assert total(samples, "fennelq_queue_events_total", queue="slow", event="released") == 1
    assert samples["fennelq_dead_groups"] == 1
    assert total(samples, "fennelq_queue_executors") == 0


async def test_it_tells_how_many_reports_of_ended_jobs_wait_for_a_recorder(shop: App, server: Server) -> None:
    async with shop:
        await shop.tasks["shop:note"].delay()
        keys = queue_keys("shop", "mail")
        await shop.client.broker.run(verbs.ends.ends_take(keys, "recorder", 40))
        assert (await look(shop_of(str(shop.settings.redis_url))))["fennelq_history_behind"] == 0
        async with running(shop):
            for _ in range(2):
                await (await shop.tasks["shop:note"].delay()).get(timeout=30)
        with server.client() as client:
            entries = client.xlen(keys["ends"])
        assert entries >= 2
        assert (await look(shop_of(str(shop.settings.redis_url))))["fennelq_history_behind"] == entries
        with user_of(
            server, *READS, "%R~fq:{shop}:*", "%R~fq:{shop/slow}:*", "%R~fq:{shop/default}:*"
        ) as url:
            assert "fennelq_history_behind" not in await look(shop_of(url))


async def retries(app: App) -> bool:
    return (await app.queues.info("slow")).retry == 1


async def test_a_job_that_is_due_and_that_no_executor_moves_is_overdue(shop: App, server: Server) -> None:
    async with shop:
        await shop.tasks["shop:note"].options(delay=0.05).delay()
        await aeventually(lambda: overdue(shop))
        assert samples_of((await Measures(shop, Watch(shop)).page()).text())["fennelq_up"] == 1


async def overdue(app: App) -> bool:
    return (
        total(await look(shop_of(str(app.settings.redis_url))), "fennelq_queue_overdue_seconds", queue="mail")
        > 0
    )


async def test_schedules_have_their_next_and_last_run_and_their_errors(shop: App) -> None:
    async with shop:
        await shop.schedules.add(shop.tasks["shop:note"].job(1), name="nightly", every=timedelta(hours=1))
        await shop.schedules.add(shop.tasks["shop:refuse"].job(), name="bad", every=3600)
        await shop.schedules.pause("bad")
        async with running(shop):
            result = await shop.schedules.run("bad")
            with pytest.raises(TaskFailed):
                await result.get(timeout=30)
        infos = {info.name: info for info in await shop.schedules.list()}
        samples = await look(shop_of(str(shop.settings.redis_url)))
        for name in ("nightly", "bad"):
            await shop.schedules.remove(name)
    name = "fennelq_schedule_next_run_timestamp_seconds"
    nightly = infos["nightly"].next_run
    assert nightly is not None
    assert samples[f'{name}{{schedule="nightly"}}'] == nightly.timestamp()
    assert f'{name}{{schedule="bad"}}' not in samples, "it is paused"
    assert total(samples, "fennelq_schedule_last_run_timestamp_seconds", schedule="bad") > 1_600_000_000
    errors = {
        one: total(samples, "fennelq_schedule_errors_total", schedule=one) for one in ("nightly", "bad")
    }
    assert errors == {"nightly": 0, "bad": 1}


async def test_every_metric_of_the_table_is_on_the_page(shop: App) -> None:
    async with shop:
        await shop.schedules.add(shop.tasks["shop:refuse"].job(), name="bad", every=3600)
        await shop.schedules.run("bad")
        samples = await look(shop_of(str(shop.settings.redis_url)))
        await shop.schedules.remove("bad")
    assert {sample.partition("{")[0] for sample in samples} == {metric.name for metric in OF_REDIS}


async def test_many_scrapes_look_once(shop: App) -> None:
    async with exported(shop) as measures:
        await measures.page()
        asked = await commands_of(shop)
        for page in await asyncio.gather(*(measures.page() for _ in range(50))):
            assert samples_of(page.text())["fennelq_up"] == 1
        assert await commands_of(shop) - asked <= 1


async def commands_of(app: App) -> int:
    """How many scripts have looked at queues."""
    from fennelq.broker.verb import Command, text

    def read(reply: Any) -> int:
        calls = [line for line in text(reply).splitlines() if line.startswith("cmdstat_evalsha_ro:")]
        return int(calls[0].partition("calls=")[2].partition(",")[0]) if calls else 0

    return await app.client.ask(Command(["INFO", "commandstats"], read))


# Trouble


async def test_while_redis_is_away_the_page_says_so_within_a_second(
    shop: App, server: Server, monkeypatch: pytest.MonkeyPatch, logged: list[EventDict]
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    async with exported(shop) as measures:
        await aeventually(lambda: is_up(measures, True))
        server.pause()
        await aeventually(lambda: is_up(measures, False))
        assert not await measures.up()
        server.resume()
        await aeventually(lambda: is_up(measures, True))
        assert await measures.up()
    assert {line["event"] for line in logged} == {"not_exported"}
    assert "has not replied yet" in logged[0]["why"]


async def is_up(measures: Measures, up: bool) -> bool:
    samples = samples_of((await measures.page()).text())
    assert samples["fennelq_up"] == up
    assert up or {sample.partition("{")[0] for sample in samples} == {"fennelq_up", "fennelq_build_info"}
    return True


async def test_a_server_that_refuses_connections_is_away(
    logged: list[EventDict], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 5)
    app = LocalApp("shop", redis_url="redis://127.0.0.1:1/0", enqueue_timeout=0.1)
    assert (await look(app))["fennelq_up"] == 0
    assert [line["what"] for line in logged] == ["the look has failed"]
    assert "redis://127.0.0.1:1/0" in logged[0]["why"]


@contextmanager
def user_of(server: Server, *rules: str) -> Generator[str]:
    """The URL of a user with these rules."""
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "viewer", "on", ">pw", *rules)
        try:
            yield server.url.replace("redis://", "redis://viewer:pw@")
        finally:
            client.execute_command("ACL", "DELUSER", "viewer")


READS = ("+@read", "+@connection", "+time", "+info", "+evalsha_ro", "+eval_ro")


async def test_a_user_who_may_only_read_is_enough(shop: App, server: Server) -> None:
    async with shop:
        await shop.tasks["shop:note"].delay()
    with user_of(server, *READS, "%R~fq:{shop*") as url:
        samples = await look(shop_of(url))
    assert (samples["fennelq_up"], jobs(samples, "mail")) == (1, {"waiting": 1})


async def test_what_the_user_may_not_read_is_left_out_and_logged(
    shop: App, server: Server, logged: list[EventDict]
) -> None:
    """It is not shown as 0: an alert would believe it."""
    async with shop:
        await shop.tasks["shop:note"].delay()
    with user_of(server, *READS, "%R~fq:{shop}:queues", "%R~fq:{shop/mail}:*") as url:
        samples = await look(shop_of(url))
    assert (samples["fennelq_up"], jobs(samples, "mail")) == (1, {"waiting": 1})
    names = {sample.partition("{")[0] for sample in samples}
    assert not any('queue="slow"' in sample for sample in samples)
    assert (
        names & {"fennelq_queue_executors", "fennelq_schedule_errors_total", "fennelq_dead_groups"} == set()
    )
    assert {line["what"] for line in logged} == {"queue default", "queue slow", "schedules"}


async def test_a_user_who_may_read_nothing_is_told_so(server: Server, logged: list[EventDict]) -> None:
    with user_of(server, "+@connection") as url:
        assert (await look(shop_of(url)))["fennelq_up"] == 0
    assert "NOPERM" in logged[0]["why"] or "permission" in logged[0]["why"]


@pytest.mark.audit(skip="a key of a wrong type")
async def test_a_damaged_queue_hides_no_other(shop: App, server: Server, logged: list[EventDict]) -> None:
    async with shop:
        await shop.tasks["shop:note"].delay()
        await shop.client.ask(verbs.queues.note_queues("shop", ["broken"]))
    with server.client() as client:
        client.set(queue_keys("shop", "broken")["sched"], "mine")
    samples = await look(shop_of(str(shop.settings.redis_url)))
    assert jobs(samples, "mail") == {"waiting": 1}
    assert not any('queue="broken"' in sample for sample in samples)
    assert [line["what"] for line in logged] == ["queue broken"]


async def test_an_error_that_is_raised_by_every_look_is_logged_once_a_minute(
    shop: App, monkeypatch: pytest.MonkeyPatch, logged: list[EventDict]
) -> None:
    async def fail(self: Watch) -> None:
        raise BrokerUnavailable("gone")

    monkeypatch.setattr(Watch, "fresh", fail)
    async with exported(shop) as measures:
        for _ in range(3):
            assert await is_up(measures, False)
    assert len(logged) == 1
