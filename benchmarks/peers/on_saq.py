"""SAQ. Worker: ``Worker.start``; waiting: ``job.refresh``, which is quicker than ``queue.apply``."""
# mypy: disable-error-code="import-not-found"
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from saq import Queue, Worker

from benchmarks import bodies
from benchmarks.loops import run
from benchmarks.peers.batches import gathered


async def noop(context: Any, *, number: int) -> int:
    return await bodies.noop(number)


class Client:
    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    async def send(self, task: str, argument: int) -> Any:
        return await self._queue.enqueue("noop", number=argument)

    async def send_many(self, task: str, arguments: Sequence[int], lane: str) -> Sequence[Any]:
        return await gathered(lambda argument: self.send(task, argument), arguments)

    async def wait(self, handle: Any) -> Any:
        while not handle.completed:  # a job that ends before refresh() has subscribed is not announced to it
            with contextlib.suppress(asyncio.TimeoutError):
                await handle.refresh(1)
        return handle.result

    async def close(self) -> None:
        await self._queue.disconnect()


async def open_client(url: str) -> Client:
    queue = Queue.from_url(url)
    await queue.connect()
    return Client(queue)


async def _serve(url: str, concurrency: int) -> None:
    await Worker(Queue.from_url(url), functions=[noop], concurrency=concurrency).start()


if __name__ == "__main__":
    run(_serve(os.environ["BENCH_URL"], int(sys.argv[1])), "uvloop" if sys.argv[2] == "uvloop" else "asyncio")
