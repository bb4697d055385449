"""The messages that have woken this executor, and for which it has not asked yet.

A message means that this executor, and no other, is expected to take the job. If it cannot, it wakes another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence

from fennelq.broker import verbs
from fennelq.broker.dispatch import pages
from fennelq.broker.keys import QueueKeys, queue_keys
from fennelq.broker.verb import Verb
from fennelq.worker.outage import LogThrottle
from fennelq.worker.state import State

AT_ONCE = 500
"""Queues that are left in one round trip."""


class Rings:
    """Messages to one executor. `pass_on` sends those without an answer to others."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._unanswered: dict[str, set[str]] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._log = LogThrottle("waking others", state.outage)

    def add(self, queue: str, lane: str) -> None:
        """A message has arrived: this lane of the queue has a new entry."""
        self._unanswered.setdefault(queue, set()).add(lane)

    def answered(self, queue: str) -> None:
        """The executor asks the queue now, with a free slot."""
        self._unanswered.pop(queue, None)

    def pass_on(self) -> None:
        """Wake other executors instead of this one."""
        if self._unanswered:
            unanswered, self._unanswered = self._unanswered, {}
            keys = [queue_keys(self._state.namespace, queue) for queue in unanswered]
            self._keep(self._sent([verbs.runs.ring(one, sorted(unanswered[one.queue])) for one in keys]))

    def leave(self, queues: Sequence[QueueKeys]) -> None:
        """Remove this executor from those that sleep, and pass on what has arrived until then.

        It does not wait for the replies, because a stop must not wait for Redis. Messages that arrive nevertheless are
        passed on while the running jobs end.
        """
        self._keep(self._stay_awake(queues))
        self.pass_on()

    async def _stay_awake(self, queues: Sequence[QueueKeys]) -> None:
        for page in pages(queues, AT_ONCE):
            await self._sent([verbs.executors.stay_awake(keys, self._state.name) for keys in page])

    def _keep(self, sending: Coroutine[None, None, None]) -> None:
        # Kept in an attribute: the loop itself keeps only a weak reference to a task.
        task = asyncio.create_task(sending)
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _sent(self, calls: Sequence[Verb[int]]) -> None:
        for reply in await self._state.broker.run_each(calls):
            if isinstance(reply, BaseException):
                # A lost message delays the job until an executor looks.
                self._log.warn(reply)
