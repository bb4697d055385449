"""The slots of an executor, which limit the jobs that run at the same time."""

from __future__ import annotations

import asyncio
import sys

from fennelq import clock
from fennelq.worker.running.budget import Budget


class Slots:
    """A job takes a slot when it starts, and gives it back when its handler has ended and its outcome has found room in
    the settler's backlog.

    `most` limits how many jobs may start altogether; `spent` is set when that many have started. `rate` limits how many
    may be taken per second.
    """

    def __init__(self, count: int, most: int | None = None, rate: float | None = None) -> None:
        self.count = count
        self.taken = 0
        """Jobs that run now."""
        self.stuck = 0
        """Those of these jobs that go on although the executor asked them to stop."""
        self.spent = asyncio.Event()
        self.left = self._most = sys.maxsize if most is None else most
        """Jobs that may still start in this executor's life."""
        self._budget = None if rate is None else Budget(rate)
        self._waiter: asyncio.Future[None] | None = None
        self._idle_since = clock.monotonic()

    @property
    def started(self) -> int:
        """Jobs that have started so far."""
        return self._most - self.left

    @property
    def free(self) -> int:
        """How many jobs may start now."""
        free = min(self.count - self.taken, self.left)
        return free if self._budget is None else min(free, self._budget.left)

    @property
    def held_back(self) -> float | None:
        """Seconds until the rate allows a job to start; None without a rate, and while no slot is free anyway."""
        if self._budget is None or min(self.count - self.taken, self.left) <= 0:
            return None
        return self._budget.seconds

    def spend(self, jobs: int) -> None:
        """Take these jobs off what the rate allows."""
        if self._budget is not None:
            self._budget.spend(jobs)

    def take(self) -> None:
        """Take a slot for a job that starts."""
        self.taken += 1
        self.left -= 1
        if self.left == 0:
            self.spent.set()

    def give_back(self) -> None:
        """Give back the slot of a handler that has ended."""
        self.taken -= 1
        if self.taken == 0:
            self._idle_since = clock.monotonic()
        self.notify()

    def idle_for(self, now: float) -> float:
        """Seconds for which no job has run until now, by the monotonic clock."""
        return 0.0 if self.taken else now - self._idle_since

    def note_stuck(self) -> None:
        """Count a job that goes on although the executor asked it to stop."""
        self.stuck += 1

    def end_stuck(self) -> None:
        """Count down, because a stuck job has ended."""
        self.stuck -= 1

    def notify(self) -> None:
        """Wake the reader if it waits for a slot, so that it looks again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def changed(self) -> None:
        """Waits until a slot is given back, or `notify` is called. It returns one turn of the loop later: by then all
        handlers that ended in the same turn have given their slots back, and one read fills them all."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
