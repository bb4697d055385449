"""Redis does not answer: pages show what was known, and come back by themselves."""

from __future__ import annotations

import pytest

from fennelq import App
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.web.kit import Browser, Shop, text_of

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
            unseen = text_of((await pages.get("/executors")).text)
            assert "This page was not open before" in unseen
            assert "Queues, as they were" in unseen
            answer = await pages.post("/queues/mail/resume")
            assert answer.status_code == 503
            assert "It is not known whether this was done" in text_of(answer.text)
        finally:
            server.resume()
        await aeventually(lambda: answers(pages))
        assert "Redis has not answered" not in text_of((await pages.get("/queues")).text)


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
