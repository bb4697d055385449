"""`app.jobs.find`: finds the jobs that meet a filter."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from anyio import to_thread

from fennelq import (
    App,
    BrokerUnavailable,
    ConfigurationError,
    InvalidFilter,
    JobInfo,
    Limit,
    RetryPolicy,
    SearchProgress,
    Status,
)
from fennelq.broker.keys import queue_keys
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.kit.workers import running

MakeApp = Callable[..., App]
pytestmark = pytest.mark.audit(unfinished=True)


class Shop:
    """A shop with a job in each state, by the name of the state."""

    def __init__(self, app: App) -> None:
        self.app, self.gate = app, asyncio.Event()
        self.ids = dict[str, str]()

        @app.task(name="shop:work", retry=RetryPolicy.fixed(3, delay=500))
        async def work(what: str) -> str:
            if what == "retry":
                raise ValueError("no card for 17")
            if what == "dead":
                raise fatal
            if what == "running":
                await self.gate.wait()
            return what

        @app.task(name="shop:mail", queue="mail", concurrency=Limit(1))
        async def mail(to: str) -> None: ...

        self.work, self.mail = work, mail
        fatal = Fatal("card 18 refused")

    async def fill(self) -> None:
        for what in ("success", "retry", "dead", "running"):
            task = self.work.options(headers={"what": what})
            task = task.options(retry=RetryPolicy.fixed(1, delay=1)) if what == "dead" else task
            self.ids[what] = (await task.delay(what)).id
        wanted = {"success": Status.SUCCESS, "retry": Status.RETRY, "dead": Status.DEAD}
        wanted["running"] = Status.EXECUTING

        async def done() -> bool:
            statuses = {name: await self.app.result(self.ids[name]).status() for name in wanted}
            return statuses == wanted

        await aeventually(done)
        self.ids["scheduled"] = (await self.work.options(delay=600).delay("later")).id
        for state in ("waiting", "limited"):
            self.ids[state] = (await self.mail.delay(f"{state}@example.com")).id
        cancelled = await self.mail.delay("cancelled")
        await cancelled.cancel()
        self.ids["cancelled"] = cancelled.id

    async def found(self, where: str, **given: Any) -> list[str]:
        """The states of the jobs that are found."""
        names = {job_id: name for name, job_id in self.ids.items()}
        return [names[job.id] async for job in self.app.jobs.find(where, **given)]


class Fatal(Exception):
    """An error after which nothing helps."""


@pytest.fixture
def shop(app: App) -> Shop:
    return Shop(app)


Filled = Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]
LIVE = ["scheduled", "retry", "running", "dead", "limited", "waiting"]
CHOICES: list[tuple[str, list[str]]] = [
    ("", LIVE),
    ("state:waiting", ["waiting"]),
    ("state:limited", ["limited"]),
    ("state:running", ["running"]),
    ("state:scheduled", ["scheduled"]),
    ("state:retry", ["retry"]),
    ("state:dead", ["dead"]),
    ("state:blocked", []),
    ("-state:dead -state:running", ["scheduled", "retry", "limited", "waiting"]),
    ("task:mail", ["limited", "waiting"]),
    ("task:shop:mail", ["limited", "waiting"]),
    ("queue:mail", ["limited", "waiting"]),
    ("-queue:mail", ["scheduled", "retry", "running", "dead"]),
    ("queue:unknown", []),
    ("card", ["retry", "dead"]),
    ('"card 18 refused"', ["dead"]),
    ("error:ValueError", ["retry"]),
    ("error:Fatal state:dead", ["dead"]),
    ("header:what=running", ["running"]),
    ("-header:what=running task:work", ["scheduled", "retry", "dead"]),
    ("limited@example.com", ["limited"]),
    ("since:1h", LIVE),
    ("until:1h", []),
]


async def test_the_jobs_that_meet_a_filter_are_found(shop: Shop) -> None:
    async with running(shop.app, queues="default"):
        await shop.fill()
        for where, states in CHOICES:
            assert await shop.found(where) == states, where
            assert await shop.app.jobs.count(where) == len(states)
        shop.gate.set()


async def test_large_arguments_are_searched_to_their_end(app: App) -> None:
    """The server does not look into these: it would be blocked for long."""

    @app.task(name="shop:print", retries=0)
    async def print_page(text: str, number: int) -> None:
        raise Fatal("no paper")

    dead = await print_page.options(headers={"of": "dead"}).delay("x" * 900_000 + 'größe "END"', 1)
    small = await print_page.delay('größe "END"', 2)
    async with running(app):
        await aeventually(lambda: app.dlq.get(dead.id))
        await aeventually(lambda: app.dlq.get(small.id))
    waiting = await print_page.options(headers={"of": "waiting"}).delay("x" * 900_000 + "/end/", 3)
    later = await print_page.options(delay=600).delay("x" * 900_000, 4)

    async def found(where: str) -> set[str]:
        ids = {job.id async for job in app.jobs.find(where)}
        assert await app.jobs.count(where) == len(ids)
        return ids

    ends = {
        '"größe"': {dead.id, small.id},
        '"\\"END\\""': {dead.id, small.id},
        "-END": {waiting.id, later.id},
        "/end/": {waiting.id},
        "xxx END": {dead.id},
        "nothing": set[str](),
        "paper": {dead.id, small.id},
        "-paper xx": {waiting.id, later.id},
        '"dead"': {dead.id},
        "xx task:other": set[str](),
        "xx state:scheduled": {later.id},
    }
    for where, ids in ends.items():
        assert await found(where) == ids, where


async def test_a_large_record_that_cannot_be_read_hides_no_other(app: App, server: Server) -> None:
    @app.task(name="shop:print")
    async def print_page(text: str) -> None: ...

    jobs = [await print_page.delay("x" * 900_000 + str(n)) for n in range(3)]
    with server.client() as client:
        client.hset(queue_keys("shop", "default").record(jobs[1].id.partition(":")[2]), "n", "what?")
    seen: list[SearchProgress] = []
    assert [job.id async for job in app.jobs.find("xx", progress=seen.append)] == [jobs[0].id, jobs[2].id]
    assert (seen[-1].looked, seen[-1].unreadable) == (3, 1)


async def test_a_job_is_found_by_its_id_in_every_state(shop: Shop) -> None:
    async with running(shop.app, queues="default"):
        await shop.fill()
        for state, job_id in shop.ids.items():
            assert await shop.found(f"id:{job_id}") == [state]
            assert await shop.found(job_id) == [state]
        both = f"id:{shop.ids['success']} id:{shop.ids['waiting']} id:mail:unknown"
        assert sorted(await shop.found(both)) == ["success", "waiting"]
        assert await shop.found(both, limit=1) != []
        assert await shop.app.jobs.count(both) == 2
        shop.gate.set()


async def test_what_is_found_is_everything_that_is_known(shop: Shop) -> None:
    before = datetime.now(UTC) - timedelta(seconds=5)
    handle = await shop.work.options(delay=600, headers={"a": "b"}).delay("x")
    [job] = [job async for job in shop.app.jobs.find("state:scheduled")]
    assert job == await shop.app.jobs.info(handle.id) or job.waiting_because is None
    assert (job.id, job.task, job.status, job.headers) == (
        handle.id,
        "shop:work",
        Status.SCHEDULED,
        {"a": "b"},
    )
    assert job.arguments == b'[["x"],{}]'
    assert job.due_at is not None
    assert job.due_at - timedelta(seconds=600) > before


async def test_without_an_event_loop_jobs_are_found_alike(shop: Shop) -> None:
    results = await shop.app.enqueue([shop.work.job(str(n)) for n in range(5)])
    jobs = shop.app.sync.jobs

    def found() -> list[str]:
        return [job.id for job in jobs.find("task:work", limit=3)]

    assert await to_thread.run_sync(found) == [result.id for result in results[:3]]
    assert await to_thread.run_sync(lambda: jobs.count("task:work")) == 5


async def test_a_search_stops_at_its_limit_and_when_its_reader_leaves(shop: Shop) -> None:
    await shop.app.enqueue([shop.work.job(str(n)) for n in range(1500)])

    async def number(**given: Any) -> int:
        return len([job async for job in shop.app.jobs.find("task:work", **given)])

    assert [await number(), await number(limit=7), await number(limit=None)] == [1000, 7, 1500]
    seen = list[SearchProgress]()
    async for _ in shop.app.jobs.find("task:work", progress=seen.append):
        break
    assert seen == []


async def test_a_search_reports_how_far_it_is(shop: Shop) -> None:
    await shop.app.enqueue([*(shop.work.job(str(n)) for n in range(1200)), shop.mail.job("a")])
    seen = list[SearchProgress]()
    found = [job async for job in shop.app.jobs.find('"7"', limit=None, progress=seen.append)]
    assert [one.looked for one in seen] == sorted(one.looked for one in seen)
    assert seen[-1] == SearchProgress(1201, 1201, len(found))
    assert len(seen) > 2


async def test_a_job_that_begins_to_run_meanwhile_is_no_waiting_job(shop: Shop) -> None:
    await shop.app.enqueue([shop.work.job("x") for _ in range(30)])
    found = list[str]()
    async for job in shop.app.jobs.find("state:waiting"):
        found.append(job.id)
        if len(found) == 1:
            await shop.app.cancel(task="work")
    assert len(found) <= 20


WRONG = [
    ("taks:work", "unknown filter word 'taks': did you mean 'task'"),
    ("since:2099-01-01", "is in the future"),
    ("wor.*", "looks like a pattern"),
    ("state:success", "state:success cannot be searched: jobs that have ended are in no list"),
    ("state:dead state:cancelled", "state:cancelled cannot be searched"),
]


@pytest.mark.parametrize(("where", "sentence"), WRONG)
async def test_a_wrong_filter_is_refused(shop: Shop, where: str, sentence: str) -> None:
    with pytest.raises(InvalidFilter, match=sentence):
        await shop.found(where)
    with pytest.raises(InvalidFilter, match=sentence):
        await shop.app.jobs.count(where)


async def test_a_wrong_limit_is_refused(shop: Shop) -> None:
    with pytest.raises(ConfigurationError, match="limit must be a whole number, 1 or more"):
        await shop.found("", limit=0)


@pytest.mark.audit(skip="records and keys are damaged by hand")
async def test_damaged_records_and_queues_hide_no_others(shop: Shop, server: Server) -> None:
    results = await shop.app.enqueue([shop.work.job(str(n)) for n in range(4)])
    await shop.mail.delay("a")
    default, mail = queue_keys("shop", "default"), queue_keys("shop", "mail")
    with server.client() as client:
        key = results[1].id.partition(":")[2]
        client.delete(default.record(key))
        client.set(default.record(key), "what?")
        client.hset(default.record(results[2].id.partition(":")[2]), "n", "many")
        client.set(mail["sched"], "what?")
    seen, found = list[SearchProgress](), list[JobInfo]()

    async def find() -> None:
        async for job in shop.app.jobs.find("", progress=seen.append):
            found.append(job)

    with pytest.raises(BrokerUnavailable, match=r"has a problem with queue 'mail': .*WRONGTYPE") as caught:
        await find()
    assert not caught.value.retriable
    assert [job.id for job in found if job.queue == "default"] == [results[0].id, results[3].id]
    assert [job.queue for job in found][-1] == "mail"
    assert seen[-1].unreadable == 2


async def test_jobs_of_many_lines_are_all_found(shop: Shop) -> None:
    @shop.app.task(queue="lines", concurrency=Limit(1, key="account"))
    async def charge(account: int) -> None: ...

    await shop.app.enqueue([charge.job(number % 150) for number in range(450)])
    found = [job.id async for job in shop.app.jobs.find("state:limited", limit=None)]
    assert len(found) == len(set(found)) == 300
    assert await shop.app.jobs.count("queue:lines") == 450
