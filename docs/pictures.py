"""Makes the pictures of `fennelq top` and of the dashboard (`make pictures`): a private server, a worker and a shop in
this process, and the real programs before them. Nothing in a picture is drawn by hand. The dashboard is shown by
chromium."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parent / "guides" / "pictures"
sys.path.insert(0, str(FOLDER.parents[2]))

import uvicorn  # noqa: E402
from playwright.async_api import Page, async_playwright  # noqa: E402
from textual.pilot import Pilot  # noqa: E402

from fennelq import App, current_job, embedded, log  # noqa: E402
from fennelq.cli.top.program import Top  # noqa: E402
from fennelq.web import dashboard  # noqa: E402
from fennelq.web.ports import bound  # noqa: E402
from fennelq.worker.executor import Executor  # noqa: E402
from fennelq.worker.processes.config import ExecutorConfig  # noqa: E402

SIZE: Final = (100, 20)
HOST: Final = "web-1"
"""Stands for the name of this machine in the names of executors."""
CHROMIUM: Final = shutil.which("chromium") or "/usr/bin/chromium"
_PAGE: Final = (1200, 900)
_PATIENCE: Final = 30.0


class CardRefused(Exception):
    """The bank says no."""


def shop(url: str) -> App:
    """The app in the pictures."""
    app = App("shop", redis_url=url)

    @app.task(name="shop.payments:charge", queue="cards", retries=0)
    async def charge(order: int, card_number: str) -> None:
        raise CardRefused(f"no money for order {order}")

    @app.task(name="shop.images:resize", queue="images")
    async def resize(name: str) -> None:
        for done in range(600):
            await current_job().progress(done, 600, "tiles")
            await asyncio.sleep(0.1)

    @app.task(name="shop.mail:welcome", queue="mail")
    async def welcome(user: int) -> None:
        await asyncio.sleep(0.02)

    @app.task(name="shop.stock:count", queue="stock")
    async def count(shelf: int) -> None:
        await asyncio.sleep(0.02)

    return app


@asynccontextmanager
async def at_work(app: App) -> AsyncGenerator[None]:
    """A worker in this process; its jobs are cancelled at the end."""
    executor = Executor(app, ExecutorConfig(concurrency=16, grace=0))
    life = asyncio.create_task(executor.run())
    try:
        yield
    finally:
        executor.stop(now=True)
        await life


async def fill(app: App) -> None:
    """A busy afternoon: refused cards, images on their way, a pause."""
    charge, resize, welcome, count = app.tasks.values()
    await app.enqueue([charge.job(1000 + n, "4929 1234") for n in range(18)])
    await app.enqueue([resize.job(f"holiday-{n}.png") for n in range(6)])
    await app.enqueue([count.options(delay=3600 + n).job(n) for n in range(40)])
    await app.enqueue([welcome.job(n) for n in range(1)])
    await app.queues.pause("mail", only="consume", why="the mail server is down", who="ada@web-1")
    await app.enqueue([welcome.job(n) for n in range(1200)])
    await app.enqueue([count.job(n) for n in range(4000)])


async def until(pilot: Pilot[int], is_so: Callable[[str], bool]) -> None:
    """Wait until the picture is as it should be."""
    end = time.monotonic() + _PATIENCE
    while not is_so(pilot.app.export_screenshot().replace("&#160;", " ")):
        if time.monotonic() > end:
            raise SystemExit("the screen does not show what the pictures need")
        await pilot.pause(0.1)


def neutral(picture: str) -> str:
    """The picture without fonts from other hosts, and with names that do not differ from run to run."""
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    picture = picture.replace("Fira Code", "ui-monospace, Menlo, Consolas")
    return re.sub(r"terminal-\d+", "terminal", picture) + "\n"


async def make(app: App) -> None:
    """Look at the shop, and write the pictures."""
    async with app, at_work(app):
        await fill(app)
        await screens(app)
        await page(app)


async def screens(app: App) -> None:
    """Write the pictures of `fennelq top`."""
    top = Top(app)
    async with top.run_test(size=SIZE) as pilot:
        await until(pilot, lambda text: "New error" in text and "paused" in text and "done/s" in text)
        save(top, "top-overview")
        await pilot.press("2")
        await until(pilot, lambda text: "QUEUE" in text and "not served" not in text)
        await pilot.press("down", "down")
        save(top, "top-queues")
        await pilot.press("4")
        await until(pilot, lambda text: "1 of 1" in text)
        await pilot.press("R")
        await until(pilot, lambda text: "can go back" in text)
        save(top, "top-replay")


async def has_rates(shown: Page) -> None:
    """Wait until the page has rates: they are differences of two looks."""
    end = time.monotonic() + _PATIENCE
    while not re.search(r"Ended per second\s+\d", await shown.locator("main").inner_text()):
        if time.monotonic() > end:
            raise SystemExit("the page does not show what the picture needs")
        await asyncio.sleep(0.1)


async def page(app: App) -> None:
    """Write the picture of the dashboard: its first page, as chromium shows it."""
    listening = bound("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(dashboard(app), log_level="error", lifespan="on", ws="none"))
    serving = asyncio.create_task(server.serve([listening]))
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--headless", "--no-sandbox", "--disable-gpu"]
        )
        shown = await browser.new_page(viewport={"width": _PAGE[0], "height": _PAGE[1]})
        await shown.goto(f"http://127.0.0.1:{listening.getsockname()[1]}/")
        await has_rates(shown)
        picture = await shown.screenshot(path=FOLDER / "dashboard.png")
        print(f"dashboard.png: {len(picture):,} bytes")
        await browser.close()
    server.should_exit = True
    await serving


def save(top: Top, name: str) -> None:
    """Write a picture."""
    FOLDER.mkdir(exist_ok=True)
    picture = neutral(top.export_screenshot(title="fennelq top", simplify=True))
    (FOLDER / f"{name}.svg").write_text(picture, "utf-8")
    print(f"{name}.svg: {len(picture):,} bytes")


def main() -> None:
    """Make all pictures."""
    socket.gethostname = lambda: HOST
    log.setup(level="critical")
    with tempfile.TemporaryDirectory(prefix="fennelq-", ignore_cleanup_errors=True) as folder:
        server = embedded.start(Path(folder))
        try:
            asyncio.run(make(shop(server.url)))
        finally:
            server.close()


if __name__ == "__main__":
    main()
