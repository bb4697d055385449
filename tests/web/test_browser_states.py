"""The pages in a real browser when there is nothing, very much, no Redis, or no right to see them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import product
from typing import Any

import pytest
from playwright.async_api import Page

from fennelq import App
from fennelq.web import User, dashboard
from fennelq.web.choice import Choice
from fennelq.web.gate import Gate
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.web.kit import Shop, by_name, serving
from tests.web.test_browser import NARROW, WIDE, Findings, chromium, keep, paths_of, serious, tab

pytestmark = [pytest.mark.audit(unfinished=True), pytest.mark.timeout(300)]

LISTS = {
    "overview": "/",
    "queues": "/queues",
    "jobs": "/jobs",
    "dead": "/dead",
    "tasks": "/tasks",
    "schedules": "/schedules",
    "executors": "/executors",
    "limits": "/limits",
    "operations": "/operations",
    "health": "/health",
    "audit": "/audit",
}
LOOKS = (("light", WIDE), ("dark", NARROW))


class Walk:
    """Visits pages, and collects what is wrong with them."""

    def __init__(self, page: Page, findings: Findings, url: str, state: str) -> None:
        self._page, self._findings, self._url, self._state = page, findings, url, state
        self.problems: list[str] = []
        self.texts: dict[str, str] = {}

    async def visit(self, name: str, path: str, status: int = 200) -> None:
        """Visit a page that answers with this status."""
        answer = await self._page.goto(f"{self._url}{path}", wait_until="domcontentloaded")
        assert answer is not None
        found = [] if answer.status == status else [f"status {answer.status}"]
        # A browser reports each answer that is an error on its console.
        found += [one for one in self._findings.found if status < 400 or f"status of {status}" not in one]
        self._findings.found.clear()
        if await self._page.evaluate("document.documentElement.scrollWidth > innerWidth + 1"):
            found.append("scrolls sideways")
        found += await serious(self._page)
        self.texts[name] = await self._page.locator("body").inner_text()
        await keep(self._page, f"{self._state}-{name}")
        self.problems += [f"{self._state}, {name}: {one}" for one in found]


@asynccontextmanager
async def walking(
    app: App, state: str, *, auth: Any = None, headers: dict[str, str] | None = None
) -> AsyncGenerator[Callable[[str, int], AbstractAsyncContextManager[Walk]]]:
    async with chromium() as browser, serving(dashboard(app, auth=auth)) as url:

        @asynccontextmanager
        async def walk(theme: str, width: int) -> AsyncGenerator[Walk]:
            async with tab(browser, url, theme=theme, width=width) as (page, findings):
                await page.set_extra_http_headers(headers or {})
                yield Walk(page, findings, url, f"{state}-{theme}-{width}")

        yield walk


EMPTY = {
    "overview": "Nothing has happened here yet",
    "queues": "1 is idle",
    "dead": "No job is dead",
    "tasks": "No task is known",
    "schedules": "No schedule is known",
    "executors": "Start a worker",
    "operations": "None is under way",
    "health": "All checks pass",
}


async def test_an_app_without_anything_says_what_to_do(app: App) -> None:
    async with walking(app, "empty") as walk:
        for theme, width in LOOKS:
            async with walk(theme, width) as walked:
                for name, path in LISTS.items():
                    await walked.visit(name, path)
                assert walked.problems == []
                assert {name: text for name, text in EMPTY.items() if text not in walked.texts[name]} == {}


async def test_a_thousand_queues_are_shown_page_by_page(shop: Shop) -> None:
    await shop.app.enqueue(
        [shop.welcome.options(queue=f"tenant-{n:04}.webhooks-and-mail").job(n) for n in range(1000)]
    )
    async with walking(shop.app, "thousand") as walk:
        for theme, width in LOOKS:
            async with walk(theme, width) as walked:
                for name, path in {**LISTS, "last": "/queues?by=name&from=1000"}.items():
                    await walked.visit(name, path)
                assert walked.problems == []
                assert "1–50 of 1,004" in walked.texts["queues"]
                assert "tenant-0999.webhooks-and-mail" in walked.texts["last"]


async def test_while_redis_is_away_every_page_says_so(shop: Shop, server: Server) -> None:
    impatient = App("shop", redis_url=server.url, enqueue_timeout=0.5)
    paths = {**LISTS, "queue": "/queues/mail", "group": f"/dead/{await shop.group()}"}
    async with impatient, walking(impatient, "away") as walk:
        async with walk("light", WIDE) as walked:
            await walked.visit("queues", "/queues")
            server.pause()
            try:
                await aeventually(lambda: is_away(walked), within=20)
                walked.problems.clear()  # the first page may come before it is noticed
                for name, path in paths.items():
                    await walked.visit(name, path, 503)
            finally:
                server.resume()
            assert walked.problems == []
        told = "Redis has not answered since"
        assert [name for name, text in walked.texts.items() if told not in text] == []
        assert "paused by oncall" in walked.texts["queues"]  # it was open before


async def is_away(walked: Walk) -> bool:
    await walked.visit("queues", "/queues", 503)
    return "Redis has not answered since" in walked.texts["queues"]


async def test_without_a_right_every_page_says_which_one_is_missing(shop: Shop) -> None:
    paths = await paths_of(shop, "web-1")
    async with walking(shop.app, "unseen", auth=by_name, headers={"X-User": "cancel"}) as walk:
        for theme, width in LOOKS:
            async with walk(theme, width) as walked:
                for name in ("overview", "queues", "job", "group", "executors", "audit"):
                    await walked.visit(name, paths[name], 403)
                assert walked.problems == []
                assert all("may not see the pages" in text for text in walked.texts.values())
                assert not any("mail" in text for text in walked.texts.values())


def ada(_: Any) -> User:
    """May look, and not see arguments."""
    return User("ada", ["see"])


async def test_who_may_only_look_sees_no_button_and_no_argument(shop: Shop) -> None:
    paths = await paths_of(shop, "web-1")
    async with walking(shop.app, "looking", auth=ada) as walk:
        async with walk("dark", WIDE) as walked:
            for name in ("queue", "job", "dead", "group", "task", "schedules", "operations", "search"):
                await walked.visit(name, paths[name])
            assert walked.problems == []
        for word in ("sesame", "Pause…", "Purge…", "Replay", "Cancel…", "Import", "Send"):
            assert {name: word for name, text in walked.texts.items() if word in text} == {}, word


async def test_the_choice_between_apps_is_fine_too(shop: Shop, server: Server) -> None:
    with server.client() as client:
        client.sadd("fq:apps", *(f"tenant-{n:02}" for n in range(30)))
    async with chromium() as browser, serving(Choice(server.url, Gate(None))) as url:
        for theme, width in product(("light", "dark"), (WIDE, NARROW)):
            async with tab(browser, url, theme=theme, width=width) as (page, findings):
                walked = Walk(page, findings, url, f"choice-{theme}-{width}")
                await walked.visit("apps", "/")
                await page.get_by_role("link", name="shop").click()
                await page.get_by_text("things need you").wait_for()
                await walked.visit("switch", "/shop/queues")
                await page.get_by_text("Other apps").click()
                await page.get_by_role("link", name="tenant-07").click()
                await page.wait_for_url(f"{url}/tenant-07/")
                assert walked.problems == []
