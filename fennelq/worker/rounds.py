"""When to look at queues without a reason: messages may have got lost."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterator

from fennelq import clock
from fennelq.broker.dispatch import pages

_PAGE = 100
_PAGE_PAUSE = 1.0
"""Seconds between two pages, at least: an executor of a hundred thousand queues must not spend its time on empty ones.
"""


class Rounds:
    """Looks at every queue once per round, a page at a time. The times are jittered, so that the executors of a fleet
    do not look at the same moment."""

    def __init__(self) -> None:
        self._pages: Iterator[list[str]] = iter(())
        self._next = 0.0

    @property
    def seconds(self) -> float:
        """Seconds until the next page."""
        return max(0.0, self._next - clock.monotonic())

    def due(self, queues: Collection[str], seconds: float) -> list[str]:
        """The queues to look at now, when a round should take so many seconds. With very many queues it takes more."""
        now = clock.monotonic()
        pause = pause_of(len(queues), seconds)
        # A round that is shorter than the one before takes effect at once.
        self._next = min(self._next, now + pause)
        if now < self._next:
            return []
        # Not zero, even while there are no queues: otherwise the caller would look again at once, for ever.
        self._next = now + pause * random.uniform(0.75, 1.0)
        return self.page(queues)

    def page(self, queues: Collection[str]) -> list[str]:
        """The next queues of this round, or the first of a new one."""
        nothing: list[str] = []
        page = next(self._pages, nothing)
        if not page:
            self._pages = pages(list(queues), _PAGE)
            page = next(self._pages, nothing)
        return page

    def begin_again(self) -> None:
        """Start a new round now."""
        self._pages, self._next = iter(()), 0.0


def length_of(queues: int, seconds: float) -> float:
    """How long a round through so many queues takes at most, when it should take so many seconds."""
    number = _number_of_pages(queues)
    return max(seconds, number * _PAGE_PAUSE) if number > 1 else seconds


def pause_of(queues: int, seconds: float) -> float:
    """How long to wait between two pages."""
    return length_of(queues, seconds) / _number_of_pages(queues)


def _number_of_pages(queues: int) -> int:
    return max(1, math.ceil(queues / _PAGE))
