"""Group commit: items that are submitted while one batch is under way become the next batch.

It needs no timer: a single call is sent at once, and under load the batches grow by themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
A = TypeVar("A")

Flush = Callable[[list[T]], Awaitable[Sequence[A | BaseException]]]


class GroupCommit(Generic[T, A]):
    """Collects items and flushes them together, one batch at a time, in order. Each item gets its own reply.

    The flush is a task of its own: cancelling a caller cancels neither the batch nor its own item once it is
    sent.
    """

    def __init__(self, flush: Flush[T, A], most: int) -> None:
        self._flush, self._most = flush, most
        self._waiting: list[tuple[T, asyncio.Future[A]]] = []
        self._flushing: asyncio.Task[None] | None = None

    def submit(self, item: T) -> asyncio.Future[A]:
        """Sends the item with the next batch; returns the future of its reply."""
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[A] = loop.create_future()
        self._waiting.append((item, reply))
        # `done()` is tested because a task that is cancelled before its first step does not run its `finally`, which
        # would replace `_flushing`.
        if self._flushing is None or self._flushing.done():
            # The task starts in the next turn of the loop, so all calls of this turn are one batch.
            self._flushing = loop.create_task(self._run())
        return reply

    async def drain(self) -> None:
        """Returns when everything submitted so far has its reply."""
        while self._flushing is not None:
            await asyncio.wait([self._flushing])

    async def _run(self) -> None:
        successor: asyncio.Task[None] | None = None
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                await self._send([pair for pair in batch if not pair[1].cancelled()])
        except asyncio.CancelledError:
            # Other code has cancelled every task of the loop. Without a new task, callers that were not cancelled would
            # wait for ever.
            if any(not reply.done() for _, reply in self._waiting):
                successor = asyncio.get_running_loop().create_task(self._run())
            raise
        finally:
            self._flushing = successor

    async def _send(self, batch: list[tuple[T, asyncio.Future[A]]]) -> None:
        try:
            replies = await self._flush([item for item, _ in batch])
            for (_, reply), value in zip(batch, replies, strict=True):
                _settle(reply, value)
        except BaseException as error:
            # `zip` also raises when replies are missing: without this, a caller without a reply would wait for ever.
            for _, reply in batch:
                _settle(reply, error)
                if not reply.cancelled():
                    reply.exception()  # marks it as retrieved: asyncio logs an error of a future that is never awaited
            if not isinstance(error, Exception):
                raise


def _settle(reply: asyncio.Future[A], value: A | BaseException) -> None:
    if reply.done():
        return
    if isinstance(value, asyncio.CancelledError):
        reply.cancel()
    elif isinstance(value, BaseException):
        reply.set_exception(value)
    else:
        reply.set_result(value)
