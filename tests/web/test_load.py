"""What pages cost: commands of Redis per page and with many viewers, and bytes per page."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from fennelq import App, TaskFailed
from fennelq.broker.keys import GROUP, queue_keys
from fennelq.manage import watch
from fennelq.web import User, dashboard, rounds, series
from fennelq.web.application import Dashboard
from fennelq.web.live import View
from fennelq.web.looks import Look, Looks
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


async def watched(
    made: Dashboard, server: Server, paths: list[str], viewers: int, looked: Counter[str]
) -> tuple[Commands, int]:
    """The commands of some looks, and how many looks these were, while so many people have these pages open."""
    live = made.pages[0].live
    streams = [live.stream(View(paths[n % len(paths)], RIGHTS), User(f"user-{n}")) for n in range(viewers)]
    for stream in streams:
        await anext(stream)
    looks = made.pages[0].site.looks
    began = await looks.now()
    await aeventually(lambda: looks.last is not began)
    before = looked["times"]
    async with commands_of(server) as found:
        for _ in range(3):
            await aeventually(partial(is_newer, looks, looks.last))
    number = looked["times"] - before
    for stream in streams:
        await stream.aclose()
    return found, number


def is_newer(looks: Looks, last: Look | None) -> bool:
    return looks.last is not last


async def test_many_viewers_cost_redis_what_one_costs(
    shop: Shop, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = ["/", "/queues", "/queues/mail"]
    looked, look_at = Counter[str](), watch.look_at

    def counted(app: App) -> Any:
        looked["times"] += 1
        return look_at(app)

    monkeypatch.setattr(watch, "look_at", counted)
    made = dashboard(shop.app)
    for viewers in (3, 120):
        commands, number = await watched(made, server, paths, viewers, looked)
        assert number >= 3
        # Each look asks each of the four queues once; one look may have begun before the first command was seen.
        assert abs(commands.surveys - 4 * number) <= 4, viewers
    await made.close()


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
