"""The HTTP API as an ASGI application, for a process of its own or inside of another application."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fennelq.errors import ConfigurationError
from fennelq.web.auth import Auth
from fennelq.web.gate import HEADERS, Gate
from fennelq.web.http.answering import Answering
from fennelq.web.http.office import Office
from fennelq.web.http.rates import Rates
from fennelq.web.http.routes import ROUTES
from fennelq.web.looks import Looks
from fennelq.web.mounting import below
from fennelq.web.site import Site

if TYPE_CHECKING:
    from fennelq.app import App

_HEADERS: Final = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


class Api:
    """An ASGI application: the HTTP API of an app."""

    def __init__(self, site: Site, gate: Gate, rate: float | None = None) -> None:
        self.office = Office(site, Rates(rate), ROUTES, adopts=not gate.read_only)
        self._answering = Answering(self.office, gate, ROUTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        response = await self._answering.answer(Request(scope, receive))
        await response(scope, receive, guarded)

    def below(self, prefix: str, otherwise: ASGIApp) -> ASGIApp:
        """An application that answers paths below this prefix, and passes all others on: for frameworks that cannot
        mount an ASGI application, or change its paths. `web = programs.below("/programs", django)`."""
        return below(prefix, self, otherwise)

    def end_streams(self) -> None:
        """End the waits and the streams. Other calls go on."""
        self.office.closing.set()

    async def close(self) -> None:
        """End the waits, the streams and the work that is under way."""
        await self.office.close()

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return
            await send({"type": "lifespan.startup.complete"})


def api(
    app: App,
    *,
    auth: Auth | None = None,
    hosts: Collection[str] = (),
    read_only: bool = False,
    rate: float | None = None,
) -> Api:
    """The HTTP API of an app as an ASGI application: `web.mount("/jobs", api(app, auth=Token("tokens")))`. Its paths
    begin with `/api/v1`; `/openapi.json` describes them, and `/metrics` is for Prometheus.

    `auth`, `hosts` and `read_only` are those of `dashboard`. `rate` is the number of calls that each user may make per
    second; None is any.
    """
    if isinstance(hosts, str):
        raise ConfigurationError(f"hosts is a list: write hosts=[{hosts!r}]")
    if rate is not None and not rate > 0:
        raise ConfigurationError(f"rate is a number of calls per second, more than 0, not {rate!r}")
    return Api(Site(app, Looks(app)), Gate(auth, hosts, read_only), rate)
