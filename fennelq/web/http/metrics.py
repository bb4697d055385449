"""The metrics of what is in Redis, as `fennelq exporter` serves them."""

from __future__ import annotations

from starlette.responses import Response

from fennelq.model.exposition import CONTENT_TYPE
from fennelq.web.http.call import Call


async def metrics(call: Call) -> Response:
    """The page for Prometheus. Without Redis, it says only that Redis is away."""
    page = await call.office.measures.page()
    return Response(page.encoded(), headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"})
