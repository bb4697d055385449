"""Answers requests: passes each through the gate to its row of the table, and makes a response of what that returns."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from fennelq.errors import BrokerUnavailable
from fennelq.manage.server import now
from fennelq.web.gate import Gate, Rejected, is_same_site
from fennelq.web.http.bodies import body_of, media_of, query_of, value_of
from fennelq.web.http.call import Answer, Call
from fennelq.web.http.office import Office
from fennelq.web.http.paths import Paths, path_of
from fennelq.web.http.problems import NotBegun, problem_of
from fennelq.web.http.table import ANY_USER, QUICK, Route
from fennelq.web.http.writing import written
from fennelq.web.looks import PATIENCE
from fennelq.web.table import PUBLIC

if TYPE_CHECKING:
    from fennelq.web.users import User

_NO_STORE: Final = {"Cache-Control": "no-store"}
_PLAIN: Final = ("GET", "HEAD")
_PREFLIGHTED: Final = ("PUT", "DELETE")
"""Methods for which a browser asks first, when a page of another site sends them. The API answers no such question."""
_SIMPLE: Final = ("", "text/plain", "multipart/form-data", "application/x-www-form-urlencoded")
"""Types of bodies that a page may send to another site without asking."""


class Answering:
    """Answers the requests for one app."""

    def __init__(self, office: Office, gate: Gate, rows: Sequence[Route]) -> None:
        self.office, self._gate = office, gate
        self._paths = Paths(rows)

    async def answer(self, request: Request) -> Response:
        """The response to a request."""
        row: Route | None = None
        try:
            self._check_site(request)
            row, names, user = await self._admitted(request)
            self.office.rates.check(user.name)
            body = await body_of(request, row) if row.method != "GET" else b""
            value = value_of(row, body) if row.body is not None and row.body is not list else None
            call = Call(
                site=self.office.site,
                office=self.office,
                user=user,
                address=request.client.host if request.client else "",
                path=request.url.path,
                names=names,
                query={},
                body=body,
                form=value if isinstance(value, BaseModel) else None,
                json=value,
                asked=query_of(request, row.query),
                request=request,
            )
            if row.patience > QUICK and not row.is_timed:
                await self._check_redis(call)
            if row.is_timed:
                answer = await row.handler(call)
            else:
                async with asyncio.timeout(row.patience):
                    answer = await row.handler(call)
        except Exception as error:
            return problem_of(error, changing=row is not None and row.changes).response
        if row.changes and row.right != "send":
            self.office.site.looks.changed()
        return _response(answer) if isinstance(answer, Answer) else answer

    async def _check_redis(self, call: Call) -> None:
        """Raises NotBegun when Redis is away: a long operation must not hide that for long."""
        try:
            async with asyncio.timeout(PATIENCE):
                await call.app.client.converse(now())
        except (TimeoutError, BrokerUnavailable) as error:
            if isinstance(error, BrokerUnavailable) and not error.retriable:
                raise
            raise NotBegun from error

    async def _admitted(self, request: Request) -> tuple[Route, dict[str, str], User]:
        """The row, the names in the path, and the user, who has the right of the row. A user who has not signed in does
        not learn which paths there are."""
        path = path_of(request.scope)
        method = "GET" if request.method == "HEAD" else request.method
        try:
            row, names = self._paths.find(method, path)
        except Exception:
            await self._gate.user_of(request, PUBLIC)
            raise
        user = await self._gate.user_of(request, PUBLIC if row.right == ANY_USER else row.right)
        return row, dict(names), user

    def _check_site(self, request: Request) -> None:
        """Raises Rejected when the request names another host, or comes from a page of another site. A browser asks
        first before it sends JSON to another site, and is refused."""
        self._gate.check_host(request)
        if request.method in _PLAIN or is_same_site(request, request.headers.get("host", "")):
            return
        named = "sec-fetch-site" in request.headers or "origin" in request.headers
        if not named and (request.method in _PREFLIGHTED or media_of(request) not in _SIMPLE):
            return
        raise Rejected(
            403,
            "Refused",
            "This request may come from a page of another site, so nothing was done. Programs send a token "
            "(Authorization: Bearer …), or the header Content-Type: application/json.",
        )


def _response(answer: Answer) -> Response:
    body = b"" if answer.status == 204 else written(answer.value)
    return Response(body, answer.status, {**_NO_STORE, **answer.headers}, "application/json")
