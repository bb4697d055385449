"""Waits for the end of jobs: with one subscription per event loop, whatever the number of waiters.

A waiter first calls `watch`, which returns the end, or registers this process's channel with the job, in one step. The
script that settles the job then publishes the result on the channel. A message can be lost (a reconnect, a failover).
So the waiter calls `watch` again after every reconnect, and every few seconds anyway; a repeated call is harmless. When
the server refuses the subscription, the waiter polls: it calls `watch` more often.

A reader of the progress of a job waits for its end in the same way. For such a job, `watch` also returns the progress,
and registers the channel for messages about it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from fennelq import clock
from fennelq.broker.broker import Broker
from fennelq.broker.diagnosis import diagnose
from fennelq.broker.group_commit import GroupCommit
from fennelq.broker.inbox import REFUSED_FOR, process_name
from fennelq.broker.keys import channel_name
from fennelq.broker.link import Link, LinkDown
from fennelq.broker.patience import Patience
from fennelq.broker.trouble import ReplyError, classify, refuses_to_publish
from fennelq.errors import BrokerUnavailable, ResultExpired
from fennelq.model.job import split_id
from fennelq.model.lifetimes import Lifetimes
from fennelq.model.progress import Reported, from_wire
from fennelq.waiting.looks import OF_PROGRESS, Ended, Look, ended, watched

RECHECK = 5.0
FIRST_POLL, LONGEST_POLL = 0.25, 1.0
"""Seconds between two looks when the server does not let this process subscribe."""
RECHECKING, SUBSCRIBING = "fennelq: look again at jobs", "fennelq: subscribe to results"
"""The names of the tasks of `Waiting`."""
_CLOSED = "the app was closed"
reported: set[tuple[str, str]] = set()
"""The refused subscriptions that were logged, by app and kind of error: each is logged once per process."""


class Waiting:
    """All waiters for jobs of this process and event loop."""

    def __init__(self, app: str, broker: Broker, lifetimes: Lifetimes, *, patience: float) -> None:
        self._app, self._broker, self._lifetimes, self._patience = app, broker, lifetimes, patience
        self._channel = channel_name(app, process_name())
        self._waiters: defaultdict[str, set[asyncio.Future[Ended]]] = defaultdict(set)
        self._followers: defaultdict[str, set[_Follower]] = defaultdict(set)
        self._tasks: dict[str, str | None] = {}
        self._overtaking: dict[str, bytes] = {}
        """Ends that were published before the reply of `watch` arrived. Only that reply names the task."""
        self._watches: GroupCommit[str, Look] = GroupCommit(self._subscribe_and_watch, 1000)
        self._looks: GroupCommit[str, Look] = GroupCommit(partial(self._watch, ""), 1000)
        self._link: Link | None = None
        self._subscribing: asyncio.Task[None] | None = None
        self._rechecking: asyncio.Task[None] | None = None
        self.polling = False
        """Whether the server refused the subscription."""
        self._poll = FIRST_POLL
        self._refused_until = 0.0
        self._closed = False

    async def end_of(self, job_id: str) -> Ended:
        """Waits until the job has ended; raises ResultExpired when the job is unknown or its result has expired."""
        split_id(job_id)
        waiter: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._waiters[job_id].add(waiter)
        self._poll = FIRST_POLL
        try:
            self._replied(job_id, await self._ask(self._watches, job_id))
            return await waiter
        finally:
            self._forget(job_id, waiter)

    async def follow(self, job_id: str) -> AsyncGenerator[Reported]:
        """Yields what a job reports, until it has ended or is unknown. A slow reader gets the newest report only."""
        follower = _Follower()
        self._followers[job_id].add(follower)
        end = asyncio.ensure_future(self.end_of(job_id))
        end.add_done_callback(follower.ended)
        try:
            while not end.done():
                if (reported := await follower.news()) is not None:
                    yield reported
            with suppress(ResultExpired):
                end.result()
        finally:
            end.cancel()  # also marks the error of an end that was not read as retrieved
            self._followers[job_id].discard(follower)
            if not self._followers[job_id]:
                del self._followers[job_id]

    async def look(self, job_id: str) -> Ended | None:
        """How the job has ended; None when it goes on. It asks once and registers nothing."""
        split_id(job_id)
        return ended(job_id, await self._ask(self._looks, job_id))

    @property
    def stored(self) -> tuple[int, int, int]:
        """How many jobs have waiters, how many of them are known to go on, and how many ends were published before the
        reply of `watch`."""
        return len(self._waiters), len(self._tasks), len(self._overtaking)

    @property
    def followed(self) -> int:
        """How many jobs have readers of their progress."""
        return len(self._followers)

    async def close(self) -> None:
        """End the subscription. Every waiter raises BrokerUnavailable."""
        self._closed = True
        for task in (self._rechecking, self._subscribing):
            if task is not None:
                task.cancel()
        for job_id in self._waiters:
            self._resolve(job_id, BrokerUnavailable(_CLOSED))
        if self._link is not None:
            self._link.close()

    async def _ask(self, batcher: GroupCommit[str, Look], job_id: str) -> Look:
        """Look at the job; retries for as long as an error may be temporary."""
        patience = Patience(self._patience, self._broker.address)
        while not self._closed:
            try:
                return await batcher.submit(job_id)
            except Exception as error:
                pause = patience.pause_after(error)
            await asyncio.sleep(pause)
            patience.left()
        raise BrokerUnavailable(_CLOSED)

    async def _subscribe_and_watch(self, ids: list[str]) -> Sequence[Look | Exception]:
        async with asyncio.timeout(min(self._patience, RECHECK)):
            await self._subscribed()
        return await self._watch(self._channel, ids)

    async def _watch(self, channel: str, ids: list[str]) -> Sequence[Look | Exception]:
        return await self._broker.converse(watched(self._app, channel, ids, self._lifetimes, self._followers))

    def _replied(self, job_id: str, look: Look) -> None:
        task = look[1]
        if (published := self._overtaking.pop(job_id, None)) is not None:
            self._resolve(job_id, Ended(task, published))
            return
        try:
            end = ended(job_id, look)
        except ResultExpired as error:
            self._resolve(job_id, error)
            return
        if end is not None:
            self._resolve(job_id, end)
        elif job_id in self._waiters:
            self._tasks[job_id] = task
            self._progressed(job_id, look[2])
            if self._rechecking is None:
                self._rechecking = asyncio.create_task(self._recheck(), name=RECHECKING)

    def _resolve(self, job_id: str, end: Ended | Exception) -> None:
        for waiter in self._waiters.get(job_id, ()):
            if not waiter.done():
                if isinstance(end, Exception):
                    waiter.set_exception(end)
                    waiter.exception()  # marks it as retrieved: `end_of` may raise before it awaits the future
                else:
                    waiter.set_result(end)

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
                await asyncio.sleep(self._pause())
                await self._try_to_subscribe()
                await self._look_again()
        finally:
            self._rechecking = None

    def _pause(self) -> float:
        if not self.polling:
            return RECHECK
        pause, self._poll = self._poll, min(self._poll * 2, LONGEST_POLL)
        return pause

    async def _look_again(self) -> None:
        ids = list(self._waiters)
        for job_id, look in zip(ids, await self._watch(self._channel, ids), strict=True):
            if not isinstance(look, Exception):
                self._replied(job_id, look)
            elif not classify(look).passes:
                self._resolve(job_id, diagnose(self._broker.address, look).error())

    # The subscription

    @property
    def _hearing(self) -> bool:
        return self._link is not None and self._link.connected

    @property
    def _decided(self) -> bool:
        """Whether the subscription works, or the server refused it within the last `REFUSED_FOR` seconds."""
        return self._hearing or (self.polling and clock.monotonic() < self._refused_until)

    async def _subscribed(self) -> None:
        """Returns when messages arrive, or when the server refuses the subscription: then the waiters poll."""
        if self._decided:
            return
        if self._subscribing is None or self._subscribing.done():
            self._subscribing = _watched(self._subscribe())
        attempt = self._subscribing
        # When a caller is cancelled, the attempt goes on for the others. When `close` cancels the attempt, its callers
        # are not cancelled: they try again, and find that the app was closed.
        await asyncio.wait([attempt])
        if attempt.cancelled():
            raise LinkDown("the subscription was cancelled")
        attempt.result()

    async def _try_to_subscribe(self) -> None:
        """Subscribe again after a refusal. After a lost connection, another task subscribes."""
        if self.polling:
            with suppress(Exception):  # the next look raises the error that matters
                await self._subscribed()

    async def _subscribe(self) -> None:
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def hear(message: Any) -> None:
            if isinstance(message, LinkDown):
                self._lost(confirmed, message)
            elif isinstance(message, ReplyError):
                if not confirmed.done():
                    confirmed.set_exception(message)
            elif message[0] == b"message":
                self._message(message[2])
            elif not confirmed.done():
                confirmed.set_result(None)

        try:
            link = await self._broker.listen(["SUBSCRIBE", self._channel], hear)
            try:
                async with asyncio.timeout(RECHECK):
                    await confirmed
            except BaseException:
                link.close()
                raise
        except ReplyError as error:
            self._refused(error)
        else:
            self._link, self.polling = link, False

    def _refused(self, error: ReplyError) -> None:
        if not refuses_to_publish(error):
            raise error
        self.polling, self._refused_until = True, clock.monotonic() + REFUSED_FOR
        report_refusal(self._app, error)

    def _lost(self, confirmed: asyncio.Future[None], why: LinkDown) -> None:
        if not confirmed.done():
            confirmed.set_exception(why)
        elif self._waiters and not (confirmed.cancelled() or confirmed.exception() or self._closed):
            self._subscribing = _watched(self._subscribe_again())

    async def _subscribe_again(self) -> None:
        """Messages in the meantime are lost: subscribe, then look at every job that has a waiter."""
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
        name = job_id.decode("utf-8", "replace")
        if name in self._tasks:
            self._resolve(name, Ended(self._tasks[name], envelope))
        elif name in self._waiters:
            self._overtaking[name] = envelope
        elif name.startswith(OF_PROGRESS):
            self._progressed(name.removeprefix(OF_PROGRESS), envelope)

    def _progressed(self, job_id: str, text: bytes | None) -> None:
        for follower in self._followers.get(job_id, ()):
            follower.hear(from_wire(text))


class _Follower:
    """One reader of the progress of a job."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._newest: Reported | None = None

    async def news(self) -> Reported | None:
        """The newest report; None when there is none, because the job has ended."""
        await self._changed.wait()
        self._changed.clear()
        newest, self._newest = self._newest, None
        return newest

    def hear(self, reported: Reported | None) -> None:
        """A message or a look has brought this report."""
        if reported is not None and (self._newest is None or reported.order > self._newest.order):
            self._newest = reported
            self._changed.set()

    def ended(self, _: asyncio.Future[Ended]) -> None:
        """The job has ended, or it is unknown how it goes on."""
        self._changed.set()


def report_refusal(app: str, error: ReplyError) -> None:
    """Log, once per process and kind of error, that waiters poll for results."""
    if (app, error.word) in reported:
        return
    reported.add((app, error.word))
    # By the standard library's logging: structlog would print lines that the application has not asked for.
    logging.getLogger("fennelq").warning(
        "waiting for results of %s by polling, which is slower: the server refused to SUBSCRIBE to %s (%s)",
        app,
        channel_name(app, "*"),
        error,
    )


def _watched(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A task whose error counts as retrieved, even if all its waiters were cancelled in the meantime."""
    task = asyncio.create_task(work, name=SUBSCRIBING)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task
