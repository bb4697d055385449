"""Starlette: `uvicorn examples.mounted.in_starlette:web`."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from examples.mounted.shop import jobs, programs


async def home(_: Request) -> PlainTextResponse:
    """A page of the application itself."""
    return PlainTextResponse("the shop")


web = Starlette(routes=[Route("/", home), Mount("/jobs", jobs), Mount("/programs", programs)])
