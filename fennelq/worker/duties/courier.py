"""Takes jobs from where their creation was decided to the queue they belong to, which may be in another slot.

The decision is written down together with the whole job, under a fixed id. Enqueueing it is harmless to repeat, and
only then is it taken from the list: a courier that dies on the way is replaced by any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from fennelq.broker import verbs
from fennelq.broker.broker import Broker
from fennelq.broker.dispatch import concerns_the_call, dispatch
from fennelq.broker.keys import AppKeys, queue_keys
from fennelq.broker.talk import Talk, ask
from fennelq.client import NotedQueues
from fennelq.model.job import AnyJob
from fennelq.worker.service import Complaints

_LONGEST = 60.0
"""Who has something to be handed over wakes a courier, and every ticker looks whether something was left behind."""


class Courier:
    """Hands jobs over."""

    name = "courier"

    def __init__(self, app: str, broker: Broker) -> None:
        self._keys, self._broker = AppKeys(app), broker
        self._noted = NotedQueues()
        self._complaints = Complaints("hand-over")
        self.woken = asyncio.Event()

    async def tick(self) -> float:
        """Hand over everything there is; comes again at once if there was anything."""
        handed, cursor = 0, ""
        while cursor != "0":
            page = await self._broker.ask(verbs.schedules.handing(self._keys, cursor or "0"))
            if page.unreadable:
                strange = ValueError("a hand-over that only a later version can read")
                self._complaints.about(strange, job_id=page.unreadable[0])
            handed += await self._hand_over(page.jobs)
            cursor = page.cursor
        return 0.0 if handed else _LONGEST

    async def _hand_over(self, jobs: Sequence[AnyJob]) -> int:
        """Trouble with one queue, which may be on another server, holds up no other."""
        replies = await self._broker.converse(
            dispatch(jobs, attrgetter("queue"), self._to, attrgetter("size"))
        )
        for job, reply in zip(jobs, replies, strict=True):
            if isinstance(reply, Exception):
                if not concerns_the_call(reply):
                    raise reply
                self._complaints.about(reply, job_id=job.id)
        return sum(not isinstance(reply, Exception) for reply in replies)

    def _to(self, queue: str, jobs: list[AnyJob]) -> Talk[Sequence[Any]]:
        # First: a job in a queue that is not on the list is not lost, but no worker that serves every queue finds it.
        if self._noted.is_due(queue):
            yield from ask(verbs.queues.note_queues(self._keys.app, [queue]))
            self._noted.done(queue)
        replies = yield from ask(verbs.jobs.enqueue(queue_keys(self._keys.app, queue), jobs))
        yield from ask(verbs.schedules.handed(self._keys, [job.id for job in jobs]))
        return replies
