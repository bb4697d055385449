"""`fennelq web --redis-url …`: the dashboards of all apps of a Redis, and a page on which a user chooses one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from fennelq import clock
from fennelq.app import App
from fennelq.broker import verbs
from fennelq.broker.talk import ask
from fennelq.broker.trouble import ReplyError
from fennelq.broker.verbs.queues import KnownApps
from fennelq.errors import BrokerUnavailable
from fennelq.web import looks
from fennelq.web.answering import Answering
from fennelq.web.application import Dashboard, guarded, unrouted
from fennelq.web.gate import Gate
from fennelq.web.pages import assets
from fennelq.web.site import Site, Switch
from fennelq.web.table import PUBLIC, Row
from fennelq.web.visit import Moved, NotFound, Page, Visit, link, name_of, segment

FRESH: Final = 2.0
"""Seconds for which the list of apps is not read again."""
_SWITCHES: Final = 20
"""Apps in the navigation. The page has all."""


class Known:
    """What is known of the apps of a Redis."""

    def __init__(self, app: App) -> None:
        """`app` has no jobs: the list is read through it."""
        self.app, self._found, self._read_at = app, KnownApps([]), -FRESH
        self._reading = asyncio.Lock()

    async def now(self) -> KnownApps:
        """The apps, at most some seconds ago. Raises BrokerUnavailable or ReplyError, and TimeoutError."""
        async with asyncio.timeout(looks.PATIENCE), self._reading:
            if clock.monotonic() - self._read_at >= FRESH:
                self._found = await self.app.client.converse(ask(verbs.queues.known_apps()))
                self._read_at = clock.monotonic()
        return self._found

    def switches(self) -> Sequence[Switch]:
        """The ways from the first page of one app to those of the others."""
        if len(names := self._found.names) < 2:
            return []
        ways = [Switch(name, f"../{segment(name)}/") for name in names[:_SWITCHES]]
        return [*ways, Switch("All apps", "../")] if len(names) > _SWITCHES else ways


class Choice:
    """An ASGI application: a page on which a user chooses an app, and the pages of each app below its name."""

    def __init__(self, redis_url: str, gate: Gate) -> None:
        self._url, self._gate = redis_url, gate
        self._known = Known(App("fennelq", namespace="fennelq", redis_url=redis_url))
        self._opened: dict[str, Dashboard] = {}
        """The dashboards of the apps that a user has chosen."""
        rows = (
            Row("GET", "/static/{version}/{file}", PUBLIC, assets.show),
            Row("GET", "/", "see", self._show),
        )
        self._page = Answering(Site(self._known.app, looks.Looks(self._known.app)), gate, rows)
        self._inner = Starlette(
            routes=[*self._page.routes, Mount("/{app}", app=self._answer_for)],
            lifespan=self._lifespan,
            exception_handlers={HTTPException: self._unrouted},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
            return
        await self._inner(scope, receive, guarded(send))

    @property
    def redis(self) -> str:
        """The Redis, without its password."""
        return self._known.app.address.shown

    def end_streams(self) -> None:
        """End the streams and the waits. Other requests go on."""
        for one in self._opened.values():
            one.end_streams()

    async def close(self) -> None:
        """End everything that is under way."""
        for one in self._opened.values():
            await one.close()
        await self._page.site.close()

    async def _show(self, _: Visit) -> Page | Moved:
        """The apps. There is no choice when there is only one."""
        problem, found = "", KnownApps([])
        try:
            found = await self._known.now()
        except (ReplyError, BrokerUnavailable) as error:
            if isinstance(error, BrokerUnavailable) and error.retriable:
                raise
            problem = str(error)
        if len(found.names) == 1:
            return Moved(f"{link(found.names[0])}/")
        values = {"found": found, "problem": problem, "redis": self.redis}
        return Page(template="apps.html", title="Apps", section=None, values=values)

    async def _answer_for(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for the pages of an app."""
        name = name_of(str(scope["path_params"]["app"]))
        answer: ASGIApp
        try:
            answer = self._opened.get(name) or await self._open(name)
        except Exception as error:
            answer = await unrouted(self._page, self._gate, Request(scope, receive), error)
        await answer(scope, receive, send)

    async def _open(self, name: str) -> Dashboard:
        """The dashboard of an app of the list. Raises NotFound: a name in an address must not make this process look at
        what is no app."""
        if name not in (await self._known.now()).names:
            raise NotFound(f"No app {name[:100]} has used this Redis.")
        app = App(name, namespace=name, redis_url=self._url)
        return self._opened.setdefault(name, Dashboard([app], self._gate, self._known.switches))

    async def _unrouted(self, request: Request, error: Exception) -> Response:
        """A path or a method that no row has."""
        return await unrouted(self._page, self._gate, request, error)

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await self.close()
