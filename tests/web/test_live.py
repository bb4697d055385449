"""Pages that update themselves: rendered once per look for all who have them open, and sent if they have changed."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import httpx
import pytest

from fennelq import App
from fennelq.manage import watch
from fennelq.web import RIGHTS, User, dashboard
from fennelq.web.live import MOST_VIEWERS, Event, Live, View, Viewer
from fennelq.web.looks import Looks
from fennelq.web.ports import bound
from tests.kit.waiting import aeventually
from tests.web.kit import Browser, Shop, serving

pytestmark = pytest.mark.audit(unfinished=True)

ADA = User("ada")
QUEUES = View("/queues", RIGHTS)


class Events:
    """The events of a stream."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines

    async def next(self, kind: str = "") -> tuple[str, dict[str, Any]]:
        """The next event, or the next one of this kind."""
        event = ""
        async with asyncio.timeout(30):
            async for line in self._lines:
                if line.startswith("event: "):
                    event = line.removeprefix("event: ")
                elif line.startswith("data: ") and kind in ("", event):
                    return event, json.loads(line.removeprefix("data: "))
        raise AssertionError("the stream has ended")

    async def fragment(self, name: str) -> str:
        """The next rendering of this part of the page."""
        while True:
            _, data = await self.next("fragment")
            if data["name"] == name:
                return str(data["html"])

    async def has(self, name: str, html: str) -> None:
        """Returns when this is in a rendering of this part; other things may change before."""
        while html not in await self.fragment(name):
            pass


@asynccontextmanager
async def opened(url: str, path: str) -> AsyncGenerator[Events]:
    """A page that is open in a browser."""
    async with (
        httpx.AsyncClient(timeout=30) as http,
        http.stream("GET", f"{url}/live", params={"view": path}) as answer,
    ):
        assert answer.status_code == 200
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        yield Events(answer.aiter_lines())


async def test_what_happens_to_a_queue_is_sent_to_its_open_page(shop: Shop) -> None:
    async with serving(dashboard(shop.app)) as url, opened(url, "/queues/mail") as events:
        assert '<div class="value">2</div>' in await events.fragment("body")
        await shop.welcome.delay(7)
        await events.has("body", '<div class="value">3</div>')


async def test_a_stream_of_an_unknown_queue_is_open_and_silent(shop: Shop) -> None:
    async with serving(dashboard(shop.app)) as url, httpx.AsyncClient() as http:
        assert (await http.get(f"{url}/live?view=/nosuch")).status_code == 404


async def test_when_the_server_ends_its_streams_end(shop: Shop) -> None:
    made = dashboard(shop.app)
    async with serving(made) as url, opened(url, "/queues") as events:
        await events.fragment("table")
        await made.close()
        assert (await events.next("end"))[0] == "end"


class Rendering:
    """Renders pages for a `Live`, and counts."""

    def __init__(self) -> None:
        self.fragments: Mapping[str, str] = {"table": "<p>1</p>"}
        self.rendered = 0
        self.error: Exception | None = None

    async def __call__(self, view: View, user: User) -> Mapping[str, str]:
        self.rendered += 1
        if self.error is not None:
            raise self.error
        return self.fragments


async def test_a_page_is_rendered_once_for_all_who_have_it_open(app: App) -> None:
    render = Rendering()
    live = Live(Looks(app), render)
    streams = [live.stream(QUEUES, ADA) for _ in range(20)]
    for stream in streams:
        await anext(stream)  # how long to wait before connecting again
    looked = [await anext(stream) for stream in streams]
    assert live.viewers == 20
    assert render.rendered == 1
    assert all("<p>1</p>" in text for text in looked)
    for stream in streams:
        await stream.aclose()
    assert live.viewers == 0
    await live.close()


