"""A reader who sees the dashboard for the first time finds the answers to five questions, with at most three clicks
from the first page, on links and buttons that are visible."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from playwright.async_api import Page

from fennelq import App, RetryPolicy
from fennelq.broker.keys import GROUP, NORMAL, queue_keys
from fennelq.model.fields import LETTERS
from fennelq.web import dashboard
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.kit.workers import running
from tests.web.kit import serving
from tests.web.test_browser import chromium, keep, tab

pytestmark = [pytest.mark.audit(unfinished=True), pytest.mark.timeout(240)]

DEAD: Final = 300
LATE: Final = 12 * 60
MOST_CLICKS: Final = 3


class Incident:
    """An app in which something is wrong: 300 jobs died of one cause after two tries, one queue is late, and another
    one is paused."""

    def __init__(self, app: App, server: Server) -> None:
        self.app, self.server, self.gate = app, server, asyncio.Event()

        @app.task(name="shop.mail:welcome", queue="mail", retry=RetryPolicy.fixed(1, delay=0))
        async def welcome(user: int) -> None:
            raise ConnectionError("the mail provider is away")

        @app.task(name="shop.reports:monthly", queue="reports")
        async def monthly(month: int) -> None:
            await self.gate.wait()

        @app.task(name="shop.search:index", queue="search")
        async def index(product: int) -> None: ...

        self.welcome, self.monthly, self.index = welcome, monthly, index

    async def happen(self) -> None:
        await self.app.enqueue([self.welcome.job(user) for user in range(DEAD)])
        async with running(self.app, queues="mail", concurrency=50):
            await aeventually(self._all_are_dead, within=60)
        await self.app.enqueue([self.monthly.job(month) for month in range(5)])
        self._make_old("reports")
        await self.app.enqueue([self.index.job(n) for n in range(4)])
        await self.app.queues.pause("search", why="the new index is built", who="grace@ops-1")

    async def _all_are_dead(self) -> bool:
        return await self.app.dlq.count() == DEAD

    def _make_old(self, queue: str) -> None:
        """The jobs of this queue came twelve minutes ago: an entry has the time at which its job came."""
        keys, began = queue_keys(self.app.namespace, queue), int((time.time() - LATE) * 1000)
        lane = keys[NORMAL]
        with self.server.client() as redis:
            client: Any = redis
            entries = client.xrange(lane)
            client.delete(lane)
            for number, (old, fields) in enumerate(entries):
                record, new = keys.record(fields[b"i"].decode()), f"{began + number}-0"
                place = client.hget(record, LETTERS["place"])
                client.hset(record, LETTERS["place"], place.replace(old, new.encode()))
                client.xadd(lane, fields, id=new)
            client.xgroup_create(lane, GROUP, id="0")

    async def runs(self) -> bool:
        (info,) = [info for info in await self.app.queues.list() if info.name == "reports"]
        return info.running >= 1 and info.waiting >= 1


class Reader:
    """Clicks on what is visible, and counts the clicks."""

    def __init__(self, page: Page, url: str) -> None:
        self.page, self._url, self.clicks = page, url, list[int]()

    async def begin(self) -> None:
        """Open the first page, with the next question."""
        self.clicks.append(0)
        await self.page.goto(self._url)

    async def click(self, role: Any, name: str, within: str = "body") -> None:
        """Click on the first visible link or button of this name."""
        await self.page.locator(within).get_by_role(role, name=name).first.click()
        self.clicks[-1] += 1

    async def reads(self, *texts: str) -> None:
        """These texts are visible."""
        for text in texts:
            await self.page.get_by_text(text).first.wait_for(state="visible", timeout=10_000)


@pytest.fixture
async def incident(app: App, server: Server) -> AsyncGenerator[Incident]:
    found = Incident(app, server)
    await found.happen()
    async with running(app, queues="reports", concurrency=1):
        try:
            await aeventually(found.runs)
            yield found
        finally:
            found.gate.set()


@asynccontextmanager
async def reading(app: App) -> AsyncGenerator[Reader]:
    async with chromium() as browser, serving(dashboard(app)) as url, tab(browser, url) as (page, findings):
        reader = Reader(page, url)
        await reader.begin()
        yield reader
        assert findings.found == []


async def test_a_fresh_reader_finds_five_answers(incident: Incident) -> None:
    async with reading(incident.app) as reader:
        # What is wrong?
        await reader.reads(
            "things need you", "New error", "300 jobs of shop.mail:welcome died of ConnectionError"
        )
        await reader.reads("the mail provider is away")
        await keep(reader.page, "reader-1-what-is-wrong")

        # Which queue is late, and since when?
        await reader.begin()
        await reader.reads("Queue reports is late: its oldest job has been ready for 12 m")
        await reader.click("link", "See the queue")
        await reader.reads("has been ready for 12 m", "reports")
        await keep(reader.page, "reader-2-late")

        # Why did this job run twice?
        await reader.begin()
        await reader.click("link", "Look and replay")
        await reader.click("link", "mail:", within="main table")
        await keep(reader.page, "reader-3-twice")
        await reader.reads("It died after 2 tries", "The first run failed (ConnectionError)")

        # Bring these 300 back, slowly.
        await reader.begin()
        await reader.click("link", "Look and replay")
        await reader.click("link", "Replay 300…")
        await reader.reads("At most per second", "Canary first")
        await keep(reader.page, "reader-4-slowly")
        await reader.click("button", "Replay 300")
        await reader.reads("The replay of 300 jobs has begun.", "at most 50 per second")
        await keep(reader.page, "reader-4-begun")

        # Who has paused that queue?
        await reader.begin()
        await reader.reads("Queue search:", "by grace@ops-1: the new index is built")
        await reader.click("link", "Queues")
        await reader.reads("paused by grace@ops-1")
        assert (len(reader.clicks), max(reader.clicks)) == (5, MOST_CLICKS), reader.clicks
    (operation,) = await incident.app.operations.list()
    assert (operation.act, operation.total, operation.rate, operation.canary) == ("replay", DEAD, 50, 5)
