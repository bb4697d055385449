"""The client of fennelq, through nothing but its public API."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Literal

from benchmarks import jobs
from fennelq import AsyncResult, Task

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
