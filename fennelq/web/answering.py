"""Answers requests: passes each through the gate to its row of the table, and makes a response of what that returns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Match, Route
from starlette.types import Scope

from fennelq.errors import ConfigurationError
from fennelq.web import rendering
from fennelq.web.adopting import Adopting
from fennelq.web.frame import frame_of
from fennelq.web.gate import Gate, Rejected
from fennelq.web.live import Fragments, Live, View
from fennelq.web.looks import Away, Look
from fennelq.web.problems import problem_of
from fennelq.web.site import Site
from fennelq.web.streaming import Streamed, html_of
from fennelq.web.table import PUBLIC, Row
from fennelq.web.users import ANONYMOUS, User
from fennelq.web.visit import Moved, NotFound, Page, Visit, name_of

Endpoint = Callable[[Request], Awaitable[Response]]
_MAIN: Final = '<main id="main">'
_PAGES: Final = 50
"""Pages that are kept of a look."""
_FRESH: Final = 2.0
"""Seconds for which they are: a page says which moment it shows, and browsers count on from there."""
_AGAIN: Final = 5
"""Seconds after which a browser asks for a page again that could not be shown."""
_NO_STORE: Final = {"Cache-Control": "no-store"}


class Answering:
    """The pages of one app."""

    def __init__(self, site: Site, gate: Gate, rows: Sequence[Row]) -> None:
        self.site, self._gate = site, gate
        self._templates = rendering.environment()
        self._adopting = None if gate.read_only else Adopting(site)
        self.live = Live(site.looks, self._fragments)
        self.routes = [Route(row.path, self._endpoint(row), methods=[row.method]) for row in rows]
        self._pages = [(row, route) for row, route in zip(rows, self.routes, strict=True) if row.live]
        self.routes.append(Route("/live", self._stream, methods=["GET"]))

    # Pages

    def _endpoint(self, row: Row) -> Endpoint:
        async def answer(request: Request) -> Response:
            user = ANONYMOUS
            try:
                self._gate.check_site(request, request.method)
                if row.right != PUBLIC:
                    user = await self._gate.user_of(request, row.right)
                visit = await self._visit(request, row, user)
                return await self._answer(row, visit)
            except Exception as error:
                return await self.problem(request, user, error, row)

        return answer

    async def _visit(self, request: Request, row: Row, user: User) -> Visit:
        body = await _body(request, row) if row.method == "POST" else b""
        return Visit(
            site=self.site,
            user=user,
            address=request.client.host if request.client else "",
            path=path_in(request.scope) or "/",
            names={name: name_of(part) for name, part in request.path_params.items()},
            query=dict(request.query_params),
            body=body,
            form=_form(row.form, body) if row.form else None,
        )

    async def _answer(self, row: Row, visit: Visit) -> Response:
        if row.of_look and (known := await self._rendered(row, visit)) is not None:
            return HTMLResponse(known, headers=_NO_STORE)
        async with asyncio.timeout(row.patience):
            answer = await row.handler(visit)
        if isinstance(answer, Response):
            return answer
        if row.method == "POST":
            self.site.looks.changed()
        if isinstance(answer, Moved):
            return _moved(visit, answer)
        if isinstance(answer, Streamed):
            values = await self._values(visit, answer.page)
            pieces = html_of(answer, values, self._templates)
            headers = {**_NO_STORE, "X-Accel-Buffering": "no"}
            return StreamingResponse(pieces, media_type="text/html", headers=headers)
        values = await self._values(visit, answer, live=row.live)
        html = self._templates.get_template(answer.template).render(values)
        look = self.site.looks.last
        if look is not None and self._adopting is not None:
            self._adopting.look(look)
        if look is not None and row.method == "GET" and answer.status == 200:
            main = html[html.index(_MAIN) + len(_MAIN) : html.rindex("</main>")]
            self.site.memory.keep(_address(visit), visit.user.rights, main, look.now)
        if look is not None and row.of_look and len(look.pages) < _PAGES:
            look.pages[_same(look, visit)] = html
        return HTMLResponse(html, answer.status, _NO_STORE)

    async def _rendered(self, row: Row, visit: Visit) -> str | None:
        """The page, if a request has asked for it since the look."""
        async with asyncio.timeout(row.patience):
            look = await visit.look()
        return look.pages.get(_same(look, visit)) if look.age < _FRESH else None

    async def problem(
        self, request: Request, user: User, error: Exception, row: Row | None = None
    ) -> Response:
        """The page about a request that could not be answered."""
        problem = problem_of(error, changing=row is not None and row.method == "POST")
        path = path_in(request.scope) or "/"
        visit = Visit(
            site=self.site, user=user, address="", path=path, names={}, query=dict(request.query_params)
        )
        if problem.status >= 500 and problem.is_away:
            return await self._away(visit, error, is_live=row is not None and row.live)
        page = Page(template="problem.html", title=problem.title, values={"problem": problem})
        html = self._templates.get_template(page.template).render(await self._values(visit, page))
        return HTMLResponse(html, problem.status, {**_NO_STORE, **problem.headers})

    async def _away(self, visit: Visit, error: Exception, *, is_live: bool) -> Response:
        """The page while Redis is away: what was known last."""
        away = error if isinstance(error, Away) else self.site.looks.lost(error)
        found = self.site.memory.of(_address(visit), visit.user.rights)
        page = Page(
            template="away.html",
            title="Redis does not answer",
            values={"away": away, "remembered": found, "look": self.site.looks.last},
        )
        html = self._templates.get_template(page.template).render(
            await self._values(visit, page, live=is_live)
        )
        headers = {**_NO_STORE, "Retry-After": "1"}
        if not (is_live and found):  # nothing on it updates itself, so the browser asks again
            headers["Refresh"] = str(_AGAIN)
        return HTMLResponse(html, 503, headers)

    async def _values(self, visit: Visit, page: Page, *, live: bool = False) -> Mapping[str, Any]:
        frame = await frame_of(visit, page, live=live)
        assert not (both := frame.keys() & page.values.keys()), f"{page.template} hides {both} of the frame"
        return {**frame, **page.values}

    # Live

    async def _stream(self, request: Request) -> Response:
        address = request.query_params.get("view", "/")
        user = ANONYMOUS
        try:
            self._gate.check_site(request, request.method)
            user = await self._gate.user_of(request, "see")
            row, _ = self._page_at(address)
            if not user.can(row.right):
                raise NotFound("There is no such page.")
        except Exception as error:
            return await self.problem(request, user, error)
        if self.live.is_full:
            return Response("not live: 200 pages are open already", 503, {**_NO_STORE, "Retry-After": "30"})
        view = View(address, user.rights)
        events: AsyncIterator[str] = self.live.stream(view, user)
        headers = {**_NO_STORE, "X-Accel-Buffering": "no"}
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)

    async def _fragments(self, view: View, user: User) -> Fragments:
        row, names = self._page_at(view.address)
        path, _, query = view.address.partition("?")
        visit = Visit(
            site=self.site,
            user=user,
            address="",
            path=path,
            names=names,
            query=dict(parse_qsl(query)),
            live=True,
        )
        async with asyncio.timeout(row.patience):
            page = await row.handler(visit)
        if not isinstance(page, Page):
            return {}
        values = await self._values(visit, page, live=True)
        found = rendering.fragments(self._templates.get_template(page.template), values)
        return {**found, "nav": self._templates.get_template("nav.html").render(values).strip()}

    def _page_at(self, address: str) -> tuple[Row, Mapping[str, str]]:
        """The row of a page that updates itself."""
        scope = {"type": "http", "method": "GET", "path": address.partition("?")[0], "root_path": ""}
        for row, route in self._pages:
            match, child = route.matches(scope)
            if match is Match.FULL:
                return row, {name: name_of(part) for name, part in child["path_params"].items()}
        raise NotFound("There is no such page, or it does not update itself.")


def path_in(scope: Scope) -> str:
    """The path of a request below the first page."""
    path, root = str(scope["path"]), str(scope.get("root_path", "")).rstrip("/")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def _same(look: Look, visit: Visit) -> tuple[object, ...]:
    """What a page depends on that shows nothing but the look."""
    return _address(visit), visit.user.name, visit.user.rights, look.series.version, visit.site.looks.away


def _address(visit: Visit) -> str:
    return f"{visit.path}?{urlencode(sorted(visit.query.items()))}"


def _moved(visit: Visit, moved: Moved) -> Response:
    """A redirect to a relative address: an absolute one would need the prefix, which only the proxy knows."""
    mark = "&" if "?" in moved.to else "?"
    query = {"done": moved.done, "count": "" if moved.count is None else str(moved.count)}
    given = urlencode({name: value for name, value in query.items() if value})
    target = f"{visit.base}{moved.to}{mark + given if given else ''}"
    return Response(status_code=303, headers={"Location": target, **_NO_STORE})


async def _body(request: Request, row: Row) -> bytes:
    parts, size = list[bytes](), 0
    async for part in request.stream():
        size += len(part)
        if size > row.largest:
            raise Rejected(413, "Too large", f"A request may have {row.largest:,} bytes here.")
        parts.append(part)
    return b"".join(parts)


def _form(model: type[BaseModel], body: bytes) -> BaseModel:
    """The fields of a form. Raises ConfigurationError, with the field, when they are not valid."""
    try:
        given = parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=2000)
    except ValueError:
        raise ConfigurationError(
            "The form cannot be read: it is not UTF-8, or has too many fields."
        ) from None
    try:
        return model.model_validate(_fields(model, given))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigurationError(f"{where or 'The form'}: {first['msg']}") from None


def _fields(model: type[BaseModel], given: Sequence[tuple[str, str]]) -> dict[str, str | list[str]]:
    """The values by name. An empty field whose type is not text has its default."""
    fields: dict[str, str | list[str]] = {}
    for name, value in given:
        kind = model.model_fields[name].annotation if name in model.model_fields else str
        if kind == list[str]:
            fields[name] = [*fields.get(name, []), value]
        elif value or kind is str:
            fields[name] = value
    return fields
