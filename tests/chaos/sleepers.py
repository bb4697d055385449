"""Executors that sleep until a message wakes them, and when they start the jobs that are sent to them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, Final, cast

from fennelq import App
from fennelq.broker.keys import queue_keys
from fennelq.worker.executor import Executor
from tests.chaos import jobs
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.kit.workers import running

TASK: Final = "sleepers:note"
LOOK: Final = 5.0
"""Seconds after which an executor looks for jobs although no message has reached it."""


class Starts:
    """When each job was sent, and when and how often it was started. Jobs are numbers."""

    def __init__(self) -> None:
        self.sent: dict[int, float] = {}
        self.times = Counter[int]()
        self.gates: dict[int, asyncio.Event] = {}
        """A job with a gate ends when that is opened."""
        self._first: dict[int, float] = {}
        self._begun = defaultdict[int, asyncio.Event](asyncio.Event)

    def app_of(self, url: str, **settings: Any) -> App:
        app = App(jobs.NAME, redis_url=url, **settings)

        @app.task(name=TASK, retries=0)
        async def note(n: int) -> None:
            self._first.setdefault(n, time.monotonic())
            self.times[n] += 1
            self._begun[n].set()
            if n in self.gates:
                await self.gates[n].wait()

        return app

    async def send(self, app: App, n: int, *, closed: bool = False, **options: Any) -> None:
        """Send a job. If it is `closed`, it runs until its gate is opened."""
        if closed:
            self.gates[n] = asyncio.Event()
        self.sent[n] = time.monotonic()
        task: Any = app.tasks[TASK]
        await (task.options(**options) if options else task).delay(n)

    async def started(self, n: int, within: float = 30.0) -> float:
        """Returns when the job has started: the seconds since it was sent."""
        async with asyncio.timeout(within):
            await self._begun[n].wait()
        return self._first[n] - self.sent[n]

    async def all_started(self, within: float = 30.0) -> list[float]:
        """Returns when all have started, each of them once: the seconds since each was sent."""
        delays = [await self.started(n, within) for n in self.sent]
        assert self.times == dict.fromkeys(self.sent, 1)
        return delays


@asynccontextmanager
async def executors(app: App, number: int, **options: Any) -> AsyncGenerator[list[Executor]]:
    """So many executors on this loop."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(running(app, **options)) for _ in range(number)]


def asleep(server: Server, queue: str = "default", *, lane: str = "") -> set[str]:
    """The executors that a message about this queue may wake: those that read all lanes, or only some and this one."""
    key = queue_keys(jobs.NAME, queue)["idle"] + (f":{lane}" if lane else "")
    with server.client() as client:
        names = cast("set[bytes]", client.smembers(key))
    return {name.decode() for name in names}


async def all_asleep(server: Server, names: set[str], *queues: str) -> None:
    """Returns when these executors sleep at all these queues."""
    await aeventually(
        lambda: all(names <= asleep(server, queue) for queue in queues or ("default",)), within=30
    )


@contextmanager
def next_to_wake(server: Server, *names: str) -> Generator[None]:
    """Meanwhile a message about the default queue can reach only these of the executors that read all lanes. Otherwise
    one of all is drawn by lot."""
    key = queue_keys(jobs.NAME, "default")["idle"]
    others = asleep(server).difference(names)
    with server.client() as client:
        for other in others:
            client.srem(key, other)
        yield
        for other in others:
            client.sadd(key, other)


def summary(delays: list[float]) -> str:
    """For people."""
    ordered = sorted(delays)
    middle, longest = ordered[len(ordered) // 2] * 1000, ordered[-1] * 1000
    return (
        f"{len(ordered)} jobs, started {middle:.1f} ms (p50) and {longest:.1f} ms (max) after they were sent"
    )
