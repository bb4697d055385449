"""Takes jobs from where their creation was decided to the queue they belong to, which may be in another slot.

The decision is written down together with the whole job, under a fixed id. Enqueueing it is harmless to repeat, and
only then is it taken from the list: a courier that dies on the way is replaced by any other.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from fennelq.broker import verbs
from fennelq.broker.batch import pages
from fennelq.broker.broker import Broker
from fennelq.broker.keys import AppKeys, queue_keys
from fennelq.broker.trouble import Trouble, classify
from fennelq.client import NotedQueues
from fennelq.model.wire import AnyWireJob
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

    async def _hand_over(self, jobs: Sequence[AnyWireJob]) -> int:
        """Trouble with one queue, which may be on another server, holds up no other."""
        by_queue: defaultdict[str, list[AnyWireJob]] = defaultdict(list)
        for job in jobs:
            by_queue[job.queue].append(job)
        going = (self._to(queue, batch) for queue, batch in by_queue.items())
        tried = await asyncio.gather(*going, return_exceptions=True)
        for error in tried:
            if isinstance(error, BaseException):
                raise error
        return sum(handed for handed in tried if isinstance(handed, int))

    async def _to(self, queue: str, jobs: list[AnyWireJob]) -> int:
        # First: a job in a queue that nobody knows of is not lost, but nobody comes for it.
        if self._noted.is_due(queue):
            await self._broker.ask(verbs.queues.note_queues(self._keys.app, [queue]))
            self._noted.done(queue)
        of_one_call = pages(jobs, lambda job: job.size, verbs.jobs.MOST_JOBS, verbs.jobs.MOST_BYTES)
        return sum([await self._enqueue(queue, batch) for batch in of_one_call])

    async def _enqueue(self, queue: str, jobs: list[AnyWireJob]) -> int:
        try:
            await self._broker.run(verbs.jobs.enqueue(queue_keys(self._keys.app, queue), jobs))
        except Exception as error:
            if classify(error) is not Trouble.BUG:
                raise
            if len(jobs) > 1:
                return sum([await self._enqueue(queue, [job]) for job in jobs])
            self._complaints.about(error, job_id=jobs[0].id)
            return 0
        await self._broker.ask(verbs.schedules.handed(self._keys, [job.id for job in jobs]))
        return len(jobs)
