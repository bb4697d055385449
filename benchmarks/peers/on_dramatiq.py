"""dramatiq: plain functions in threads, a synchronous client. Worker: its command line; results in Redis."""
# mypy: disable-error-code="import-not-found"
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from benchmarks import bodies

_url = os.environ["BENCH_URL"]
_results = RedisBackend(url=_url)
_broker = RedisBroker(url=_url)
_broker.add_middleware(Results(backend=_results))
dramatiq.set_broker(_broker)

noop = dramatiq.actor(bodies.noop_blocking, store_results=True)


class Client:
    async def send(self, task: str, argument: int) -> Any:
        return noop.send(argument)

    async def send_many(self, task: str, arguments: Sequence[int], lane: str) -> Sequence[Any]:
        return [noop.send(argument) for argument in arguments]

    async def wait(self, handle: Any) -> Any:
        return handle.get_result(backend=_results, block=True, timeout=60_000)

    async def close(self) -> None:
        _broker.close()


async def open_client(url: str) -> Client:
    return Client()