async def test_a_part_is_sent_again_only_when_it_has_changed() -> None:
    viewer = Viewer(QUEUES, ADA)
    async with aclosing(viewer.lines()) as lines:
        await anext(lines)
        time = '<p>1 <time datetime="2026-01-01" data-ago title="t">{}</time></p>'
        for text in ("1", "1", "2"):  # browsers count on by themselves
            viewer.show([Event.part("table", time.format(text)), Event.part("nav", "<nav></nav>")])
        viewer.show([Event.part("table", "<p>2</p>"), Event.part("nav", "<nav></nav>")])
        sent = [await anext(lines), await anext(lines)]
        assert sent == [
            'event: fragment\ndata: {"name": "table", "html": "<p>2</p>"}\n\n',
            'event: fragment\ndata: {"name": "nav", "html": "<nav></nav>"}\n\n',
        ]


async def test_a_page_that_fails_does_not_stop_the_others(app: App) -> None:
    class Selective(Rendering):
        async def __call__(self, view: View, user: User) -> Mapping[str, str]:
            if view.address == "/broken":
                raise KeyError("no such thing")
            return await super().__call__(view, user)

    live = Live(Looks(app), Selective())
    broken, fine = live.stream(View("/broken", RIGHTS), ADA), live.stream(QUEUES, ADA)
    await anext(broken)
    await anext(fine)
    assert "<p>1</p>" in await anext(fine)
    await broken.aclose()
    await fine.aclose()
    await live.close()


async def test_a_slow_page_does_not_keep_the_others_waiting(app: App) -> None:
    held = asyncio.Event()

    class Selective(Rendering):
        async def __call__(self, view: View, user: User) -> Mapping[str, str]:
            if view.address == "/slow":
                await held.wait()
            return await super().__call__(view, user)

    live = Live(Looks(app), Selective())
    slow, fine = live.stream(View("/slow", RIGHTS), ADA), live.stream(QUEUES, ADA)
    await anext(slow)
    await anext(fine)
    async with asyncio.timeout(10):
        assert "<p>1</p>" in await anext(fine)
    held.set()
    await slow.aclose()
    await fine.aclose()
    await live.close()


async def test_a_look_that_fails_in_another_way_does_not_end_the_live_pages(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fennelq.manage.watch.SHORTEST", 0.01)
    looks, broken = Looks(app), [True]
    talk = watch.look_at

    def damaged(given: App) -> Any:
        if broken[0]:
            raise KeyError("odd")
        return talk(given)

    monkeypatch.setattr(watch, "look_at", damaged)
    live = Live(looks, Rendering())
    stream = live.stream(QUEUES, ADA)
    await anext(stream)
    async with asyncio.timeout(10):
        assert "event: away" in await anext(stream)
        broken[0] = False
        while "<p>1</p>" not in await anext(stream):
            pass
    await stream.aclose()
    await live.close()


async def test_nothing_is_asked_when_the_last_page_was_closed(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fennelq.manage.watch.LINGER", 0.1)
    async with Browser(shop.app) as pages:
        stream = pages.dashboard.pages[0].live.stream(QUEUES, ADA)
        await anext(stream)
        await anext(stream)
        await stream.aclose()
        await aeventually(lambda: not any(task.get_name() == "watch" for task in asyncio.all_tasks()))


async def test_beyond_two_hundred_pages_are_not_live(shop: Shop) -> None:
    async with Browser(shop.app) as pages:
        live = pages.dashboard.pages[0].live
        streams = [live.stream(QUEUES, ADA) for _ in range(MOST_VIEWERS)]
        for stream in streams:
            await anext(stream)
        answer = await pages.get("/live?view=/queues")
        assert (answer.status_code, answer.text) == (503, "not live: 200 pages are open already")
        await streams.pop().aclose()
        assert not live.is_full
        for stream in streams:
            await stream.aclose()


async def test_a_page_does_not_wait_for_the_acknowledgement_of_its_headers(redis_url: str) -> None:
    with bound("127.0.0.1", 0) as listening:
        async with asyncio.timeout(30):
            _, writer = await asyncio.open_connection(*listening.getsockname())
            accepted, _ = await asyncio.to_thread(listening.accept)
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        accepted.close()
        writer.close()
