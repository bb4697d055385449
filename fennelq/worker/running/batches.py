"""How many jobs of a backlog an executor takes at once: half as many as it has slots, or as many as are free."""

from __future__ import annotations

import sys

from fennelq import clock
from fennelq.worker.running.slots import Slots

_WAITED = 0.5
"""The server is the limit when the executor had no job for this share of a fetch."""
_UNTIL_NEXT_TRY = 50
"""Fetches for all free slots, before a smaller one finds out whether the server is still the limit."""


class Batches:
    """An executor that takes short jobs for all its slots at once runs them, and then waits for the next ones: it and
    the server take turns. With half as many, the server fetches some while the executor runs the others.

    But a call has a cost of its own, so smaller batches cost more per job. When many executors keep the server busy,
    jobs run meanwhile elsewhere, and only this cost remains. An executor detects this by its own waiting: then it takes
    jobs for all free slots for a while.
    """

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._half = (slots.count + 1) // 2
        self._large = 0
        """Fetches for all free slots that are left until the next smaller one."""
        self._sent: float | None = None
        """When the fetch under way was sent, if it shows whether the server is the limit."""

    @property
    def most(self) -> int:
        """How many jobs of a backlog to take at once, at most."""
        return sys.maxsize if self._large else self._half

    def sent(self) -> None:
        """A fetch from a backlog has been sent."""
        self._sent = None
        if self._large:
            self._large -= 1
        elif self._slots.taken:
            # Without running jobs there is nothing else to do, however fast the server replies.
            self._sent = clock.monotonic()

    def replied(self) -> None:
        """Its reply has arrived. Call this before its jobs start."""
        sent, self._sent = self._sent, None
        if sent is None:
            return
        now = clock.monotonic()
        if self._slots.idle_for(now) > _WAITED * (now - sent):
            self._large = _UNTIL_NEXT_TRY
