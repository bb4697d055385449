"""streaQ. Worker: ``Worker.run_sync``; bulk: ``enqueue_many`` of a hundred; waiting: ``task.result()``."""
# mypy: disable-error-code="import-not-found"
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from streaq import Worker

from benchmarks import bodies
from benchmarks.peers.batches import WIDTH


def _worker(concurrency: int, loop: str) -> Worker[Any]:
    options = {"use_uvloop": loop == "uvloop"}
    return Worker(redis_url=os.environ["BENCH_URL"], concurrency=concurrency, anyio_kwargs=options)


class Client:
    def __init__(self, worker: Worker[Any]) -> None:
        self._worker = worker
        self._noop = worker.task(bodies.noop)

    async def send(self, task: str, argument: int) -> Any:
        return await self._noop.enqueue(argument)

    async def send_many(self, task: str, arguments: Sequence[int], lane: str) -> Sequence[Any]:
        tasks = [self._noop.enqueue(argument) for argument in arguments]
        for first in range(0, len(tasks), WIDTH):
            await self._worker.enqueue_many(tasks[first : first + WIDTH])
        return tasks

    async def wait(self, handle: Any) -> Any:
        return (await handle.result(60)).result

    async def close(self) -> None:
        await self._worker.__aexit__(None, None, None)


async def open_client(url: str) -> Client:
    worker = await _worker(32, "uvloop").__aenter__()
    return Client(worker)


if __name__ == "__main__":
    serving = _worker(int(sys.argv[1]), sys.argv[2])
    serving.task(bodies.noop)
    serving.run_sync()
