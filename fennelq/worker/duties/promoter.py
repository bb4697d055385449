"""Moves due jobs to their lanes, and sleeps until the next is due."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

from fennelq import clock
from fennelq.broker import verbs
from fennelq.broker.broker import Broker
from fennelq.broker.keys import QueueKeys
from fennelq.broker.verb import Verb
from fennelq.worker.duties.per_queue import run_per_queue
from fennelq.worker.service import Complaints

_SLICE = 100


class Promoter:
    """Promotes for all queues of an executor, in one round trip."""

    name = "promoter"
    punctual = True

    def __init__(
        self, broker: Broker, queues: Callable[[], Sequence[QueueKeys]], longest: Callable[[], float]
    ) -> None:
        """`longest` says how long it may sleep: it is woken when something becomes due sooner, if messages arrive."""
        self._broker, self._queues, self._longest = broker, queues, longest
        self._next = 0.0
        self._complaints = Complaints("promoting")
        self.woken = asyncio.Event()
        """Set when something is due before the next tick."""

    def expect(self, seconds: float) -> None:
        """Something is due in so many seconds: be there."""
        due = clock.monotonic() + seconds
        if due < self._next:
            self._next = due
            asyncio.get_running_loop().call_later(seconds, self.woken.set)

    async def tick(self) -> float:
        """Promote one slice of each queue; answers when to come again."""
        # What becomes due while this is under way may be missing in the answers.
        self._next = math.inf
        promoted = await run_per_queue(self._broker, self._queues(), _promote, self._complaints)
        waits = [due / 1000 for _, (_, due) in promoted if due >= 0]
        pause = min([self._longest(), *waits])
        self._next = min(self._next, clock.monotonic() + pause)
        return pause


def _promote(keys: QueueKeys) -> Verb[tuple[int, int]]:
    return verbs.queues.promote(keys, _SLICE)
