"""When to look at queues without being woken, because a message may have got lost."""

from __future__ import annotations

import math
import random
from collections.abc import Collection

from fennelq import clock

_ROUND = 5.0
"""Seconds for a look at every queue: the longest delay by a lost message."""
_PAGE = 100
_PAGE_PAUSE = 1.0
"""Seconds between two pages. With more than 500 queues, a round takes longer, so that a fleet that serves a hundred
thousand queues does not spend its time on empty ones."""


class Rounds:
    """Looks at every queue once per round, a page at a time. The times are jittered, so that the executors of a fleet
    do not look at the same moment."""

    def __init__(self) -> None:
        self._left: list[str] = []
        self._next = 0.0

    def due(self, queues: Collection[str], *, eager: bool = False) -> list[str]:
        """The queues to look at now. `eager`: no messages arrive, so look at a page every second."""
        now = clock.monotonic()
        if eager:
            self._next = min(self._next, now + _PAGE_PAUSE)
        if now < self._next:
            return []
        if not self._left:
            self._left = list(queues)
        page, self._left = self._left[:_PAGE], self._left[_PAGE:]
        pause = _PAGE_PAUSE if eager else max(_PAGE_PAUSE, _ROUND / max(1, math.ceil(len(queues) / _PAGE)))
        self._next = now + pause * random.uniform(0.75, 1.0)
        return page

    @property
    def seconds(self) -> float:
        """Seconds until the next look."""
        return max(0.0, self._next - clock.monotonic())
