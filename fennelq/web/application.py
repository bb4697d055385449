"""The dashboard as an ASGI application, for a process of its own or inside of another application."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fennelq.errors import ConfigurationError
from fennelq.web.answering import Answering
from fennelq.web.auth import Auth
from fennelq.web.gate import HEADERS, Gate
from fennelq.web.http.application import Api
from fennelq.web.http.paths import AT_ROOT, PREFIX
from fennelq.web.looks import Looks
from fennelq.web.mounting import below
from fennelq.web.routes import ROUTES
from fennelq.web.site import Site, Switch
from fennelq.web.users import ANONYMOUS
from fennelq.web.visit import NotFound, segment

if TYPE_CHECKING:
    from fennelq.app import App


class Dashboard:
    """An ASGI application: the pages of one or several apps."""

    def __init__(
        self, apps: Sequence[App], gate: Gate, switches: Callable[[], Sequence[Switch]] | None = None
    ) -> None:
        """`switches` has the ways to apps besides these; without it, they are the ways between these."""
        self._gate = gate
        ways = (
            [Switch(one.namespace, f"../{segment(one.namespace)}/") for one in apps] if len(apps) > 1 else []
        )
        self.pages = [
            Answering(Site(app, Looks(app), switches or (lambda: ways)), gate, ROUTES) for app in apps
        ]
        """The pages of each app."""
        self.apis = [Api(one.site, gate) for one in self.pages]
        """The HTTP API of each app."""
        first = self.pages[0]
        routes: list[BaseRoute] = [*_api_routes(self.apis[0]), *first.routes]
        if len(apps) > 1:
            mounts = zip(apps, self.apis, self.pages, strict=True)
            routes = [
                Mount(f"/{segment(app.namespace)}", routes=[*_api_routes(made), *one.routes])
                for app, made, one in mounts
            ]
            routes.append(Route("/", self._first))
        self._inner = Starlette(
            routes=routes,
            lifespan=self._lifespan,
            exception_handlers={HTTPException: self._unrouted},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
            return
        await self._inner(scope, receive, guarded(send))

    def below(self, prefix: str, otherwise: ASGIApp) -> ASGIApp:
        """An application that answers paths below this prefix, and passes all others on: for frameworks that cannot
        mount an ASGI application, or change its paths. `web = jobs.below("/jobs", django)`."""
        # The links of the first page are relative to a path that ends with a slash.
        location = f"{prefix.strip('/').rpartition('/')[2]}/"
        return below(prefix, self, otherwise, Response(status_code=307, headers={"Location": location}))

    def end_streams(self) -> None:
        """End the streams and the waits. Other requests go on."""
        for made in self.apis:
            made.end_streams()
        for one in self.pages:
            one.live.end()

    async def close(self) -> None:
        """End the streams, the looking and the work that is under way."""
        for made in self.apis:
            await made.close()
        for one in self.pages:
            await one.live.close()
            await one.site.close()

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncGenerator[None]:
        """Without one, as in an application that mounts this, everything begins with the first request."""
        try:
            yield
        finally:
            await self.close()

    async def _first(self, request: Request) -> Response:
        """The way from the dashboard of several apps to that of the first one."""
        first = self.pages[0]
        try:
            self._gate.check_site(request, request.method)
            await self._gate.user_of(request, "see")
        except Exception as error:
            return await first.problem(request, ANONYMOUS, error)
        location = f"./{segment(first.site.app.namespace)}/"
        return Response(status_code=307, headers={"Location": location})

    async def _unrouted(self, request: Request, error: Exception) -> Response:
        """A path that is none of the table, or a method that its row does not have."""
        return await unrouted(self.pages[0], self._gate, request, error)


async def unrouted(answering: Answering, gate: Gate, request: Request, error: Exception) -> Response:
    """The page about a request that no route answers. Only a user who may see pages learns that."""
    user = ANONYMOUS
    try:
        gate.check_site(request, request.method)
        user = await gate.user_of(request, "see")
        if isinstance(error, HTTPException) and error.status_code == 404:
            raise NotFound("There is no such page.")
    except Exception as reason:
        error = reason
    return await answering.problem(request, user, error)


def guarded(send: Send) -> Send:
    """Adds the headers that every answer has."""

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return with_headers


def dashboard(
    app: App,
    *others: App,
    auth: Auth | None = None,
    hosts: Collection[str] = (),
    read_only: bool = False,
) -> Dashboard:
    """The pages of an app, or of several, as an ASGI application: `web.mount("/jobs", dashboard(app, auth=…))`.

    `auth` is `Basic(…)`, `Token(…)`, `Proxy(…)`, or a function of the request that returns a User or None. Without it,
    only this machine is answered. `hosts` are the names of the server, such as `jobs.example.com`: a request that names
    another one is refused. With `read_only`, no user can change anything.
    """
    apps = (app, *others)
    names = [one.namespace for one in apps]
    if len({*names}) < len(names):
        raise ConfigurationError(
            f"two of the apps have one namespace, so they are one app: {', '.join(names)}"
        )
    if isinstance(hosts, str):
        raise ConfigurationError(f"hosts is a list: write hosts=[{hosts!r}]")
    return Dashboard(apps, Gate(auth, hosts, read_only))


def _api_routes(made: Api) -> list[BaseRoute]:
    """The paths of the API. It finds the rows of its own table."""
    return [
        *(Route(path, made) for path in AT_ROOT),
        Route(f"{PREFIX}/{{rest:path}}", made),
    ]
