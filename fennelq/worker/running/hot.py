"""Which queues to ask next: those that are not known to be drained."""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterable
from itertools import count
from typing import NamedTuple

from fennelq.model.routing import Routing

Asked = list[tuple[str, int]]
"""Queues to ask at the same time, each with the number of jobs to take at most."""


class HotQueues:
    """The queues that may have jobs. A queue is hot until a fetch has found it empty, after the latest reason to ask.

    A strict routing orders the queues: one is asked only when all before it are drained. Among queues of the same
    place, the one comes first from which the fewest jobs were taken for its weight. A queue that becomes hot starts
    level with the one that was asked last: it need not wait until the others have been drained. What was taken from it
    before still counts, so a queue with a job now and then gets no more than its share.
    """

    def __init__(self) -> None:
        self._routing = Routing({})
        self._hot: dict[str, _Hot] = {}
        self._order: list[_Entry] = []
        """A heap. Entries that are not the latest of their queue are skipped."""
        self._numbers = count()
        self._level: dict[int, float] = {}
        """Place → what was taken from the queue that was asked last."""
        self._taken: dict[str, float] = {}
        """Queue → what was taken from it while it was hot."""

    def __contains__(self, queue: str) -> bool:
        return queue in self._hot

    def __len__(self) -> int:
        return len(self._hot)

    def serve(self, routing: Routing) -> None:
        """Order the queues by this routing from now on."""
        self._routing, self._order = routing, []
        self._hot = {queue: hot for queue, hot in self._hot.items() if queue in routing.weights}
        self._taken = {queue: taken for queue, taken in self._taken.items() if queue in routing.weights}
        for queue in self._hot:
            self._put(queue)

    def add(self, queues: Iterable[str], *, woken: bool = False) -> None:
        """Ask these queues soon; before the others, if a message has woken the executor. A fetch that is under way does
        not count: it may have missed the new job."""
        for queue in queues:
            hot = self._hot.get(queue)
            if hot is None:
                level = self._level.get(self._routing.place(queue), 0.0)
                self._hot[queue] = _Hot(max(level, self._taken.get(queue, 0.0)), woken=woken)
                self._put(queue)
            else:
                hot.reason = next(self._numbers)
                if woken and not hot.woken:
                    hot.woken = True
                    self._put(queue)

    def has_backlog(self, queue: str) -> bool:
        """Whether the last fetch from this queue has left jobs."""
        hot = self._hot.get(queue)
        return hot is not None and hot.backlog

    def discard(self, queue: str) -> None:
        """Do not ask this queue any more."""
        if hot := self._hot.pop(queue, None):
            self._taken[queue] = hot.taken

    def reason(self, queue: str) -> int:
        """The number of the latest reason to ask this queue. Read it before the fetch, for `fetched`."""
        hot = self._hot.get(queue)
        return hot.reason if hot else 0

    def fetched(self, queue: str, jobs: int, reason: int, *, drained: bool) -> None:
        """Record the reply to a fetch."""
        hot = self._hot.get(queue)
        if hot is None:
            return
        hot.taken += jobs / self._routing.weights.get(queue, 1)
        if drained and hot.reason == reason:
            self.discard(queue)
            return
        hot.backlog, hot.woken = not drained, False
        self._put(queue)

    def next(self, free: int, of_backlog: int = sys.maxsize) -> Asked:
        """The queues to ask now, for this many free slots: one that is known to have a backlog gets all of them, up to
        `of_backlog`. Queues of which this is not known share them, because most have only one job, or none."""
        first = self._first()
        if first is None:
            return []
        self._level[first.place] = first.taken
        if first.backlog:
            return [(first.queue, min(free, of_backlog))]
        asked: list[_Entry] = []
        while (
            (entry := self._first())
            and entry.place == first.place
            and not entry.backlog
            and len(asked) < free
        ):
            asked.append(heapq.heappop(self._order))
        for entry in asked:
            heapq.heappush(self._order, entry)
        share, rest = divmod(free, len(asked))
        return [(entry.queue, share + (place < rest)) for place, entry in enumerate(asked)]

    def _first(self) -> _Entry | None:
        while self._order:
            entry = self._order[0]
            hot = self._hot.get(entry.queue)
            if hot is not None and hot.number == entry.number:
                return entry
            heapq.heappop(self._order)
        return None

    def _put(self, queue: str) -> None:
        hot = self._hot[queue]
        hot.number = next(self._numbers)
        place = self._routing.place(queue)
        heapq.heappush(self._order, _Entry(place, hot.taken, hot.backlog, not hot.woken, hot.number, queue))


class _Entry(NamedTuple):
    """A hot queue in the order in which they are asked."""

    place: int
    taken: float
    backlog: bool
    unwoken: bool
    number: int
    queue: str


class _Hot:
    """A queue that may have jobs."""

    __slots__ = ("backlog", "number", "reason", "taken", "woken")

    def __init__(self, taken: float, *, woken: bool) -> None:
        self.taken = taken
        """Jobs taken for its weight."""
        self.woken = woken
        """Whether a message has announced a job."""
        self.backlog = False
        """Whether the last fetch has left jobs."""
        self.reason = 0
        self.number = 0
        """The number of its latest entry."""
