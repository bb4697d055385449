"""How many more jobs may run."""

from __future__ import annotations

import asyncio


class Slots:
    """Free places for running jobs. A place is taken when a job starts and freed when its handler ends."""

    def __init__(self, count: int) -> None:
        self.count = self.free = count
        self._waiter: asyncio.Future[None] | None = None

    @property
    def taken(self) -> int:
        """Jobs that run now."""
        return self.count - self.free

    def take(self) -> None:
        """A job starts."""
        self.free -= 1

    def give_back(self) -> None:
        """A handler ended."""
        self.free += 1
        self.notify()

    def notify(self) -> None:
        """Wake whoever waits for a slot, so that it looks again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def changed(self) -> None:
        """Waits until a slot is given back, or somebody notifies. By the time this returns, all handlers that
        ended in the same turn of the loop have given theirs back: one read then fills them all."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
