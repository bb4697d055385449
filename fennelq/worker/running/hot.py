"""Which queues to ask next: those that are not known to be drained."""

from __future__ import annotations

from collections.abc import Iterable

from fennelq.model.routing import Routing

Asked = list[tuple[str, int]]
"""Queues to ask at the same time, each with the number of jobs to take at most."""


class HotQueues:
    """The queues that may have jobs. A queue is hot until a fetch has found it empty, after the latest reason to ask.

    Strict routing asks one queue at a time, in the given order. Otherwise the queue comes first from which the fewest
    jobs were taken for its weight. A queue that becomes hot starts level with the others: it need not wait until they
    are drained, and it gains nothing by having been drained.
    """

    def __init__(self) -> None:
        self._hot: dict[str, _Hot] = {}

    def __contains__(self, queue: str) -> bool:
        return queue in self._hot

    def __len__(self) -> int:
        return len(self._hot)

    def add(self, queues: Iterable[str]) -> None:
        """Ask these queues soon. A fetch that is under way does not count: it may have missed the new job."""
        level = min((one.taken for one in self._hot.values()), default=0.0)
        for queue in queues:
            hot = self._hot.get(queue)
            if hot is None:
                self._hot[queue] = _Hot(level)
            else:
                hot.reasons += 1

    def discard(self, queue: str) -> None:
        """Do not ask this queue any more."""
        self._hot.pop(queue, None)

    def reasons(self, queue: str) -> int:
        """A number that changes with every reason to ask this queue. Read it before the fetch, for `fetched`."""
        hot = self._hot.get(queue)
        return hot.reasons if hot else 0

    def fetched(self, queue: str, jobs: int, weight: int, reasons: int, *, drained: bool) -> None:
        """Record the reply to a fetch."""
        hot = self._hot.get(queue)
        if hot is None:
            return
        hot.taken += jobs / weight
        hot.backlog = not drained
        if drained and hot.reasons == reasons:
            del self._hot[queue]

    def next(self, routing: Routing, free: int) -> Asked:
        """The queues to ask now, for this many free slots: one that is known to have a backlog gets all of them. Queues
        of which this is not known share them, because most have only one job, or none."""
        if routing.strict:
            first = next((queue for queue in routing.weights if queue in self._hot), None)
            return [] if first is None else [(first, free)]
        if len(self._hot) == 1:
            return [(next(iter(self._hot)), free)]
        order = sorted(self._hot, key=lambda queue: (self._hot[queue].taken, self._hot[queue].backlog))
        if not order or self._hot[order[0]].backlog:
            return [(queue, free) for queue in order[:1]]
        asked: list[str] = []
        for queue in order[:free]:
            if self._hot[queue].backlog:
                break
            asked.append(queue)
        share, rest = divmod(free, len(asked))
        return [(queue, share + (place < rest)) for place, queue in enumerate(asked)]


class _Hot:
    """A queue that may have jobs."""

    __slots__ = ("backlog", "reasons", "taken")

    def __init__(self, level: float) -> None:
        self.taken = level
        """Jobs taken for its weight, counted from the level of the others when it became hot."""
        self.backlog = False
        """Whether the last fetch has left jobs."""
        self.reasons = 0
