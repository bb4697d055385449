"""A client of the dashboard in the process of the test, and an app with something to look at."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from html import unescape
from types import TracebackType
from typing import Any, Final, Self

import httpx
import uvicorn
from redis import Redis
from starlette.requests import HTTPConnection

from fennelq import App, TaskFailed
from fennelq.web import RIGHTS, User, dashboard
from fennelq.web.auth import Refused
from fennelq.web.ports import bound
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.kit.workers import running

HOST: Final = "http://localhost"
SAME_SITE: Final = {"Sec-Fetch-Site": "same-origin"}
_TAGS = re.compile(r"<[^>]*>")


class Shop:
    """Jobs in all states: 3 dead of one cause, 2 waiting, 1 scheduled, and a paused queue with 4."""

    def __init__(self, app: App, server: Server) -> None:
        self.app, self.server = app, server
        self.dead: list[str] = []
        self.charged: list[int] = []
        self.has_money = False
        self.scheduled = self.waiting = ""

    async def fill(self) -> None:
        """Make them."""

        @self.app.task(name="shop:charge", queue="billing", retries=0)
        async def charge(order: int, token: str = "") -> None:
            if not self.has_money:
                raise RuntimeError(f"no money for order {order}")
            self.charged.append(order)

        @self.app.task(name="shop:welcome", queue="mail")
        async def welcome(user_id: int, greeting: str = "hello") -> str:
            return f"{greeting} {user_id}"

        self.charge, self.welcome = charge, welcome
        async with running(self.app):
            jobs = await self.app.enqueue([charge.job(order, "sesame") for order in (1, 2, 3)])
            self.dead = [job.id for job in jobs]
            for job in jobs:
                with suppress(TaskFailed):
                    await job.get(30)
        self.waiting = (await welcome.delay(42)).id
        await welcome.delay(43)
        self.scheduled = (await welcome.options(delay=3600).delay(44)).id
        await self._later()
        await self.app.enqueue([welcome.options(queue="search.index").job(n) for n in range(4)])
        await self.app.queues.pause("search.index", why="reindexing by hand", who="oncall")

    async def die_in(self, queue: str) -> None:
        """The waiting jobs of a queue die."""
        dead = await self.app.dlq.count(queue=queue)
        async with running(self.app, queues=queue):
            await aeventually(lambda: self._has_more_dead(queue, dead))

    async def _has_more_dead(self, queue: str, dead: int) -> bool:
        return await self.app.dlq.count(queue=queue) > dead

    async def _later(self) -> None:
        """What begins to wait from now on has waited for less time than everything before: the pages sort by it, and
        Redis counts in milliseconds."""
        with self.server.client() as redis:
            before = milliseconds(redis)
            await aeventually(lambda: milliseconds(redis) > before)

    async def group(self) -> str:
        """The fingerprint of the dead jobs."""
        (group,) = await self.app.dlq.groups()
        return group.fingerprint


def milliseconds(redis: Redis) -> int:
    """The clock of a server."""
    seconds, micros = redis.time()
    return int(seconds) * 1000 + int(micros) // 1000


class Browser:
    """The pages of an app, as a browser on this machine asks for them."""

    def __init__(self, *apps: App, root_path: str = "", client: str = "127.0.0.1", **options: Any) -> None:
        self.dashboard = dashboard(*apps, **options)
        transport = httpx.ASGITransport(self.dashboard, client=(client, 50000), root_path=root_path)
        self.http = httpx.AsyncClient(transport=transport, base_url=f"{HOST}{root_path}/")

    async def get(self, path: str, *, user: str | None = None, **headers: str) -> httpx.Response:
        """Ask for a page."""
        return await self.http.get(path.removeprefix("/"), headers=_headers(user, headers))

    async def post(
        self, path: str, form: Mapping[str, Any] | None = None, *, user: str | None = None, **headers: str
    ) -> httpx.Response:
        """Send a form, as the browser does from a page of the dashboard."""
        given = headers or SAME_SITE
        return await self.http.post(path.removeprefix("/"), data=form or {}, headers=_headers(user, given))

    async def text(self, path: str, *, user: str | None = None) -> str:
        """The text of a page that is there."""
        answer = await self.get(path, user=user)
        assert answer.status_code == 200, (path, answer.status_code, text_of(answer.text))
        return text_of(answer.text)

    async def done(self, path: str, form: Mapping[str, Any] | None = None, *, user: str | None = None) -> str:
        """Send a form, and follow to the page that tells the outcome; returns its text."""
        answer = await self.post(path, form, user=user)
        assert answer.status_code == 303, (path, answer.status_code, text_of(answer.text))
        followed = await self.http.get(
            answer.url.join(answer.headers["Location"]), headers=_headers(user, {})
        )
        assert followed.status_code == 200, (answer.headers["Location"], text_of(followed.text))
        return text_of(followed.text)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.http.aclose()
        await self.dashboard.close()


def text_of(html: str) -> str:
    """What a reader sees of a page, on one line."""
    return " ".join(unescape(_TAGS.sub(" ", html)).split())


def main_of(html: str) -> str:
    """The page without its frame."""
    return html[html.index("<main") : html.index("</main>")]


def hidden_fields(html: str) -> dict[str, str]:
    """The hidden fields of a form."""
    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', html)
    return {name: unescape(value) for name, value in found}


def by_name(request: HTTPConnection) -> User | None:
    """Signs in the user that the header X-User names: `all`, `wrong`, or a user with the rights in the name."""
    name = request.headers.get("X-User")
    if name == "wrong":
        raise Refused(name)
    if name is None:
        return None
    return User(name, RIGHTS if name == "all" else [right for right in name.split("+") if right in RIGHTS])


def _headers(user: str | None, headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()} | (
        {"X-User": user} if user else {}
    )


@asynccontextmanager
async def serving(application: Any) -> AsyncGenerator[str]:
    """A real server for an application, on a free port; yields its URL. For streams and browsers."""
    listening = bound("127.0.0.1", 0)
    config = uvicorn.Config(
        application, log_config=None, lifespan="on", proxy_headers=False, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve([listening]))
    try:
        await aeventually(lambda: server.started)
        yield f"http://localhost:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        listening.close()
