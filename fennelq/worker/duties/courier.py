"""Moves jobs from an outbox to their queues. A script writes a job to the outbox because the queue may be in another
slot, to which the script cannot write.

A script writes its decision together with the whole job, under a fixed id. The courier enqueues the job, which is
harmless to repeat, and only then removes it from the outbox: when a courier dies in between, any other continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from fennelq import clock
from fennelq.broker import verbs
from fennelq.broker.dispatch import by_queues, concerns_the_call, in_pages, pages
from fennelq.broker.keys import AppKeys, QueueKeys, queue_keys
from fennelq.broker.noting import noted
from fennelq.broker.talk import Talk, ask
from fennelq.client import refused
from fennelq.connections import NotedQueues
from fennelq.errors import QueuePaused
from fennelq.model.wire import AnyWireJob
from fennelq.worker.bus import HandOverWaits, MessagesArrive
from fennelq.worker.duties.service import Service
from fennelq.worker.outage import LogThrottle
from fennelq.worker.per_queue import concerns_one_queue
from fennelq.worker.state import State

_AT_ONCE = 100
_LONGEST = 60.0
"""Seconds between two ticks without an event. A part that writes to an outbox wakes the courier, and tickers wake it
when jobs are left in the app's outbox."""


class Courier(Service):
    """Hands over the jobs in the outboxes to their queues."""

    name = "courier"

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._keys, self._broker = AppKeys(state.namespace), state.broker
        self._noted = NotedQueues()
        self._log = LogThrottle("hand-over")
        self._filled: set[str] = set()
        """The queues whose outboxes may contain jobs."""
        self._look_at_all = 0.0
        """The time of the next look into the outboxes of all queues."""
        state.bus.subscribe(HandOverWaits, self._announced)
        state.bus.subscribe(MessagesArrive, self._missed)

    def _announced(self, fact: HandOverWaits) -> None:
        if fact.queue is not None:
            self._filled.add(fact.queue)
        self.woken.set()

    def _missed(self, _: MessagesArrive) -> None:
        self._look_at_all = 0.0
        self.woken.set()

    async def tick(self) -> float:
        """Hand over the jobs in the outboxes of the app and of queues; ticks again at once if it has found any.

        It reads the outbox of a queue after a message that announces jobs in it, and the outboxes of all queues once a
        minute, because messages get lost. Reading a thousand outboxes every second would cost more than running jobs.
        """
        handed, queues = 0, self._queues_to_look_at()
        for some in pages(queues, _AT_ONCE):
            handed += sum(await asyncio.gather(*map(self._empty_queue, some)))
        # The outbox of the app comes last, because an error there ends the tick.
        handed_of_app, left = await self._empty(self._keys)
        self._state.note_left_in_outbox(left)
        return 0.0 if handed + handed_of_app else _LONGEST

    def _queues_to_look_at(self) -> list[str]:
        served = [keys.queue for keys in self._state.queues]
        now = clock.monotonic()
        if now >= self._look_at_all:
            self._look_at_all, self._filled = now + _LONGEST * 0.9, set(served)
        # Other queues have executors of their own, which receive the same messages.
        queues, self._filled = self._filled & set(served), set()
        return sorted(queues)

    async def _empty_queue(self, queue: str) -> int:
        """Hand over the jobs in the outbox of one queue. After an error of this queue, the other queues go on, and the
        next tick looks into this outbox again."""
        try:
            handed, _ = await self._empty(queue_keys(self._state.namespace, queue))
        except Exception as error:
            if not concerns_one_queue(error):
                # The error is about Redis as a whole: log one line for all queues, and look into all outboxes again.
                self._look_at_all = 0.0
                raise
            self._log.warn(error, queue=queue)
            self._filled.add(queue)
            return 0
        if handed:
            self._filled.add(queue)
        return handed

    async def _empty(self, box: AppKeys | QueueKeys) -> tuple[int, int]:
        """Hand over the jobs in an outbox. Returns how many were sent, and how many entries it has left there because
        this version does not carry them."""
        handed, cursor, left = 0, "", frozenset[str]()
        while cursor != "0":
            page = await self._broker.ask(verbs.outbox.handing(box, cursor or "0"))
            if page.unreadable:
                strange = ValueError("a hand-over that only a later version can read")
                self._log.warn(strange, job_id=page.unreadable[0])
            handed += await self._hand_over(box, page.jobs)
            cursor, left = page.cursor, left.union(page.left)
        return handed, len(left)

    async def _hand_over(self, box: AppKeys | QueueKeys, jobs: Sequence[AnyWireJob]) -> int:
        """Send these jobs to their queues, which may be on different servers; returns how many were sent."""
        groups = by_queues(jobs, attrgetter("queue"))
        # Concurrently: one after the other, hundreds of queues would take hundreds of round trips.
        handed = await asyncio.gather(*(self._send(box, *group) for group in groups.items()))
        return sum(handed)

    async def _send(self, box: AppKeys | QueueKeys, queue: str, jobs: list[AnyWireJob]) -> int:
        replies = await self._broker.converse(
            in_pages(jobs, partial(self._to, box, queue), attrgetter("size"))
        )
        for job, reply in zip(jobs, replies, strict=True):
            if isinstance(reply, Exception):
                if not concerns_the_call(reply):
                    raise reply
                self._log.warn(reply, job_id=job.id)
        return sum(not isinstance(reply, Exception) for reply in replies)

    def _to(self, box: AppKeys | QueueKeys, queue: str, jobs: list[AnyWireJob]) -> Talk[Sequence[Any]]:
        # List the queue first: workers that serve every queue do not find a job in a queue that is not on the list.
        if self._noted.is_due(queue):
            yield from noted(self._keys.app, [queue])
            self._noted.done(queue)
        answers: list[int | bytes | list[bytes]]
        answers = yield from ask(verbs.jobs.enqueue(queue_keys(self._keys.app, queue), jobs))
        # A paused queue takes hand-overs, but not a job that does not look like one. Such a job stays in the outbox.
        replies = [refused(queue, answer[0]) if isinstance(answer, list) else answer for answer in answers]
        arrived = [
            job.id for job, reply in zip(jobs, replies, strict=True) if not isinstance(reply, QueuePaused)
        ]
        if arrived:
            yield from ask(verbs.outbox.handed(box, arrived))
        return replies
