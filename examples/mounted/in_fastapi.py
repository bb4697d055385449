"""FastAPI: `uvicorn examples.mounted.in_fastapi:web`."""

from __future__ import annotations

from fastapi import FastAPI

from examples.mounted.shop import jobs, programs

web = FastAPI()


@web.get("/")
async def home() -> str:
    """A page of the application itself."""
    return "the shop"


web.mount("/jobs", jobs)
web.mount("/programs", programs)
