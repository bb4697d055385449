"""The OpenAPI document and the reference page, for the user who asks."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from starlette.responses import HTMLResponse, Response

from fennelq.web.http.call import Answer, Call
from fennelq.web.http.openapi import Schema, openapi
from fennelq.web.http.paths import PREFIX
from fennelq.web.http.reference import page_of

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.web.http.table import Route
    from fennelq.web.users import User

_KEPT: Final = 20


class Documents:
    """The documents that were made last. Two hundred tasks take a third of a second, for which no other request must
    wait."""

    def __init__(self, app: App, routes: Sequence[Route]) -> None:
        self._app, self._routes = app, routes
        self._made: OrderedDict[tuple[frozenset[str], int], Schema] = OrderedDict()
        self._making = asyncio.Lock()

    async def of(self, user: User) -> Schema:
        """The document for this user."""
        async with self._making:
            key = user.rights, len(self._app.tasks)
            if key not in self._made:
                self._made[key] = await asyncio.to_thread(openapi, self._app, user, self._routes)
            self._made.move_to_end(key)
            while len(self._made) > _KEPT:
                self._made.popitem(last=False)
            return self._made[key]


async def document(call: Call) -> Answer:
    """The document."""
    return Answer(await call.office.documents.of(call.user))


async def reference(call: Call) -> Response:
    """The document as a page."""
    made = await call.office.documents.of(call.user)
    examples: dict[tuple[str, str], str] = {
        (row.method, PREFIX + row.path): row.example for row in call.office.routes if row.example
    }
    base = str(call.request.base_url).rstrip("/")
    return HTMLResponse(page_of(made, examples, base), headers={"Cache-Control": "no-store"})
