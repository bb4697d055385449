"""taskiq on taskiq-redis, stream broker. Worker: its command line; waiting: ``wait_result()``."""
# mypy: disable-error-code="import-not-found"
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from benchmarks import bodies
from benchmarks.peers.batches import gathered

_url = os.environ["BENCH_URL"]

broker = RedisStreamBroker(_url).with_result_backend(RedisAsyncResultBackend(_url, result_ex_time=3600))
noop = broker.task(task_name="noop")(bodies.noop)


class Client:
    async def send(self, task: str, argument: int) -> Any:
        return await noop.kiq(argument)

    async def send_many(self, task: str, arguments: Sequence[int], lane: str) -> Sequence[Any]:
        return await gathered(noop.kiq, arguments)

    async def wait(self, handle: Any) -> Any:
        return (await handle.wait_result(timeout=60)).return_value

    async def close(self) -> None:
        await broker.shutdown()


async def open_client(url: str) -> Client:
    await broker.startup()
    return Client()
