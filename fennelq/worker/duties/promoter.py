"""Moves due jobs to their lanes, and sleeps until the next job is due."""

from __future__ import annotations

import asyncio
import math

from fennelq import clock
from fennelq.broker import verbs
from fennelq.broker.keys import QueueKeys
from fennelq.broker.verb import Verb
from fennelq.worker.bus import JobDue
from fennelq.worker.duties.service import Service
from fennelq.worker.outage import LogThrottle
from fennelq.worker.per_queue import run_per_queue
from fennelq.worker.state import State

_SLICE = 100


class Promoter(Service):
    """Promotes for all queues of an executor, in one round trip."""

    name = "promoter"
    punctual = True

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._next = 0.0
        self._log = LogThrottle("promoting")
        state.bus.subscribe(JobDue, lambda job: self.expect(job.seconds))

    def expect(self, seconds: float) -> None:
        """Tick in this many seconds, if that is sooner than the next tick."""
        due = clock.monotonic() + seconds
        if due < self._next:
            self._next = due
            asyncio.get_running_loop().call_later(seconds, self.woken.set)

    async def tick(self) -> float:
        """Promote a limited number of jobs of each queue; returns the seconds until the next due job."""
        # Reset before the call: the replies may miss a job that becomes due sooner while the call is under way.
        self._next = math.inf
        promoted = await run_per_queue(self._state.broker, self._state.queues, _promote, self._log)
        waits = [due / 1000 for _, (_, due) in promoted if due >= 0]
        pause = min([self._state.longest_sleep, *waits])
        self._next = min(self._next, clock.monotonic() + pause)
        return pause


def _promote(keys: QueueKeys) -> Verb[tuple[int, int]]:
    return verbs.queues.promote(keys, _SLICE)
