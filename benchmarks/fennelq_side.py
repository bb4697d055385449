"""The client of fennelq, through nothing but its public API."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from benchmarks import jobs
from fennelq import App, AsyncResult, Task

T = TypeVar("T")

Lane = Literal["high", "normal", "low"]

_TASKS: Mapping[str, Task[..., Any]] = {
    "noop": jobs.noop,
    "nap": jobs.nap,
    "swallow": jobs.swallow,
    "stamp": jobs.stamp,
}


class FennelqClient:
    def send(self, task: str, argument: object) -> Awaitable[AsyncResult[Any]]:
        return _TASKS[task].delay(argument)

    async def send_many(
        self, task: str, arguments: Sequence[object], lane: Lane
    ) -> Sequence[AsyncResult[Any]]:
        wanted = _TASKS[task] if lane == "normal" else _TASKS[task].options(priority=lane)
        return await jobs.app.enqueue([wanted.job(argument) for argument in arguments])

    def wait(self, handle: AsyncResult[Any]) -> Awaitable[Any]:
        return handle.get(timeout=60)

    async def close(self) -> None:
        """The process ends; nothing is left to close."""


async def open_client(url: str) -> FennelqClient:
    """The app has read the server's address from its environment."""
    return FennelqClient()


def with_app(url: str, work: Callable[[App], Awaitable[T]]) -> T:
    """What `work` returns, given the app of the workers, in this process."""

    async def inside() -> T:
        async with App("bench", redis_url=url) as app:
            return await work(app)

    return asyncio.run(inside())
