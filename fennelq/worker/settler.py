"""Writes outcomes down: whatever finishes while one batch is under way becomes the next batch.

Each queue has batches of its own, so a queue whose keys are damaged delays no other. What is not written yet is
bounded: an outcome that finds no room waits, and its job keeps its slot meanwhile, so nothing more is read.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
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
from fennelq.service import Complaints, Outage

_logger = log.get("fennelq.settler")

MOST_UNSETTLED_BYTES = 16 << 20
_SHORT_PAUSE, _LONG_PAUSE = 0.5, 5.0


class Answer(IntEnum):
    """What became of an outcome."""

    LOST = 0
    """The job is no longer ours: nothing was written."""
    SETTLED = 1
    SETTLED_BEFORE = 2
    """It was ours, and a reply was lost on the way."""


class Settler:
    """Settles the jobs of one executor. It retries through every trouble: an outcome is worth keeping."""

    def __init__(
        self, app: str, broker: Broker, lifetimes: Lifetimes, most: int = 1000, outage: Outage | None = None
    ) -> None:
        """`most` outcomes may wait to be written at a time, and 16 MiB of them (or a single larger one)."""
        self._app, self._broker, self._lifetimes = app, broker, lifetimes
        self.tell: Callable[[Settled, Answer], None] = lambda _, __: None
        """Called with the answer to each outcome."""
        self.backlog = Backlog(most, MOST_UNSETTLED_BYTES)
        self._batchers: dict[str, Batcher[Settled, Answer]] = {}
        self._complaints = Complaints("settling", outage)

    def offer(self, delivery: Delivery, outcome: Outcome) -> bool:
        """Write this outcome down soon, if there is room for it; otherwise `settle` it later, in turn."""
        if not self.backlog.admits(_length(outcome)):
            return False
        self._submit(Settled(delivery, outcome))
        return True

    async def settle(self, delivery: Delivery, outcome: Outcome) -> None:
        """Write this outcome down as soon as there is room. Outcomes get room in the order in which they ask; one that
        is cancelled while it waits takes it at once, since it is there all the same."""
        size = _length(outcome)
        try:
            await self.backlog.room(size)
        except asyncio.CancelledError:
            self.settle_now(delivery, outcome)
        else:
            self._submit(Settled(delivery, outcome))

    def settle_now(self, delivery: Delivery, outcome: Outcome) -> None:
        """Write this outcome down soon, whether there is room or not: for what cannot wait."""
        self.backlog.add(_length(outcome))
        self._submit(Settled(delivery, outcome))

    def _submit(self, settled: Settled) -> None:
        queue = settled.delivery.queue
        batcher = self._batchers.get(queue)
        if batcher is None:
            batcher = self._batchers[queue] = Batcher(self._flush, 1000)
        _ = batcher.submit(settled)

    async def drain(self) -> None:
        """Returns when everything has been written down."""
        while self.backlog.busy:
            for batcher in list(self._batchers.values()):
                await batcher.drain()
            # What waited for room is handed over in the next turn of the loop.
            await asyncio.sleep(0)

    async def _flush(self, batch: list[Settled]) -> list[Answer | BaseException]:
        """All of one queue."""
        keys = queue_keys(self._app, batch[0].delivery.queue)
        answers: list[Answer | BaseException] = []
        try:
            for page in pages(batch, _size, lifecycle.MOST_JOBS, lifecycle.MOST_BYTES):
                written = await self._written(keys, page)
                answers += written
                self.backlog.remove(len(page), sum(map(_size, page)))
                for item, answer in zip(page, written, strict=True):
                    self.tell(item, answer)
        finally:
            # Only an executor that falls over leaves some: they must not hold up its end.
            if left := batch[len(answers) :]:
                self.backlog.remove(len(left), sum(map(_size, left)))
        return answers

    async def _written(self, keys: QueueKeys, items: Sequence[Settled]) -> list[Answer]:
        """Ask until there is a reply; a settle that is sent twice counts once."""
        longest = _SHORT_PAUSE
        while True:
            try:
                answers = await self._broker.run(lifecycle.finish(keys, items, self._lifetimes))
                self._complaints.over()
                return [Answer(answer) for answer in answers]
            except Exception as error:
                self._complaints.about(error, queue=keys.queue, outcomes=len(items))
                if classify(error) is Trouble.BUG:
                    if len(items) > 1:
                        return [answer for item in items for answer in await self._written(keys, [item])]
                    # Only a person can mend the keys of this queue: there is no hurry.
                    longest = min(longest * 2, _LONG_PAUSE)
                await asyncio.sleep(random.uniform(longest / 10, longest))


class Backlog:
    """How much is not written yet, and who waits for room."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self.jobs = self.bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def busy(self) -> bool:
        """Whether anything is to be written, or waits for room."""
        return self.jobs > 0 or bool(self._waiting)

    def admits(self, size: int) -> bool:
        """Take room for an outcome, if there is some and no earlier one waits for it."""
        if self._waiting or not self._has_room(size):
            return False
        self.add(size)
        return True

    def add(self, size: int) -> None:
        """Take room for an outcome, whether there is some or not."""
        self.jobs += 1
        self.bytes += size

    async def room(self, size: int) -> None:
        """Take room for an outcome as soon as it is its turn and there is some."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        self._let_in()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting = deque(entry for entry in self._waiting if entry[1] is not turn)
            else:
                self.remove(1, size)  # it was let in at the same moment
            raise

    def remove(self, jobs: int, size: int) -> None:
        """These are written: the ones that wait longest may come, if they fit now."""
        self.jobs -= jobs
        self.bytes -= size
        if self._waiting:
            self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self._has_room(self._waiting[0][0]):
            size, turn = self._waiting.popleft()
            if not turn.done():
                self.add(size)
                turn.set_result(None)

    def _has_room(self, size: int) -> bool:
        # A single outcome that is larger than all the room goes alone.
        return self.jobs < self._most and (self.bytes + size <= self._most_bytes or not self.jobs)


def _size(item: Settled) -> int:
    return _length(item.outcome)


def _length(outcome: Outcome) -> int:
    return len(outcome.value) + len(outcome.error) + 100
