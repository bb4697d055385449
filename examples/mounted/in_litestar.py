"""Litestar: `uvicorn examples.mounted.in_litestar:web`."""

from __future__ import annotations

from typing import Any

from litestar import Litestar, get

from examples.mounted.shop import jobs, programs


@get("/")
async def home() -> str:
    """A page of the application itself."""
    return "the shop"


# Litestar's own mounts change the paths below them.
litestar: Any = Litestar([home])
web = jobs.below("/jobs", otherwise=programs.below("/programs", otherwise=litestar))
