"""Waiting for the end of jobs: one subscription per process, whatever the number of waiters.

A waiter first asks `watch`, which answers the end or registers this process's channel with the job, in one
step. The script that settles the job then publishes the result on the channel. A message can be lost (a
reconnect, a failover); asking again is harmless and makes up for it: after every reconnect, and every few
seconds anyway.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import defaultdict
from collections.abc import Coroutine
from typing import Any, NamedTuple

from fennelq.broker.batch import Batcher, pages
from fennelq.broker.broker import Broker
from fennelq.broker.keys import channel_name, queue_keys
from fennelq.broker.link import Link, LinkDown
from fennelq.broker.patience import Patience
from fennelq.broker.trouble import classify
from fennelq.broker.verbs import lifecycle
from fennelq.errors import BrokerUnavailable, ResultExpired
from fennelq.model.job import split_id

RECHECK = 5.0
_CLOSED = "the app was closed"


class Ended(NamedTuple):
    """How a job ended: the envelope its settling wrote, and the task when it is known."""

    task: str | None
    envelope: bytes


class Waiting:
    """Everybody of this process and loop who waits for a job."""

    def __init__(self, app: str, broker: Broker, *, patience: float) -> None:
        self._app, self._broker, self._patience = app, broker, patience
        self._channel = channel_name(app, os.urandom(9).hex())
        self._waiters: defaultdict[str, set[asyncio.Future[Ended]]] = defaultdict(set)
        self._tasks: dict[str, str | None] = {}
        self._overtaking: dict[str, bytes] = {}
        """Ends that were published before the answer to `watch` came, which alone knows the task."""
        self._watches: Batcher[str, tuple[str, str | None, bytes | None]] = Batcher(self._watch, 1000)
        self._link: Link | None = None
        self._subscribing: asyncio.Task[None] | None = None
        self._rechecking: asyncio.Task[None] | None = None
        self._closed = False

    async def end_of(self, job_id: str) -> Ended:
        """Waits until the job has ended; raises ResultExpired when nothing is known of it (any more)."""
        waiter: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._waiters[job_id].add(waiter)
        try:
            await self._ask(job_id)
            return await waiter
        finally:
            self._forget(job_id, waiter)

    async def close(self) -> None:
        """End the subscription. Whoever still waits is told so."""
        self._closed = True
        for task in (self._rechecking, self._subscribing):
            if task is not None:
                task.cancel()
        for job_id in self._waiters:
            self._tell(job_id, BrokerUnavailable(_CLOSED))
        if self._link is not None:
            self._link.close()

    async def _ask(self, job_id: str) -> None:
        """Look at the job and register, for as long as the broker's trouble may be a passing one."""
        patience = Patience(self._patience)
        while not self._closed:
            try:
                await self._subscribed()
                self._answered(job_id, *await self._watches.submit(job_id))
                return
            except Exception as error:
                pause = patience.pause_after(error)
            await asyncio.sleep(pause)
            patience.left()
        raise BrokerUnavailable(_CLOSED)

    async def _watch(self, ids: list[str]) -> list[tuple[str, str | None, bytes | None] | BaseException]:
        by_queue: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
        for place, job_id in enumerate(ids):
            queue, key = split_id(job_id)
            by_queue[queue].append((place, key))
        answers: list[tuple[str, str | None, bytes | None] | BaseException] = [("gone", None, None)] * len(
            ids
        )
        for queue, places in by_queue.items():
            for page in pages(places, lambda _: 1, lifecycle.MOST_JOBS, lifecycle.MOST_JOBS):
                said = lifecycle.watch(queue_keys(self._app, queue), self._channel, [key for _, key in page])
                ends = await self._broker.run(said)
                for (place, _), answer in zip(page, ends, strict=True):
                    answers[place] = answer
        return answers

    def _answered(self, job_id: str, code: str, task: str | None, envelope: bytes | None) -> None:
        if (published := self._overtaking.pop(job_id, None)) is not None:
            self._tell(job_id, Ended(task, published))
        elif code == "wait":
            if job_id not in self._waiters:
                return
            self._tasks[job_id] = task
            if self._rechecking is None:
                self._rechecking = asyncio.create_task(self._recheck())
        elif code == "end":
            self._tell(job_id, Ended(task, envelope or b""))
        else:
            self._tell(job_id, ResultExpired(job_id))

    def _tell(self, job_id: str, news: Ended | Exception) -> None:
        for waiter in self._waiters.get(job_id, ()):
            if not waiter.done():
                if isinstance(news, Exception):
                    waiter.set_exception(news)
                else:
                    waiter.set_result(news)

    def _forget(self, job_id: str, waiter: asyncio.Future[Ended]) -> None:
        waiters = self._waiters[job_id]
        waiters.discard(waiter)
        if not waiters:
            del self._waiters[job_id]
            self._tasks.pop(job_id, None)
            self._overtaking.pop(job_id, None)

    async def _recheck(self) -> None:
        try:
            while self._waiters:
                await asyncio.sleep(RECHECK)
                await self._look_again()
        finally:
            self._rechecking = None

    async def _look_again(self) -> None:
        await asyncio.gather(*map(self._look_again_at, list(self._waiters)))

    async def _look_again_at(self, job_id: str) -> None:
        try:
            self._answered(job_id, *await self._watches.submit(job_id))
        except Exception as error:
            if not classify(error).passes:
                self._tell(job_id, BrokerUnavailable(str(error)))

    # The subscription

    async def _subscribed(self) -> None:
        if self._link is not None and self._link.connected:
            return
        if self._subscribing is None or self._subscribing.done():
            self._subscribing = _watched(self._subscribe())
        await asyncio.shield(self._subscribing)

    async def _subscribe(self) -> None:
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def hear(message: Any) -> None:
            if isinstance(message, LinkDown):
                self._lost(confirmed, message)
            elif message[0] == b"message":
                self._message(message[2])
            elif not confirmed.done():
                confirmed.set_result(None)

        link = await self._broker.listen(["SUBSCRIBE", self._channel], hear)
        try:
            async with asyncio.timeout(RECHECK):
                await confirmed
        except BaseException:
            link.close()
            raise
        self._link = link

    def _lost(self, confirmed: asyncio.Future[None], why: LinkDown) -> None:
        if not confirmed.done():
            confirmed.set_exception(why)
        elif self._waiters and not (confirmed.cancelled() or self._closed):
            self._subscribing = _watched(self._subscribe_again())

    async def _subscribe_again(self) -> None:
        """What was published meanwhile is lost: subscribe, then look at every job that is waited for."""
        while self._waiters:
            try:
                await self._subscribe()
                await self._look_again()
                return
            except Exception as error:
                if not classify(error).passes:
                    raise
                await asyncio.sleep(random.uniform(0.05, 0.5))

    def _message(self, text: bytes) -> None:
        job_id, _, envelope = text.partition(b"\n")
        name = job_id.decode()
        if name in self._tasks:
            self._tell(name, Ended(self._tasks[name], envelope))
        elif name in self._waiters:
            self._overtaking[name] = envelope


def _watched(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A task whose failure is known even when everybody who waited for it has gone meanwhile."""
    task = asyncio.create_task(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task
