"""Redis does not answer: pages show what was known, and come back by themselves."""

from __future__ import annotations

import asyncio
import re
from datetime import datetime

import httpx
import pytest

from fennelq import App
from fennelq.web import dashboard
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.web.kit import Browser, Shop, serving, text_of
from tests.web.test_live import opened

pytestmark = [pytest.mark.audit(unfinished=True), pytest.mark.usefixtures("impatient")]


async def test_a_page_shows_what_was_known_while_redis_is_away(shop: Shop, server: Server) -> None:
    impatient = App("shop", redis_url=server.url, enqueue_timeout=0.5)
    async with Browser(impatient) as pages, impatient:
        await aeventually(lambda: answers(pages))
        server.pause()
        try:
            await aeventually(lambda: says_so(pages))
            answer = await pages.get("/queues")
            page = text_of(answer.text)
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
            assert "mail" in page
            assert "paused by oncall" in page
            assert "Refresh" not in answer.headers  # it updates itself
            answer = await pages.get("/executors")
            assert answer.headers["Refresh"] == "5"
            unseen = text_of(answer.text)
            assert "This page was not open before" in unseen
            assert "Queues, as they were" in unseen
            answer = await pages.post("/queues/mail/resume")
            assert answer.status_code == 503
            assert "It is not known whether this was done" in text_of(answer.text)
        finally:
            server.resume()
        await aeventually(lambda: answers(pages))
        assert "Redis has not answered" not in text_of((await pages.get("/queues")).text)


async def test_since_when_redis_is_away_is_when_it_answered_last(shop: Shop, server: Server) -> None:
    impatient = App("shop", redis_url=server.url, enqueue_timeout=0.5)
    async with Browser(impatient) as pages, impatient:
        await pages.text("/queues")
        looks = pages.dashboard.pages[0].site.looks
        assert looks.last is not None
        server.pause()
        try:
            await aeventually(lambda: says_so(pages))
            assert looks.away is not None
            since = looks.away.since
            for path in ("/queues", "/", "/executors", "/queues"):
                assert (await pages.get(path)).status_code == 503, path
                assert looks.away.since == since
            assert since == looks.last.at
        finally:
            server.resume()
        await aeventually(lambda: answers(pages), within=20)
        assert looks.away is None


async def test_after_a_restart_of_redis_pages_come_back_by_themselves(shop: Shop, server: Server) -> None:
    impatient = App("shop", redis_url=server.url, enqueue_timeout=0.5)
    made = dashboard(impatient)
    async with (
        impatient,
        serving(made) as url,
        httpx.AsyncClient(base_url=url, timeout=10) as http,
        opened(url, "/queues") as events,
    ):
        assert "paused by oncall" in await events.fragment("table")
        assert (await http.get("/queues")).status_code == 200
        server.stop()
        away = (await events.next("away"))[1]
        assert datetime.fromisoformat(away["since"]).tzinfo is not None
        answer = await http.get("/queues")
        assert answer.status_code == 503
        assert "paused by oncall" in text_of(answer.text)
        assert re.search(r"This page is as it was at \d\d:\d\d:\d\d", text_of(answer.text))
        async with asyncio.timeout(60):
            server.start()
            await aeventually(lambda: is_there(http), within=20)
        await events.next("look")  # the open page goes on too


async def is_there(http: httpx.AsyncClient) -> bool:
    return (await http.get("/queues")).status_code == 200


async def says_so(pages: Browser) -> bool:
    answer = await pages.get("/queues")
    return answer.status_code == 503 and "Redis has not answered since" in text_of(answer.text)


async def answers(pages: Browser) -> bool:
    return (await pages.get("/queues")).status_code == 200


async def test_without_redis_from_the_beginning_a_page_says_so(app: App) -> None:
    nowhere = App("shop", redis_url="redis://127.0.0.1:1/0")
    async with Browser(nowhere) as pages, nowhere:
        answer = await pages.get("/")
        assert answer.status_code == 503
        assert answer.headers["Retry-After"] == "1"
        page = text_of(answer.text)
        assert "Redis does not answer" in page
        assert (await pages.get("/static/1/live.js")).status_code == 200
