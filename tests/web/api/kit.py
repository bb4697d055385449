"""A client of the HTTP API in the process of the test, and an app with tasks to send."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from types import TracebackType
from typing import Any, Final, Self

import httpx
from pydantic import BaseModel
from starlette.requests import HTTPConnection

from fennelq import App, Secret, current_job
from fennelq.web import User
from fennelq.web.http.application import api

JSON: Final = {"Content-Type": "application/json"}


class Line(BaseModel):
    """A line of an order."""

    item: str
    count: int = 1


def declare(app: App) -> None:
    """The tasks of the shop."""

    @app.task(name="shop:welcome", queue="mail")
    async def welcome(user_id: int, greeting: str = "hello") -> str:
        return f"{greeting} {user_id}"

    @app.task(name="shop:order", queue="orders", retries=0)
    async def order(lines: list[Line], day: date, card: Secret[str] | None = None) -> int:
        return sum(line.count for line in lines)

    @app.task(name="shop:fail", queue="orders", retries=0)
    async def fail(text: str = "broken") -> None:
        raise RuntimeError(text)

    @app.task(name="shop:count", queue="orders")
    async def count(to: int) -> int:
        job = current_job()
        for done in range(to):
            await job.progress(done + 1, to)
        return to

    @app.task(name="reports:daily", queue="reports")
    async def daily() -> None: ...


class Program:
    """A program that calls the API."""

    def __init__(self, app: App, **options: Any) -> None:
        self.api = api(app, **options)
        transport = httpx.ASGITransport(self.api, client=("127.0.0.1", 50000))
        self.http = httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=30)

    async def call(
        self, method: str, path: str, body: Any = None, *, user: str | None = None, **headers: str
    ) -> httpx.Response:
        """Call an operation, below /api/v1."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if user:
            given["X-User"] = user
        if body is None and method in ("POST", "PUT"):
            given = JSON | given
        return await self.http.request(method, f"/api/v1{path}", json=body, headers=given)

    async def post(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        """Call an operation that changes something."""
        return await self.call("POST", path, body, **more)

    async def get(self, path: str, **more: Any) -> httpx.Response:
        """Ask for something."""
        return await self.call("GET", path, **more)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.http.aclose()
        await self.api.close()


def reports(_: HTTPConnection) -> User:
    """Signs in a program that may send the tasks of reports only."""
    return User("reports", {"send:reports:*"})


def problem_in(answer: httpx.Response) -> Mapping[str, Any]:
    """The problem that an answer is."""
    assert answer.headers["Content-Type"] == "application/problem+json", answer.text
    found: dict[str, Any] = answer.json()
    assert found["status"] == answer.status_code
    assert found["type"].startswith("urn:fennelq:")
    assert found["title"]
    assert found["detail"]
    return found
