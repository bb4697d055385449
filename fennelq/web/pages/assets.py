"""The style, the script and the icon."""

from __future__ import annotations

from starlette.responses import Response

from fennelq.web.rendering import ASSETS, asset_bytes
from fennelq.web.visit import NotFound, Visit


async def show(visit: Visit) -> Response:
    """A static file. Its path changes with its content, so it may be kept for ever."""
    name = visit.names["file"]
    if name not in ASSETS:
        raise NotFound("There is no such file.")
    headers = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response(asset_bytes(name), headers=headers, media_type=ASSETS[name])
