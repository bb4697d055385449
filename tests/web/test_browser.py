"""The pages in a real browser: both themes, wide and narrow, with the keyboard, and without JavaScript.

It is Debian's chromium. `KEEP_PICTURES=folder` keeps a picture of each page, as `.ci/run` does.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any, Final

import axe_playwright_python.async_playwright as axe  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]
import pytest
from playwright.async_api import Browser, BrowserContext, Page, Route, async_playwright

from fennelq.web import dashboard
from fennelq.web.visit import segment
from tests.kit.waiting import aeventually
from tests.kit.workers import running
from tests.web.kit import Shop, serving
from tests.web.test_pages import reports

CHROMIUM: Final = shutil.which("chromium") or "/usr/bin/chromium"
ARGUMENTS: Final = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
PICTURES: Final = os.environ.get("KEEP_PICTURES")
WIDE, NARROW = 1440, 420
MOST_HTML, MOST_ASSETS = 60 * 1024, 40 * 1024
AXE: Final = axe.Axe()
PATIENCE: Final = 90_000
"""Milliseconds that the browser has for each step. It shares the machine with the other tests."""

pytestmark = [pytest.mark.audit(unfinished=True), pytest.mark.timeout(600)]


class Findings:
    """Everything that a browser complains about, and what it asks of other hosts."""

    def __init__(self, url: str) -> None:
        self._url, self.found = url, list[str]()

    def watch(self, page: Page) -> None:
        """Listen to a page."""
        page.on("console", lambda one: self.found.append(f"console: {one.text} {one.location['url']}"))
        page.on("pageerror", lambda error: self.found.append(f"error: {error}"))
        page.on("request", lambda request: self._check(request.url))
        page.on("crash", lambda _: self.found.append("crash"))

    def _check(self, url: str) -> None:
        if not url.startswith((self._url, "blob:", "data:")):
            self.found.append(f"request: {url}")


@asynccontextmanager
async def chromium() -> AsyncGenerator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=[*ARGUMENTS], timeout=PATIENCE
        )
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def tab(
    browser: Browser, url: str, *, theme: Any = "light", width: int = WIDE, script: bool = True
) -> AsyncGenerator[tuple[Page, Findings]]:
    """A tab, and what is found in it."""
    context: BrowserContext = await browser.new_context(
        color_scheme=theme, viewport={"width": width, "height": 1000}, java_script_enabled=script
    )
    context.set_default_timeout(PATIENCE)
    page, findings = await context.new_page(), Findings(url)
    findings.watch(page)
    try:
        yield page, findings
    finally:
        await context.close()


async def paths_of(shop: Shop, executor: str) -> dict[str, str]:
    """Every page, in the shop as it is; those of a schedule and an operation need `complete`."""
    group = await shop.group()
    return {
        "overview": "/",
        "queues": "/queues",
        "queue": "/queues/mail",
        "paused": "/queues/search.index",
        "pause": "/queues/mail/pause",
        "purge": "/queues/mail/purge",
        "jobs": "/jobs",
        "search": "/jobs?q=state:dead",
        "cancel-all": "/jobs/all/cancel?q=state:waiting",
        "replay-all": "/jobs/all/replay?q=state:dead",
        "purge-all": "/jobs/all/purge?q=state:dead",
        "job": f"/jobs/{shop.dead[0]}",
        "waiting": f"/jobs/{shop.waiting}",
        "cancel": f"/jobs/{shop.waiting}/cancel",
        "edit": f"/jobs/{shop.dead[0]}/edit",
        "dead": "/dead",
        "import": "/dead/import",
        "group": f"/dead/{group}",
        "replay": f"/dead/{group}/replay",
        "purge-group": f"/dead/{group}/purge",
        "tasks": "/tasks",
        "task": "/tasks/shop:welcome",
        "send": "/tasks/shop:welcome/send",
        "schedules": "/schedules",
        "executors": "/executors",
        "executor": f"/executors/{segment(executor)}",
        "stacks": f"/executors/{segment(executor)}/stacks",
        "profile": f"/executors/{segment(executor)}/profile",
        "drain": f"/executors/{segment(executor)}/drain",
        "limits": "/limits",
        "operations": "/operations",
        "health": "/health",
        "audit": "/audit",
        "nosuch": "/nosuch",
    }


async def serious(page: Page) -> list[str]:
    """What axe finds that keeps people from using the page."""
    await page.evaluate(AXE.axe_script)
    # Only what is wrong: most of the time would go to descriptions of what is right.
    found: Any = await page.evaluate("axe.run({resultTypes: ['violations']}).then(found => found.violations)")
    return [
        f"{one['id']}: {node['html'][:200]}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"][:3]
    ]


@asynccontextmanager
async def complete(shop: Shop) -> AsyncGenerator[tuple[str, dict[str, str]]]:
    """The shop with an executor, a schedule, a limit and an operation: the URL of its pages, and their paths."""
    await shop.app.schedules.add(shop.welcome.job(1), name="nightly", cron="0 9 * * 1-5", tz="Europe/Paris")
    operation = await shop.app.operations.begin(await shop.app.operations.plan("run", "state:scheduled"))
    async with running(shop.app, queues="mail,default") as executor:
        await aeventually(lambda: reports(shop.app, executor.state.name))
        async with serving(dashboard(shop.app)) as url:
            paths = await paths_of(shop, executor.state.name)
            more = {
                "schedule": "/schedules/nightly",
                "remove": "/schedules/nightly/remove",
                "operation": f"/operations/{operation.id}",
            }
            yield url, {**paths, **more}


async def test_every_page_is_fine_in_both_themes_and_widths(shop: Shop) -> None:
    problems: list[str] = []
    async with complete(shop) as (url, paths), chromium() as browser:
        for theme, width in product(("light", "dark"), (WIDE, NARROW)):
            async with tab(browser, url, theme=theme, width=width) as (page, findings):
                for name, path in paths.items():
                    await page.goto(f"{url}{path}", wait_until="domcontentloaded")
                    found = await serious(page)
                    expected = [] if name != "nosuch" else [one for one in findings.found if "404" in one]
                    found += [one for one in findings.found if one not in expected]
                    problems += [f"{name}, {theme}, {width}: {one}" for one in found]
                    findings.found.clear()
                    wide = await page.evaluate("document.documentElement.scrollWidth > innerWidth + 1")
                    problems += [f"{name}, {theme}, {width}: scrolls sideways"] if wide else []
                    await keep(page, f"{name}-{theme}-{width}")
    assert not problems, "\n".join(problems)


async def test_a_browser_loads_little_for_each_page(shop: Shop) -> None:
    """Uncompressed: each page, and everything that the pages make a browser load."""
    loaded: dict[str, int] = {}

    async def load(route: Route) -> None:
        if "/live?" in route.request.url:  # a stream has no end
            await route.continue_()
            return
        answer = await route.fetch()
        loaded[route.request.url] = len(await answer.body())
        await route.fulfill(response=answer)

    async with complete(shop) as (url, paths), chromium() as browser, tab(browser, url) as (page, _):
        await page.route("**", load)
        for path in paths.values():
            await page.goto(f"{url}{path}")
        pages = {name: loaded.pop(f"{url}{path}") for name, path in paths.items()}
        await page.unroute_all(behavior="wait")
    assert {name: size for name, size in pages.items() if size > MOST_HTML} == {}
    assert {one.rpartition("/")[2] for one in loaded} == {"fennelq.css", "live.js", "icon.svg"}
    assert sum(loaded.values()) <= MOST_ASSETS


async def keep(page: Page, name: str) -> None:
    if PICTURES:
        Path(PICTURES).mkdir(parents=True, exist_ok=True)
        await page.screenshot(path=Path(PICTURES) / f"{name}.png", full_page=True)


async def test_a_page_updates_itself_and_counts_on(shop: Shop) -> None:
    async with (
        chromium() as browser,
        serving(dashboard(shop.app)) as url,
        tab(browser, url) as (page, findings),
    ):
        await page.goto(f"{url}/queues/mail")
        await page.get_by_text(re.compile("^live, every ")).wait_for()
        assert await page.locator(".figure .value").first.inner_text() == "2"
        await shop.welcome.delay(5)
        await page.locator(".figure .value").first.get_by_text("3", exact=True).wait_for()
        time = page.locator("time[data-ago]").first
        assert re.fullmatch(r"\d+ [sm]( \d+ s)? ago", await time.inner_text())
        assert "UTC" in (await time.get_attribute("title") or "")
        assert findings.found == []


async def test_a_question_opens_in_a_dialog_and_is_answered_there(shop: Shop) -> None:
    async with (
        chromium() as browser,
        serving(dashboard(shop.app)) as url,
        tab(browser, url) as (page, findings),
    ):
        await page.goto(f"{url}/queues/mail")
        await page.get_by_role("link", name="Pause…").click()
        dialog = page.locator("dialog[open]")
        await dialog.get_by_label("Why").fill("the mail server is down")
        await dialog.get_by_role("button", name="Pause mail").click()
        await page.get_by_text("The queue is paused.").wait_for()
        assert findings.found == []
    pause = (await shop.app.queues.info("mail")).paused
    assert pause is not None
    assert pause.why == "the mail server is down"


async def test_everything_works_without_javascript(shop: Shop) -> None:
    group = await shop.group()
    async with (
        chromium() as browser,
        serving(dashboard(shop.app)) as url,
        tab(browser, url, script=False) as (page, findings),
    ):
        await page.goto(f"{url}/queues/mail")
        await page.get_by_role("link", name="Pause…").click()
        await page.get_by_label("Why").fill("no script")
        await page.get_by_role("button", name="Pause mail").click()
        await page.get_by_text("The queue is paused.").wait_for()
        await page.goto(f"{url}/jobs?q=state:dead")
        assert await page.locator("table.jobs tbody tr").count() == 3
        await page.goto(f"{url}/dead/{group}")
        await page.get_by_role("link", name="Replay 3…").click()
        await page.get_by_role("button", name="Replay 3").click()
        await page.get_by_text("The replay of 3 jobs has begun.").wait_for()
        await aeventually(lambda: none_dead(shop))
        await page.goto(f"{url}/tasks/shop:welcome/send")
        await page.get_by_label("user_id").fill("12")
        await page.get_by_role("button", name="Send").click()
        await page.get_by_text("queue 'mail' takes no jobs").wait_for()
        assert [one for one in findings.found if "409" not in one] == []


async def none_dead(shop: Shop) -> bool:
    return await shop.app.dlq.count() == 0


async def test_the_keyboard_is_enough(shop: Shop) -> None:
    async with (
        chromium() as browser,
        serving(dashboard(shop.app)) as url,
        tab(browser, url) as (page, findings),
    ):
        await page.goto(url)
        await page.keyboard.press("g")
        await page.keyboard.press("q")
        await page.wait_for_url(f"{url}/queues")
        for key in ("j", "j", "k"):
            await page.keyboard.press(key)
        first = await page.locator("tbody tr a").first.inner_text()
        assert await page.evaluate("document.activeElement.textContent") == first
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"{url}/queues/{first}")
        await page.keyboard.press("/")
        await page.keyboard.type(shop.dead[0])
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"{url}/jobs/{shop.dead[0]}")
        await page.keyboard.press("?")
        await page.locator("dialog[open]").get_by_text("next and previous row").wait_for()
        await page.keyboard.press("Escape")
        await page.goto(f"{url}/dead/{await shop.group()}")
        await page.keyboard.press("j")
        await page.keyboard.press("x")
        assert await page.locator("[data-pick]:checked").count() == 1
        assert findings.found == []


async def test_the_theme_is_remembered(shop: Shop) -> None:
    async with chromium() as browser, serving(dashboard(shop.app)) as url, tab(browser, url) as (page, _):
        await page.goto(url)
        before = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        await page.get_by_role("button", name="Light or dark").click()
        after = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert before != after
        await page.goto(f"{url}/queues")
        assert await page.evaluate("getComputedStyle(document.body).backgroundColor") == after
