"""arq, with its default poll of half a second. Worker: ``Worker.async_run``; waiting: ``job.result()``."""
# mypy: disable-error-code="import-not-found"
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from arq import create_pool
from arq.connections import ArqRedis, RedisSettings
from arq.worker import Worker

from benchmarks import bodies
from benchmarks.loops import run
from benchmarks.peers.batches import gathered


async def noop(context: Any, number: int) -> int:
    return await bodies.noop(number)


class Client:
    def __init__(self, redis: ArqRedis) -> None:
        self._redis = redis

    async def send(self, task: str, argument: int) -> Any:
        return await self._redis.enqueue_job("noop", argument)

    async def send_many(self, task: str, arguments: Sequence[int], lane: str) -> Sequence[Any]:
        return await gathered(lambda argument: self.send(task, argument), arguments)

    async def wait(self, handle: Any) -> Any:
        return await handle.result(60)

    async def close(self) -> None:
        await self._redis.aclose()


async def open_client(url: str) -> Client:
    return Client(await create_pool(RedisSettings.from_dsn(url)))


async def _serve(url: str, concurrency: int) -> None:
    await Worker([noop], redis_settings=RedisSettings.from_dsn(url), max_jobs=concurrency).async_run()


if __name__ == "__main__":
    run(_serve(os.environ["BENCH_URL"], int(sys.argv[1])), "uvloop" if sys.argv[2] == "uvloop" else "asyncio")
