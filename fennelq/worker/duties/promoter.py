"""Moves due jobs to their lanes, and sleeps until the next job is due."""

from __future__ import annotations

import asyncio
import math
import random

from fennelq import clock
from fennelq.broker import verbs
from fennelq.broker.keys import QueueKeys, queue_keys
from fennelq.broker.verb import Verb
from fennelq.worker.bus import JobDue, MessagesArrive, RoutingChanged
from fennelq.worker.duties.service import Service
from fennelq.worker.outage import LogThrottle
from fennelq.worker.per_queue import run_per_queue
from fennelq.worker.rounds import Rounds, length_of
from fennelq.worker.state import State

_SLICE = 100
_WATCHERS = 9
"""How many executors of a fleet should know when a job is due. One is enough, but executors end."""
_JITTER = 1.25
_FETCHES = 5.0
"""Seconds between two fetches from a queue in which nothing happens."""
_NEAR = 0.05
"""Seconds. A job that is due so soon is remembered by all who find it."""


class Promoter(Service):
    """Promotes for the queues of an executor.

    When it knows that a job of a queue is due, it promotes that queue alone. It also looks at all queues, a page at a
    time, as often as its share of the fleet's looks demands. A due time that it finds in this way is remembered by a
    few executors only: otherwise the whole fleet would promote at the same moment, for a single job.
    """

    name = "promoter"
    punctual = True

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self.due: dict[str, float] = {}
        """Queue → when to promote it, by the executor's clock."""
        self._rounds = Rounds()
        self._waker: asyncio.TimerHandle | None = None
        self._log = LogThrottle("promoting")
        state.bus.subscribe(JobDue, self._learn)
        state.bus.subscribe(MessagesArrive, lambda _: self._look_at_all())
        state.bus.subscribe(RoutingChanged, self._forget)

    def _learn(self, job: JobDue) -> None:
        if job.announced or job.seconds <= self._horizon:
            self._expect(job.queue, job.seconds)

    def _expect(self, queue: str, seconds: float) -> None:
        """Promote this queue in so many seconds, or sooner if an earlier due time is known."""
        due = clock.monotonic() + seconds
        if due < self.due.get(queue, math.inf):
            self.due[queue] = due
            self._wake_in(seconds)

    def _wake_in(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if self._waker is None or self._waker.cancelled() or self._waker.when() > loop.time() + seconds:
            if self._waker is not None:
                self._waker.cancel()
            self._waker = loop.call_later(seconds, self._wake)

    def _wake(self) -> None:
        self._waker = None
        self.woken.set()

    def _look_at_all(self) -> None:
        self._rounds.begin_again()
        self.woken.set()

    def _forget(self, change: RoutingChanged) -> None:
        for queue in change.left:
            self.due.pop(queue, None)

    async def tick(self) -> float:
        """Promote a limited number of jobs of each queue that is due or looked at; returns the seconds until the next
        time."""
        now = clock.monotonic()
        due = {queue for queue, moment in self.due.items() if moment <= now}
        page = filter(
            self._is_unseen, self._rounds.due(self._state.routing.weights, self._state.longest_sleep)
        )
        for queue in due:
            # Before the call: the reply may miss a job that becomes due sooner while the call is under way.
            del self.due[queue]
        keys = [queue_keys(self._state.namespace, queue) for queue in sorted(due.union(page))]
        try:
            promoted = await run_per_queue(self._state.broker, keys, _promote, self._log)
        except Exception:
            self.due.update(dict.fromkeys(due.difference(self.due), now))
            self._rounds.begin_again()
            raise
        for one, (moved, wait) in promoted:
            if wait >= 0 and (moved or self._watches(wait / 1000, after_due=one.queue in due)):
                self._expect(one.queue, wait / 1000)
        until_due = min(self.due.values(), default=math.inf) - clock.monotonic()
        return max(0.0, min(self._rounds.seconds, until_due))

    def _is_unseen(self, queue: str) -> bool:
        """Whether no fetch of this executor has told lately when the next job of the queue is due. An idle executor
        fetches more often than this duty looks, so the looks are for one that is busy, or takes no jobs."""
        return self._state.looked.get(queue, -math.inf) <= clock.monotonic() - self._round

    @property
    def _round(self) -> float:
        """The most seconds between two looks at a queue."""
        return length_of(len(self._state.routing.weights), self._state.longest_sleep)

    @property
    def _horizon(self) -> float:
        """Due times further away than this many seconds are left to the executors that look later. In this time,
        the fetches of an idle fleet make as many looks at the queue as there should be watchers."""
        looks_per_second = self._state.colleagues / _FETCHES
        return max(_NEAR, min(self._round * _JITTER, _WATCHERS / looks_per_second))

    def _watches(self, seconds: float, *, after_due: bool) -> bool:
        """Whether to remember the next due time, when no job was due. After a job that another executor has promoted,
        that one remembers the next. Some of the others do as well, in case it ends."""
        if after_due and random.random() >= _WATCHERS / self._state.colleagues:
            return False
        return seconds <= self._horizon


def _promote(keys: QueueKeys) -> Verb[tuple[int, int]]:
    return verbs.queues.promote(keys, _SLICE)
