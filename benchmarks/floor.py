"""The floor: the least a Redis Streams worker in Python can do and still run jobs and keep their results.

One reader with COUNT = free slots, the payload inline in the stream entry, one asyncio task per job with a
context variable and a time limit of its own, orjson, and one script call that settles whatever has finished
since the last one. Reading, running and finishing overlap; all of it through redis-py's public API. There
are no retries, schedules, status records, leases or recovery. It is the nearest thing to a physical limit for
this stack, and no product.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any

import orjson
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError

from benchmarks import bodies
from benchmarks.loops import run

STREAM = "floor:jobs"
GROUP = "floor"
RESULT_TTL_MS = 3_600_000
BLOCK_MS = 5_000
PIPELINE = 100
JOB_SECONDS = 3_600

current_job: ContextVar[str] = ContextVar("current_job")


TASKS: Mapping[str, Callable[..., Coroutine[Any, Any, object]]] = {
    "noop": bodies.noop,
    "nap": bodies.nap,
    "swallow": bodies.swallow,
    "stamp": bodies.stamp,
}


# -- the worker


class Loop:
    """One worker process: a reader and a settler around ``concurrency`` slots."""

    def __init__(self, redis: Redis, concurrency: int) -> None:
        self._redis = redis
        self._free = concurrency
        self._running: dict[bytes, asyncio.Task[None]] = {}
        self._finished: list[bytes | str] = []
        self._slot_freed = asyncio.Event()
        self._job_finished = asyncio.Event()

    async def run(self) -> None:
        script = await self._redis.script_load(_finish_script())
        await asyncio.gather(self._read(f"consumer-{os.getpid()}"), self._settle(script))

    async def _read(self, consumer: str) -> None:
        while True:
            await self._slot_free()
            new: Any = await self._redis.xreadgroup(
                GROUP, consumer, {STREAM: ">"}, count=self._free, block=BLOCK_MS
            )
            for _, entries in new:
                self._start(entries)

    async def _slot_free(self) -> None:
        while not self._free:
            self._slot_freed.clear()
            await self._slot_freed.wait()

    def _start(self, entries: Sequence[tuple[bytes, dict[bytes, bytes]]]) -> None:
        loop = asyncio.get_running_loop()
        self._free -= len(entries)
        for entry, fields in entries:
            self._running[entry] = loop.create_task(self._perform(entry, fields[b"d"]))

    async def _perform(self, entry: bytes, payload: bytes) -> None:
        job = orjson.loads(payload)
        current_job.set(job["id"])
        limit = asyncio.get_running_loop().call_later(JOB_SECONDS, self._running[entry].cancel)
        began = time.time()
        try:
            outcome = {"ok": True, "value": await TASKS[job["task"]](*job["args"])}
        except (Exception, asyncio.CancelledError) as error:
            outcome = {"ok": False, "value": repr(error)}
        limit.cancel()
        record = {"id": job["id"], "task": job["task"], "began": began, "ended": time.time(), **outcome}
        self._finished += (entry, result_key(job["id"]), orjson.dumps(record))
        self._leave(entry)

    def _leave(self, entry: bytes) -> None:
        del self._running[entry]
        self._free += 1
        self._slot_freed.set()
        self._job_finished.set()

    async def _settle(self, script: str) -> None:
        while True:
            await self._job_finished.wait()
            self._job_finished.clear()
            batch, self._finished = self._finished, []
            await self._redis.evalsha(script, 1, STREAM, GROUP, RESULT_TTL_MS, *batch)


def _finish_script() -> str:
    return Path(__file__).with_name("floor_finish.lua").read_text()


def result_key(job_id: str) -> str:
    return f"floor:r:{job_id}"


async def serve(url: str, concurrency: int) -> None:
    async with Redis(connection_pool=_pool(url)) as redis:
        await _make_group(redis)
        await Loop(redis, concurrency).run()


async def _make_group(redis: Redis) -> None:
    try:
        await redis.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
    except ResponseError as error:
        if not str(error).startswith("BUSYGROUP"):
            raise


def _pool(url: str) -> ConnectionPool:
    return ConnectionPool.from_url(
        url, protocol=2, socket_timeout=None, max_connections=2_000, retry=Retry(NoBackoff(), 0)
    )


# -- the client


class FloorClient:
    """Sends with one XADD per job and waits with one blocking BLMOVE per result."""

    def __init__(self, url: str) -> None:
        self._redis: Any = Redis(connection_pool=_pool(url))  # redis-py leaves execute_command untyped

    async def send(self, task: str, argument: object) -> str:
        job_id = new_id()
        await self._redis.execute_command("XADD", STREAM, "*", "d", encoded(job_id, task, argument))
        return job_id

    async def send_many(self, task: str, arguments: Sequence[object], lane: str) -> Sequence[str]:
        ids = [new_id() for _ in arguments]
        for first in range(0, len(ids), PIPELINE):
            async with self._redis.pipeline(transaction=False) as pipeline:
                for job_id, argument in zip(
                    ids[first:][:PIPELINE], arguments[first:][:PIPELINE], strict=True
                ):
                    pipeline.execute_command("XADD", STREAM, "*", "d", encoded(job_id, task, argument))
                await pipeline.execute()
        return ids

    async def wait(self, job_id: str) -> object:
        key = result_key(job_id)
        return orjson.loads(await self._redis.execute_command("BLMOVE", key, key, "LEFT", "LEFT", 60))[
            "value"
        ]

    async def close(self) -> None:
        await self._redis.aclose()


async def open_client(url: str) -> FloorClient:
    return FloorClient(url)


def new_id() -> str:
    return os.urandom(16).hex()


def encoded(job_id: str, task: str, argument: object) -> bytes:
    return orjson.dumps({"id": job_id, "task": task, "args": (argument,)})


# -- the command line


def main() -> None:
    parser = argparse.ArgumentParser(description="One or more floor workers.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--loop", choices=["uvloop", "asyncio"], default="uvloop")
    wanted = parser.parse_args()
    _multiply(wanted.processes)
    run(serve(wanted.url, wanted.concurrency), wanted.loop)


def _multiply(processes: int) -> None:
    """Fork the further workers; the first one takes them along when it is stopped."""
    children: list[int] = []
    for _ in range(1, processes):
        if not (child := os.fork()):
            return
        children.append(child)

    def stop(signum: int, frame: FrameType | None) -> None:
        for child in children:
            os.kill(child, signal.SIGTERM)
            os.waitpid(child, 0)
        os._exit(0)

    signal.signal(signal.SIGTERM, stop)


if __name__ == "__main__":
    main()
