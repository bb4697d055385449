"""What pages cost: commands of Redis per page and with many viewers, and bytes per page."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from itertools import pairwise
from statistics import mode
from typing import Any

import pytest
from redis import Redis

from fennelq import App, TaskFailed
from fennelq.broker.keys import GROUP, queue_keys
from fennelq.manage import watch
from fennelq.web import User, dashboard, rounds, series
from fennelq.web.application import Dashboard
from fennelq.web.live import MOST_VIEWERS, View
from fennelq.web.looks import Look
from fennelq.web.rows import queue_rows
from fennelq.web.users import RIGHTS
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.kit.workers import running
from tests.web.commands import Commands, commands_of
from tests.web.kit import Browser, Shop, by_name, text_of

pytestmark = pytest.mark.audit(unfinished=True)

MOST_COMMANDS, MOST_BYTES = 20, 60 * 1024


async def paths_of(shop: Shop) -> list[str]:
    group = await shop.group()
    return [
        *("/", "/?hours=24", "/queues", "/queues/mail", "/queues/mail?hours=24", "/jobs", "/dead", "/tasks"),
        *("/tasks/shop:welcome", "/schedules", "/executors", "/limits", "/operations", "/health", "/audit"),
        *(f"/jobs/{shop.dead[0]}", f"/jobs/{shop.waiting}", f"/dead/{group}", f"/dead/{group}/replay"),
    ]


async def test_no_page_asks_much(shop: Shop, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page is the first one of its process: then nothing is known yet."""
    for module in (series, rounds):  # a page waits for one step of each; others follow in the background
        monkeypatch.setattr(module, "SHORTEST", 10.0)
    monkeypatch.setattr(watch, "SHORTEST", 60.0)  # no other look follows meanwhile
    jobs = [shop.welcome.options(delay=n * 60 + 60).job(n) for n in range(50)]
    await shop.app.enqueue([*jobs, *(shop.welcome.job(n) for n in range(50))])
    queues = [f"tenant-{n:02}" for n in range(30)]
    more = await shop.app.enqueue([shop.charge.job(order) for order in range(12)])
    more += await shop.app.enqueue([shop.charge.options(queue=queue).job(1) for queue in queues])
    for number in range(40):
        await shop.app.schedules.add(shop.welcome.job(1), name=f"s{number}", cron="0 9 * * *")
    async with running(shop.app, queues=",".join(("billing", *queues))):
        for job in more:
            with suppress(TaskFailed):
                await job.get(30)
    await shop.app.enqueue([shop.charge.options(queue=queue).job(1) for queue in queues])
    with server.client() as client:
        for queue in queues:  # an executor that runs a job of each, and sends nothing meanwhile
            lane = queue_keys(shop.app.namespace, queue)["s"]
            assert client.xreadgroup(GROUP, "web-1", {lane: ">"})
    assert sum(info.running for info in await shop.app.queues.list()) == len(queues)
    many = await costs(shop, server)
    assert {path: " ".join(found.others) for path, found in many.items()} == {}


async def costs(shop: Shop, server: Server) -> dict[str, Commands]:
    """The pages that ask too much."""
    many: dict[str, Commands] = {}
    for path in await paths_of(shop):
        async with Browser(shop.app) as pages:
            await pages.get("/audit")  # connects, and finds out what the server can
            async with commands_of(server) as found:
                assert (await pages.get(path)).status_code == 200
        if found.surveys > 2 * 34 or len(found.others) > MOST_COMMANDS:
            many[path] = found
    return many


async def test_no_page_is_long(shop: Shop) -> None:
    arguments: Any = {"greeting": "a long greeting " * 20}
    await shop.app.enqueue([shop.welcome.job(n, **arguments) for n in range(120)])
    await shop.app.enqueue([shop.welcome.options(queue=f"tenant-{n:04}.hooks").job(n) for n in range(60)])
    paths = [*await paths_of(shop), "/jobs?q=state:waiting", "/queues?from=50"]
    async with Browser(shop.app) as pages:
        sizes = {path: len((await pages.get(path)).content) for path in paths}
    assert {path: size for path, size in sizes.items() if size > MOST_BYTES} == {}


async def test_many_viewers_cost_redis_what_one_costs(
    shop: Shop, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted from look to look, with the commands inside scripts: how often this machine looks does not matter."""
    monkeypatch.setattr(watch, "SHORTEST", 0.05)
    look_at, costs, made = watch.look_at, dict[int, int](), dashboard(shop.app)
    with server.client() as redis:
        for viewers in (1, 20, MOST_VIEWERS):
            counts: list[int] = []

            def counted(app: App, counts: list[int] = counts) -> Any:
                counts.append(calls_of(redis))
                return look_at(app)

            monkeypatch.setattr(watch, "look_at", counted)
            async with viewed(made, "/queues", viewers):
                assert made.pages[0].live.viewers == viewers
                await aeventually(partial(are_many, counts))
            # Most looks cost the same. Few more commands come once a minute, or when a viewer comes.
            costs[viewers] = mode(after - before for before, after in pairwise(counts))
    await made.close()
    assert costs[1] >= 4, "a call of the script for each queue"
    assert costs == dict.fromkeys(costs, costs[1])


@asynccontextmanager
async def viewed(made: Dashboard, path: str, viewers: int) -> AsyncGenerator[None]:
    """So many people have this page open, and read what comes."""

    async def read(number: int) -> None:
        async with aclosing(made.pages[0].live.stream(View(path, RIGHTS), User(f"user-{number}"))) as lines:
            async for line in lines:
                read_by[number] += "event: look" in line

    read_by = Counter[int]()
    readers = [asyncio.create_task(read(number)) for number in range(viewers)]
    await aeventually(lambda: len(read_by) == viewers and min(read_by.values()) > 0)
    try:
        yield
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


def are_many(counts: list[int]) -> bool:
    return len(counts) > 12


def calls_of(redis: Redis) -> int:
    """The commands that the server has executed, with those of scripts."""
    stats: Any = redis.info("commandstats")
    return sum(one["calls"] for name, one in stats.items() if name != "cmdstat_info")


async def test_a_page_is_rendered_once_per_look_and_user(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Browser(shop.app, auth=by_name) as pages:
        await pages.get("/queues", user="all")  # the first look
        calls = Counter[str]()
        found = queue_rows

        def counted(look: Look) -> Any:
            calls["rendered"] += 1
            return found(look)

        monkeypatch.setattr("fennelq.web.pages.queues.queue_rows", counted)
        looks = pages.dashboard.pages[0].site.looks
        monkeypatch.setattr(looks, "now", partial(same, looks.last))
        first = [(await pages.get("/queues?by=name", user="all")).text for _ in range(3)]
        assert first[0] == first[1] == first[2]
        assert calls["rendered"] == 1
        other = (await pages.get("/queues?by=name", user="see")).text
        assert "all, may do everything" in text_of(first[0])
        assert "may do everything" not in text_of(other)
        assert calls["rendered"] == 2
        await pages.get("/queues?by=waiting", user="see")
        assert calls["rendered"] == 3


async def same(look: Look | None) -> Look:
    assert look is not None
    return look
