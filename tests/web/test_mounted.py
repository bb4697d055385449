"""The dashboard inside of another application, which has its own users, lifespan and headers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse
from starlette.routing import Mount, Route

from fennelq import App
from fennelq.web import User, dashboard
from tests.web.kit import SAME_SITE, Shop, serving

pytestmark = pytest.mark.audit(unfinished=True)


async def test_it_is_mounted_twice_in_an_application_with_its_own_users_lifespan_and_headers(
    shop: Shop, redis_url: str
) -> None:
    """The application that mounts it signs users in by its own middleware, and has a lifespan of its own."""
    blog, happened = App("blog", redis_url=redis_url), list[str]()

    class SignIn(BaseHTTPMiddleware):
        async def dispatch(self, request: Request, call_next: Any) -> Any:
            request.state.name = request.cookies.get("session")
            answer = await call_next(request)
            answer.headers["X-Ours"] = "1"
            return answer

    def user_of(request: HTTPConnection) -> User | None:
        return User(request.state.name) if request.state.name else None

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        happened.append("begun")
        yield
        happened.append("ended")

    def ours(_: Request) -> HTMLResponse:
        return HTMLResponse("<style>p { color: red }</style><p>ours")

    first, second = dashboard(shop.app, auth=user_of), dashboard(blog, auth=user_of)
    web = Starlette(
        routes=[Route("/", ours), Mount("/ops/jobs", first), Mount("/blog/jobs", second)],
        middleware=[Middleware(SignIn)],
        lifespan=lifespan,
    )
    before = asyncio.all_tasks()
    async with serving(web) as url, httpx.AsyncClient(base_url=url) as http:
        answer = await http.get("/")
        assert "Content-Security-Policy" not in answer.headers
        assert not [task for task in asyncio.all_tasks() - before if "watch" in task.get_name()]
        assert (await http.get("/ops/jobs/")).status_code == 401
        http.cookies.set("session", "ada")
        for path, name in (("/ops/jobs/", "shop"), ("/blog/jobs/", "blog")):
            answer = await http.get(path)
            assert (answer.status_code, answer.headers["X-Ours"]) == (200, "1")
            assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
            assert f"{name}, overview" in answer.text
        answer = await http.get("/ops/jobs/queues/mail")
        assert answer.status_code == 200
        assert (await http.get("/blog/jobs/queues/mail")).status_code == 404
        answer = await http.post("/ops/jobs/queues/mail/pause", data={"why": "x"}, headers=SAME_SITE)
        assert answer.status_code == 303
        assert happened == ["begun"]
    assert happened == ["begun", "ended"]
    (entry,) = await shop.app.audit.list()
    assert entry.who.startswith("ada@")
    await first.close()
    await second.close()
    await blog.close()
