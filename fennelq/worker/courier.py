"""Takes jobs from where their creation was decided to the queue they belong to, which may be in another slot.

The decision is written down together with the whole job, under a fixed id. Enqueueing it is harmless to repeat, and only
then is it taken from the list: a courier that dies on the way is replaced by any other.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict

from fennelq.broker.broker import Broker
from fennelq.broker.keys import AppKeys, queue_keys
from fennelq.broker.verbs import lifecycle, presence, schedule
from fennelq.model.job import AnyJob


class Courier:
    """Hands jobs over."""

    name = "courier"

    def __init__(self, app: str, broker: Broker, interval: float) -> None:
        self._keys, self._broker, self._interval = AppKeys(app), broker, interval
        self.woken = asyncio.Event()

    async def tick(self) -> float:
        """Hand over a batch; comes again at once while there are more."""
        jobs = await self._broker.ask(schedule.handing(self._keys))
        by_queue: defaultdict[str, list[AnyJob]] = defaultdict(list)
        for job in jobs:
            by_queue[job.queue].append(job)
        for queue, batch in by_queue.items():
            for start in range(0, len(batch), lifecycle.MOST_JOBS):
                await self._hand(queue, batch[start : start + lifecycle.MOST_JOBS])
        return 0.0 if jobs else self._interval

    async def _hand(self, queue: str, jobs: list[AnyJob]) -> None:
        await self._broker.run(lifecycle.enqueue(queue_keys(self._keys.app, queue), jobs))
        await self._broker.ask(schedule.handed(self._keys, [job.id for job in jobs]))
        await self._broker.ask(presence.note_queues(self._keys.app, [queue]))
