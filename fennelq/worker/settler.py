"""Writes outcomes down: whatever finishes while one batch is under way becomes the next batch."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from enum import IntEnum

from fennelq import log
from fennelq.broker.batch import Batcher, pages
from fennelq.broker.broker import Broker
from fennelq.broker.keys import QueueKeys, queue_keys
from fennelq.broker.trouble import Trouble, classify
from fennelq.broker.verbs import lifecycle
from fennelq.broker.verbs.lifecycle import Lifetimes, Settled
from fennelq.model.job import Delivery
from fennelq.model.outcome import Outcome
from fennelq.service import Complaints

_logger = log.get("fennelq.settler")


class Answer(IntEnum):
    """What became of an outcome."""

    LOST = 0
    """The job is no longer ours: nothing was written."""
    SETTLED = 1
    SETTLED_BEFORE = 2
    """It was ours, and a reply was lost on the way."""


class Settler:
    """Settles the jobs of one executor. It waits out every trouble: an outcome is worth keeping."""

    def __init__(self, app: str, broker: Broker, lifetimes: Lifetimes) -> None:
        self._app, self._broker, self._lifetimes = app, broker, lifetimes
        self.tell: Callable[[Settled, Answer], None] = lambda _, __: None
        """Is told the answer to each outcome."""
        self._outcomes: Batcher[Settled, Answer] = Batcher(self._flush, 1000)
        self._complaints = Complaints("settling")

    def settle(self, delivery: Delivery, outcome: Outcome) -> None:
        """Write this outcome down, soon."""
        _ = self._outcomes.submit(Settled(delivery, outcome))

    async def drain(self) -> None:
        """Returns when everything has been written down."""
        await self._outcomes.drain()

    async def _flush(self, batch: list[Settled]) -> list[Answer | BaseException]:
        by_queue: defaultdict[str, list[int]] = defaultdict(list)
        for place, item in enumerate(batch):
            by_queue[item.delivery.queue].append(place)
        answers: list[Answer | BaseException] = [Answer.LOST] * len(batch)
        for queue, places in by_queue.items():
            keys = queue_keys(self._app, queue)
            for page in pages(places, lambda i: _size(batch[i]), lifecycle.MOST_JOBS, lifecycle.MOST_BYTES):
                items = [batch[i] for i in page]
                for i, item, answer in zip(page, items, await self._say(keys, items), strict=True):
                    answers[i] = answer
                    self.tell(item, answer)
        return answers

    async def _say(self, keys: QueueKeys, items: Sequence[Settled]) -> list[Answer]:
        """Say it until it is answered; a settle that is said twice counts once."""
        while True:
            try:
                answers = await self._broker.run(lifecycle.finish(keys, items, self._lifetimes))
                return [Answer(answer) for answer in answers]
            except Exception as error:
                self._complaints.about(error, outcomes=len(items))
                if classify(error) is Trouble.BUG and len(items) > 1:
                    return [answer for item in items for answer in await self._say(keys, [item])]
                await asyncio.sleep(random.uniform(0.05, 0.5))


def _size(item: Settled) -> int:
    return len(item.outcome.value) + len(item.outcome.error) + 100
