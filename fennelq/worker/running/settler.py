"""Writes outcomes in batches: the outcomes of runs that end while one batch is under way become the next batch.

Each queue has batches of its own, so that a queue whose keys are damaged does not delay the others. The outcomes that
are not written yet are limited in number and size. An outcome that finds no room waits, and its job keeps its slot, so
that the executor reads no more jobs than it can settle.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from fennelq import log
from fennelq.broker import verbs
from fennelq.broker.dispatch import in_pages, raise_first
from fennelq.broker.keys import QueueKeys, queue_keys
from fennelq.broker.talk import Pause, Talk, ask
from fennelq.broker.verbs.runs import Settled
from fennelq.model.job import Delivery
from fennelq.model.outcome import Outcome
from fennelq.worker.bus import JobLost, RunsEnded
from fennelq.worker.outage import LogThrottle
from fennelq.worker.per_queue import concerns_one_queue
from fennelq.worker.running.held import Answer
from fennelq.worker.running.progress_notes import Notes
from fennelq.worker.state import State

_logger = log.get("fennelq.settler")

MOST_UNSETTLED_BYTES = 16 << 20
"""Bytes of the outcomes that wait to be written; a single larger one may wait alone."""
_UNSETTLED_PER_SLOT = 2
"""Outcomes that wait to be written: enough to run jobs while a batch of outcomes is on its way."""
_FIRST_PAUSE, _SHORT_PAUSE, _LONG_PAUSE = 0.05, 0.5, 5.0


_ANSWERS = tuple(Answer)
"""Indexed by the number that Redis replies. A call of the enumeration costs ten times as much."""


class Settler:
    """Settles the jobs of one executor. It retries after every error, because an outcome cannot be computed again."""

    def __init__(self, state: State) -> None:
        self._app, self._broker, self._lifetimes = state.namespace, state.broker, state.lifetimes
        self._held, self._bus = state.held, state.bus
        self._at_ends = state.bus.subscribers(RunsEnded)
        self.notes = Notes(state)
        """The progress of the runs, which is written before their outcomes."""
        self.backlog = Backlog(_UNSETTLED_PER_SLOT * state.slots.count, MOST_UNSETTLED_BYTES)
        self._queues: dict[str, _Queue] = {}
        self._log = LogThrottle("settling", state.outage)

    def offer(self, settled: Settled, before: Callable[[], None] = lambda: None) -> bool:
        """Write this outcome soon, if it fits into the backlog; otherwise return False, and the caller must `settle`
        it. If it fits, `before` is called first, so that commands which it sends at once reach the server before the
        outcome."""
        queue = self._queue(settled.delivery.queue)
        if not self.backlog.admits(queue.share, _size(settled)):
            return False
        before()
        self._write_soon(queue, settled)
        return True

    async def settle(self, settled: Settled) -> None:
        """Write this outcome as soon as it fits into the backlog. Outcomes wait in order. When the caller is cancelled
        while it waits, the outcome is written anyway: the run is over, and its outcome must not get lost."""
        queue = self._queue(settled.delivery.queue)
        try:
            await self.backlog.room(queue.share, _size(settled))
        except asyncio.CancelledError:
            self._write_without_room(queue, settled)
        else:
            self._write_soon(queue, settled)

    def settle_now(self, delivery: Delivery, outcome: Outcome) -> None:
        """Write this outcome soon, even without room: for an outcome that cannot wait."""
        self._write_without_room(self._queue(delivery.queue), Settled(delivery, outcome))

    async def drain(self) -> None:
        """Returns when every outcome has been written."""
        while self.backlog.busy:
            for queue in list(self._queues.values()):
                if queue.writing is not None:
                    await asyncio.wait([queue.writing])
            # An outcome that waited for room is added to its queue in the next turn of the loop.
            await asyncio.sleep(0)

    def _queue(self, name: str) -> _Queue:
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = _Queue(queue_keys(self._app, name))
        return queue

    def _write_without_room(self, queue: _Queue, settled: Settled) -> None:
        self.backlog.add(queue.share, 1, _size(settled))
        self._write_soon(queue, settled)

    def _write_soon(self, queue: _Queue, settled: Settled) -> None:
        """Write it in the next turn of the loop, so that all outcomes of this turn are one batch."""
        queue.waiting.append(settled)
        # `done()` is tested because a task that is cancelled before its first step does not run its `finally`, which
        # would replace `writing`.
        if queue.writing is None or queue.writing.done():
            queue.writing = self._started(queue)

    def _started(self, queue: _Queue) -> asyncio.Task[None]:
        return asyncio.create_task(self._write(queue), name="settling")

    async def _write(self, queue: _Queue) -> None:
        """Write the waiting outcomes, and those that arrive while a batch is under way."""
        try:
            while queue.waiting:
                batch, queue.waiting = queue.waiting, []
                await self._write_batch(queue, batch)
        finally:
            # Other code may have cancelled every task of the loop. Then another task writes the remaining outcomes.
            queue.writing = self._started(queue) if queue.waiting else None

    async def _write_batch(self, queue: _Queue, batch: list[Settled]) -> None:
        written: list[Settled] = []
        try:
            write = partial(self._finish, queue, written)
            raise_first(await self._broker.converse(in_pages(batch, write, _size, splits=_is_refused)))
        finally:
            # Outcomes are left only when the executor fails. They must not count any more: `drain` would wait for ever.
            if left := batch[len(written) :]:
                self.backlog.remove(queue.share, len(left), sum(map(_size, left)))

    def _finish(
        self, queue: _Queue, written: list[Settled], page: Sequence[Settled]
    ) -> Talk[Sequence[Answer]]:
        """Write a page. It retries until the server replies; an outcome that is sent twice is settled once."""
        longest = _FIRST_PAUSE
        # Most executors run no job that reports progress, and look at one empty dictionary per page.
        last = self.notes.last_of(page) if self.notes.open else []
        while True:
            if last:
                last = yield from self.notes.write_last(queue.keys, last)
            try:
                replies = yield from ask(verbs.runs.finish(queue.keys, page, self._lifetimes))
                answers = [_ANSWERS[reply] for reply in replies]
            except Exception as error:
                self._log.warn(error, queue=queue.keys.queue, outcomes=len(page))
                if concerns_one_queue(error):
                    if len(page) > 1:
                        raise _Refused from error
                    # Only a person can repair the keys of this queue: retry slowly, and give its room to other queues.
                    self.backlog.block(queue.share)
                    longest = min(max(longest, _SHORT_PAUSE) * 2, _LONG_PAUSE)
                # After one lost reply, retry almost at once: outcomes that wait for room keep their slots.
                yield Pause(random.uniform(longest / 10, longest))
                longest = max(longest, min(longest * 2, _SHORT_PAUSE))
            else:
                break
        self.backlog.unblock(queue.share)
        self._log.over()
        written += page
        self.backlog.remove(queue.share, len(page), sum(map(_size, page)))
        self._publish_ends(queue.keys.queue, page, answers)
        return answers

    def _publish_ends(self, queue: str, page: Sequence[Settled], answers: Sequence[Answer]) -> None:
        held = self._held
        ended = [item for item, answer in zip(page, answers, strict=True) if held.settled(item, answer)]
        if ended and self._at_ends:
            self._bus.publish(RunsEnded(queue, ended))
        if Answer.LOST in answers:
            for item, answer in zip(page, answers, strict=True):
                if answer is Answer.LOST:
                    self._bus.publish(JobLost(item.delivery))


class _Refused(Exception):
    """The server refuses a page of outcomes. One of them may be the reason, so they are sent one by one."""


def _is_refused(error: Exception) -> bool:
    return isinstance(error, _Refused)


class Share:
    """The part of the backlog that belongs to one queue."""

    __slots__ = ("blocked", "bytes", "jobs")

    def __init__(self) -> None:
        self.jobs = self.bytes = 0
        self.blocked = False
        """Whether its outcomes are refused because its keys are damaged. Then they do not count towards the limits, so
        that other queues can go on. Their number is small, because the executor does not read such a queue either."""


class _Queue:
    """The outcomes of one queue that are not written yet."""

    __slots__ = ("keys", "share", "waiting", "writing")

    def __init__(self, keys: QueueKeys) -> None:
        self.keys, self.share = keys, Share()
        self.waiting: list[Settled] = []
        self.writing: asyncio.Task[None] | None = None


class Backlog:
    """The outcomes that are not written yet, and those that wait for room."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self.jobs = self.bytes = self._blocked_jobs = 0
        self._waiting: deque[tuple[Share, int, asyncio.Future[None]]] = deque()

    @property
    def busy(self) -> bool:
        """Whether outcomes are left to write. When outcomes wait for room, other outcomes are being written."""
        return self.jobs > 0 or self._blocked_jobs > 0

    def admits(self, share: Share, size: int) -> bool:
        """Take room for an outcome, if it fits and no earlier outcome waits for room."""
        if not share.blocked and (self._waiting or not self._has_room(size)):
            return False
        self.add(share, 1, size)
        return True

    def add(self, share: Share, jobs: int, size: int) -> None:
        """Take room for outcomes, even if they do not fit."""
        share.jobs += jobs
        share.bytes += size
        if share.blocked:
            self._blocked_jobs += jobs
        else:
            self.jobs += jobs
            self.bytes += size

    async def room(self, share: Share, size: int) -> None:
        """Take room for an outcome, when it is its turn and it fits."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((share, size, turn))
        self._let_in()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting = deque(entry for entry in self._waiting if entry[2] is not turn)
            else:
                self.remove(share, 1, size)  # it got room at the same moment
            raise

    def remove(self, share: Share, jobs: int, size: int) -> None:
        """Give back the room of written outcomes. Those that wait longest get it, if they fit now."""
        self.add(share, -jobs, -size)
        if self._waiting:
            self._let_in()

    def block(self, share: Share) -> None:
        """Do not count the outcomes of this queue, because they are refused: others need not wait for them."""
        if not share.blocked:
            share.blocked = True
            self.jobs -= share.jobs
            self.bytes -= share.bytes
            self._blocked_jobs += share.jobs
            self._let_in()

    def unblock(self, share: Share) -> None:
        """Count the outcomes of this queue again, because they are written again."""
        if share.blocked:
            share.blocked = False
            self.jobs += share.jobs
            self.bytes += share.bytes
            self._blocked_jobs -= share.jobs

    def _let_in(self) -> None:
        blocked = [entry for entry in self._waiting if entry[0].blocked]
        if blocked:
            self._waiting = deque(entry for entry in self._waiting if not entry[0].blocked)
        for entry in blocked:
            self._admit(*entry)
        while self._waiting and self._has_room(self._waiting[0][1]):
            self._admit(*self._waiting.popleft())

    def _admit(self, share: Share, size: int, turn: asyncio.Future[None]) -> None:
        if not turn.done():
            self.add(share, 1, size)
            turn.set_result(None)

    def _has_room(self, size: int) -> bool:
        # A single outcome that is larger than the limit is written alone.
        return self.jobs < self._most and (self.bytes + size <= self._most_bytes or not self.jobs)


def _size(item: Settled) -> int:
    outcome = item.outcome
    return len(outcome.value) + len(outcome.error) + 100
