"""The OpenAPI document and the reference page, for the user who asks."""

from __future__ import annotations

from starlette.responses import HTMLResponse, Response

from fennelq.web.http.call import Answer, Call
from fennelq.web.http.openapi import openapi
from fennelq.web.http.paths import PREFIX
from fennelq.web.http.reference import page_of


async def document(call: Call) -> Answer:
    """The document."""
    return Answer(openapi(call.app, call.user, call.office.routes))


async def reference(call: Call) -> Response:
    """The document as a page."""
    made = openapi(call.app, call.user, call.office.routes)
    examples: dict[tuple[str, str], str] = {
        (row.method, PREFIX + row.path): row.example for row in call.office.routes if row.example
    }
    base = str(call.request.base_url).rstrip("/")
    return HTMLResponse(page_of(made, examples, base), headers={"Cache-Control": "no-store"})
