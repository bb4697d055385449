"""The process of the dashboard is killed in mid-replay: another one goes on."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from fennelq import App, Status, TaskFailed
from fennelq.manage.operation_record import OperationInfo
from tests.kit.server import Server
from tests.kit.spawn import Process
from tests.kit.waiting import aeventually
from tests.kit.workers import running
from tests.web.kit import SAME_SITE, Browser, Shop, hidden_fields, text_of

pytestmark = pytest.mark.audit(unfinished=True)

JOBS = 20


async def test_another_process_finishes_the_replay_of_one_that_was_killed(
    shop: Shop, server: Server, tmp_path: Path
) -> None:
    app, group = shop.app, await shop.group()
    await die(shop)
    async with served(server, tmp_path) as (process, url):
        async with httpx.AsyncClient(base_url=url) as http:
            plan = hidden_fields((await http.get(f"/dead/{group}/replay")).text)
            form = {**plan, "rate": "5", "canary": ""}  # four seconds remain when it is killed
            answer = await http.post(f"/dead/{group}/replay", data=form, headers=SAME_SITE)
            assert answer.status_code == 303
        await aeventually(lambda: begun(app, 2))
        process.kill()
    (cut,) = await app.operations.list()
    assert cut.state == "running"
    left = await app.dlq.count()
    assert 0 < left < JOBS + 3
    await let_it_be_silent(server, cut.id)
    async with Browser(app) as pages:
        await aeventually(lambda: adopted(pages, app))
        page = await pages.text(f"/operations/{cut.id}")
    assert f"{JOBS + 3} of {JOBS + 3}" in page
    assert await app.dlq.count() == 0
    jobs = [job async for job in app.jobs.find("queue:billing state:waiting", limit=None)]
    assert len({job.id for job in jobs}) == len(jobs) == JOBS + 3
    assert [job.replays for job in jobs] == [1] * (JOBS + 3)
    assert [await app.result(job).status() for job in shop.dead] == [Status.SENT] * 3
    (ended,) = [entry for entry in await app.audit.list() if entry.what == "op resume" and entry.done]
    assert ended.who == cut.who


async def test_another_process_finishes_a_canary_replay_with_other_arguments_of_one_that_was_killed(
    shop: Shop, server: Server, tmp_path: Path
) -> None:
    app, group = shop.app, await shop.group()
    async with served(server, tmp_path) as (process, url):
        async with httpx.AsyncClient(base_url=url) as http:
            plan = hidden_fields((await http.get(f"/dead/{group}/replay?set=0%3D17")).text)
            form = {
                **plan,
                "rate": "",
                "canary": "1",
                "set": "0=17",
            }  # without the code, arguments have no names
            answer = await http.post(f"/dead/{group}/replay", data=form, headers=SAME_SITE)
            assert answer.status_code == 303
            await aeventually(lambda: begun(app, 1))  # no worker runs, so the canary does not end
            operation = text_of((await http.get("/operations")).text)
            assert "replay running 1 3" in operation
        process.kill()
    (cut,) = await app.operations.list()
    assert (cut.state, cut.canary, cut.arguments) == ("running", 1, ("0",))
    await let_it_be_silent(server, cut.id)
    shop.has_money = True
    async with Browser(app) as pages, running(app):
        await aeventually(lambda: adopted(pages, app))
        for job in shop.dead:
            assert await app.result(job).get(30) is None
    (ended,) = await app.operations.list()
    assert (ended.id, ended.state, ended.done, ended.total) == (cut.id, "done", 3, 3)
    infos = [await app.result(job).info() for job in shop.dead]
    assert [info.replays for info in infos if info] == [1, 1, 1]
    assert sorted(shop.charged) == [17, 17, 17]


async def die(shop: Shop) -> None:
    """More jobs die of the same cause."""
    jobs = await shop.app.enqueue([shop.charge.job(order) for order in range(JOBS)])
    async with running(shop.app):
        for job in jobs:
            with suppress(TaskFailed):
                await job.get(30)


async def let_it_be_silent(server: Server, operation: str) -> None:
    """As if its process had been silent for two minutes."""
    with server.client() as redis:
        client: Any = redis
        (record,) = client.scan_iter(match=f"*op:{operation}")
        client.hincrby(record, "beat", -120_000)


async def begun(app: App, jobs: int) -> bool:
    return await app.jobs.count("queue:billing state:waiting") >= jobs


async def adopted(pages: Browser, app: App) -> bool:
    await pages.get("/")
    operation: OperationInfo
    (operation,) = await app.operations.list()
    return operation.state == "done"


@asynccontextmanager
async def served(server: Server, directory: Path) -> AsyncGenerator[tuple[Process, str]]:
    """`fennelq web` in a process of its own, and its URL."""
    options = ("--redis-url", server.url, "--namespace", "shop", "--port", "0")
    command = (sys.executable, "-m", "fennelq", "web", *options)
    with Process(*command, output=directory / "web.log") as process:
        line = await asyncio.to_thread(process.wait_for, "http://")
        found = re.search(r"http://[\w.]+:\d+", line)
        assert found, line
        yield process, found[0]
