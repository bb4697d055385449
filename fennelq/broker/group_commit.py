"""Group commit: whatever is asked for while one batch is under way becomes the next batch.

No timer: a lone call goes out at once, and under load batches grow by themselves.
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
        """The reply to come for this item."""
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[A] = loop.create_future()
        self._waiting.append((item, reply))
        if self._flushing is None:
            # The task starts on the next turn of the loop, so all calls of this turn are one batch.
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
            # Cancelled with everything else on the loop: the items that still wait are not to wait for ever.
            if self._waiting:
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
            # Also when there are too few replies: a caller without one would wait for ever.
            for _, reply in batch:
                _settle(reply, error)
                if not reply.cancelled():
                    reply.exception()  # outcomes are submitted without waiting: it counts as retrieved
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
