"""Clients: they send jobs and do not give up, whatever happens to Redis."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import orjson

from fennelq import App
from fennelq.errors import BrokerUnavailable
from fennelq.model.job import AnyJob
from tests.chaos import jobs, scale
from tests.chaos.account import RETURNING, Call, Sent
from tests.kit.jobs import as_sent

BATCH = 50
LONGEST = scale.of(200, long=60)
"""Milliseconds."""
Mix = Callable[[App, random.Random], AnyJob]
Described = Callable[[App], Iterable[AnyJob]]


def name_of(job: AnyJob) -> Call:
    """Which function of `jobs` it calls, and what that call returns."""
    name = job.task.partition(":")[2]
    arguments = orjson.loads(as_sent(job).args)[0]
    return Call.of(name, jobs.receipt(job.id, arguments[0]) if name in RETURNING else None)


def call(app: App, function: Any, *args: Any, **options: Any) -> AnyJob:
    """A call of a function of `jobs`."""
    task = jobs.task_of(app, function)
    return (task.options(**options) if options else task).job(*args)


def some(number: int, function: Any, *args: Any, **options: Any) -> Described:
    """So many calls of the same."""

    def described(app: App) -> list[AnyJob]:
        return [call(app, function, *args, **options) for _ in range(number)]

    return described


def everyday(app: App, dice: random.Random) -> AnyJob:
    """Short jobs; two in a hundred fail once, two are for later."""
    milliseconds, kind = dice.uniform(0, LONGEST), dice.random()
    if kind < 0.02:
        return call(app, jobs.flaky, milliseconds)
    if kind < 0.04:
        return call(app, jobs.work, milliseconds, delay=dice.uniform(0.2, 1.5))
    return call(app, jobs.work, milliseconds)


def send(url: str, described: Described, **settings: Any) -> Sent:
    """Send these jobs: job id → function. Returns when Redis has them all."""
    return asyncio.run(_send(url, described, settings))


async def _send(url: str, described: Described, settings: dict[str, Any]) -> Sent:
    async with jobs.app_of(redis_url=url, enqueue_timeout=2, **settings) as app:
        sent: dict[str, str] = {}
        for batch in _batches(described(app)):
            sent |= await _insist(app, batch)
        return sent


async def _insist(app: App, batch: list[AnyJob], within: float = 90.0) -> Sent:
    """Send until it is accepted: sending it twice makes no second job."""
    sent = {job.id: name_of(job) for job in batch}
    deadline = time.monotonic() + within
    while True:
        try:
            await app.enqueue(batch)
        except BrokerUnavailable as error:
            if time.monotonic() > deadline:
                raise
            batch = list(error.jobs)
        else:
            return sent


def _batches(described: Iterable[AnyJob]) -> Iterator[list[AnyJob]]:
    batch: list[AnyJob] = []
    for job in described:
        batch.append(job)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


class Feeder:
    """Sends a number of jobs, at a pace, from a thread of its own. While there is no `room`, it waits."""

    def __init__(
        self,
        url: str,
        number: int,
        *,
        per_second: float,
        seed: int,
        mix: Mix = everyday,
        room: Callable[[], bool] = lambda: True,
    ) -> None:
        self._url, self._number, self._pace, self._mix, self._room = url, number, per_second, mix, room
        self._dice = random.Random(seed)
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)
        self._failure: BaseException | None = None
        self._ended = threading.Event()
        self.sent: dict[str, str] = {}

    def start(self) -> Feeder:
        self._thread.start()
        return self

    def enough(self) -> None:
        """Send no more than has been sent."""
        self._ended.set()

    @property
    def busy(self) -> bool:
        return self._thread.is_alive()

    def finish(self, within: float = 120.0) -> Sent:
        """What was sent, when all of it is."""
        self._thread.join(within)
        if self._failure is not None:
            raise self._failure
        assert not self._thread.is_alive(), f"only {len(self.sent)} jobs could be sent"
        return self.sent

    def _run(self) -> None:
        try:
            asyncio.run(self._feed())
        except BaseException as failure:
            self._failure = failure

    async def _feed(self) -> None:
        began = time.monotonic()
        async with jobs.app_of(redis_url=self._url, enqueue_timeout=2) as app:
            while len(self.sent) < self._number and not self._ended.is_set():
                if not self._room():
                    await asyncio.sleep(0.05)
                    continue
                size = min(BATCH, self._number - len(self.sent))
                self.sent |= await _insist(app, [self._mix(app, self._dice) for _ in range(size)])
                ahead = len(self.sent) / self._pace - (time.monotonic() - began)
                await asyncio.sleep(max(0.0, ahead))
