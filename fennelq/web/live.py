"""Pages that update themselves: after each look, every page that a viewer has open is rendered once, and its parts are
sent to all who have it open, if they have changed. However many look, Redis is asked the same.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Final, NamedTuple

from fennelq import log
from fennelq.errors import BrokerUnavailable
from fennelq.web.looks import Away, Looks
from fennelq.web.users import User
from fennelq.web.visit import NotFound

_logger = log.get("fennelq.web")

MOST_VIEWERS: Final = 200
"""Then further pages do not update themselves."""
KEEP_ALIVE: Final = 15.0
"""Seconds between two lines, so that a proxy does not close the connection, and a closed one is noticed."""
_TIMES: Final = re.compile(r"<time [^>]*>[^<]*</time>|<i data-age[^>]*>[^<]*</i>")
"""Browsers count these on by themselves, so a change of them alone is not sent."""


class View(NamedTuple):
    """A page as a user sees it. Users with the same rights see the same."""

    address: str
    """Path and query."""
    may: frozenset[str]


Fragments = Mapping[str, str]
Render = Callable[[View, User], Awaitable[Fragments]]


class Event(NamedTuple):
    """What is sent to viewers. It is made once for all of them: with 200, most of the work would be theirs."""

    key: str
    """It is sent instead of what waits under the same key."""
    text: str
    bare: str = ""
    """A part of a page without its times."""

    @classmethod
    def of(cls, kind: str, data: Mapping[str, object]) -> Event:
        """An event about the page as a whole."""
        return cls(f"event {kind}", _text(kind, data))

    @classmethod
    def part(cls, name: str, html: str) -> Event:
        """This part of the page looks like this now."""
        return cls(name, _text("fragment", {"name": name, "html": html}), _TIMES.sub("", html))


def _text(kind: str, data: Mapping[str, object]) -> str:
    return f"event: {kind}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"


_END: Final = Event.of("end", {})


class Viewer:
    """A viewer of a page."""

    def __init__(self, view: View, user: User) -> None:
        self.view, self.user = view, user
        self._sent: dict[str, str] = {}
        self._waiting: dict[str, Event] = {}
        """What was not sent yet. Of a slow reader, it has the newest state only."""
        self._news = asyncio.Event()

    def show(self, parts: Iterable[Event]) -> None:
        """The page looks like this now."""
        for part in parts:
            if self._sent.get(part.key) != part.bare:
                self._sent[part.key] = part.bare
                self.tell(part)

    def tell(self, event: Event) -> None:
        """Send this, instead of what waits under the same key."""
        self._waiting[event.key] = event
        self._news.set()

    def end(self) -> None:
        """End the stream: the server stops."""
        self.tell(_END)

    async def lines(self) -> AsyncGenerator[str]:
        """The stream of events."""
        yield "retry: 3000\n\n"
        while True:
            try:
                async with asyncio.timeout(KEEP_ALIVE):
                    await self._news.wait()
            except TimeoutError:
                yield ":\n\n"
                continue
            self._news.clear()
            waiting, self._waiting = self._waiting, {}
            for event in waiting.values():
                yield event.text
                if event is _END:
                    return


class Live:
    """All who have a page open, and the task that renders for them. It runs as long as there are some."""

    def __init__(self, looks: Looks, render: Render) -> None:
        self._looks, self._render = looks, render
        self._viewers: dict[View, set[Viewer]] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def viewers(self) -> int:
        """How many there are."""
        return sum(map(len, self._viewers.values()))

    @property
    def is_full(self) -> bool:
        """Whether there are as many as there may be."""
        return self.viewers >= MOST_VIEWERS

    async def stream(self, view: View, user: User) -> AsyncGenerator[str]:
        """The events of a page, until its reader leaves."""
        viewer = Viewer(view, user)
        self._viewers.setdefault(view, set()).add(viewer)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="live pages")
        try:
            async for line in viewer.lines():
                yield line
        finally:
            self._leave(viewer)

    def end(self) -> None:
        """End all streams."""
        for viewers in self._viewers.values():
            for viewer in viewers:
                viewer.end()

    async def close(self) -> None:
        """End all streams, and the rendering."""
        self.end()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _leave(self, viewer: Viewer) -> None:
        others = self._viewers.get(viewer.view, set())
        others.discard(viewer)
        if not others:
            self._viewers.pop(viewer.view, None)
        if not self._viewers and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        while self._viewers:
            try:
                async with aclosing(self._looks.watch.follow()) as snapshots:
                    async for snapshot in snapshots:
                        self._looks.seen(snapshot)
                        await self._show()
            except Exception as error:  # without a look, pages wait for the next one
                if not isinstance(error, BrokerUnavailable):
                    _logger.error("look_failed", error=repr(error))
                away = self._looks.lost(error)
                self._tell_all(Event.of("away", {"since": away.since.isoformat(), "why": away.why}))

    async def _show(self) -> None:
        # Side by side: a page that waits for something must not keep the others waiting.
        await asyncio.gather(*(self._show_view(view) for view in [*self._viewers]))

    async def _show_view(self, view: View) -> None:
        try:
            found = await self._render(view, next(iter(self._viewers[view])).user)
        except (Away, BrokerUnavailable, TimeoutError, NotFound):
            return
        except Exception as error:  # a page that cannot be rendered must not stop the others
            _logger.error("page_failed", page=view.address, error=repr(error))
            return
        parts = [Event.part(name, html) for name, html in found.items()]
        look = Event.of("look", {"interval": round(self._interval, 1), "now": self._now})
        for viewer in self._viewers.get(view, ()):
            viewer.show(parts)
            viewer.tell(look)

    @property
    def _interval(self) -> float:
        return self._looks.last.snapshot.interval if self._looks.last else 1.0

    @property
    def _now(self) -> float:
        return self._looks.last.now.timestamp() if self._looks.last else 0.0

    def _tell_all(self, event: Event) -> None:
        for viewers in self._viewers.values():
            for viewer in viewers:
                viewer.tell(event)
