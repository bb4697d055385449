"""Queues whose keys are damaged or forbidden, which the reader skips for a while."""

from __future__ import annotations

from fennelq import clock

FIRST_ASIDE, _LONGEST_ASIDE = 0.5, 30.0


class Aside:
    """Queues that cannot be read now. The reader skips each for a time that doubles with every further error."""

    def __init__(self) -> None:
        self._until: dict[str, tuple[float, float]] = {}

    def __bool__(self) -> bool:
        return bool(self._until)

    def has(self, queue: str) -> bool:
        """Whether the reader skips this queue now."""
        return queue in self._until and clock.monotonic() < self._until[queue][0]

    def put(self, queue: str) -> float:
        """Skip the queue from now on; returns for how many seconds."""
        _, before = self._until.get(queue, (0.0, 0.0))
        pause = min(max(before * 2, FIRST_ASIDE), _LONGEST_ASIDE)
        self._until[queue] = (clock.monotonic() + pause, pause)
        return pause

    def forget(self, queue: str) -> None:
        """Do not skip the queue any more, because it can be read again."""
        self._until.pop(queue, None)
