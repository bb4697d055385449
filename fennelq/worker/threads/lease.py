"""Judges whether an executor still has its leases, by the times of the replies to its renewals.

The heartbeat renews them (`heartbeat.py`). This module depends on nothing but the clock.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from fennelq import clock, log

_logger = log.get("fennelq.heartbeat")


class Beaten(NamedTuple):
    """The times of a beat that got a reply."""

    server_ms: int
    """The server's clock."""
    sent: float
    answered: float
    """The executor's monotonic clock before and after the beat. The server read its clock in between."""

    def jump_since(self, before: Beaten) -> float:
        """How far the server's clock was set between two beats, in seconds: positive forward, negative back. A
        difference that a slow round trip can explain counts as 0."""
        moved = (self.server_ms - before.server_ms) / 1000
        return max(0.0, moved - (self.answered - before.sent)) + min(
            0.0, moved - (self.sent - before.answered)
        )


class Lease:
    """The leases of one executor: they are renewed together. The heartbeat's thread writes, any thread reads."""

    def __init__(self, length: float, interval: float) -> None:
        """`interval` is the time between two renewals, in seconds like `length`."""
        self.length, self.interval = length, interval
        self.ended = threading.Event()
        """Set when the executor stops renewing, and lets its leases run out."""
        self.soon = threading.Event()
        """Set when the next beat should not wait."""
        self.dead = False
        """Whether the thread that renews them has ended unexpectedly."""
        self._since = self._last = -1.0
        self._hold_off = length
        self._latest: Beaten | None = None
        self._before: Beaten | None = None
        self._proven = Beaten(0, 0.0, 0.0)

    @property
    def reply_timeout(self) -> float:
        """Seconds to wait for a reply on which the lease depends. After one lost reply there must be time for another
        attempt before the lease has run out."""
        return max(self.length / 4, min(1.0, self.length / 3))

    @property
    def steady(self) -> bool:
        """True when for a whole lease (two, after a pause of this process) all beats have got replies, the last of them
        not long ago, and the server's clock has not jumped. Only a steady executor recovers jobs of others: if it had
        no connection to Redis itself, the others may have had none either, and look silent although they are alive."""
        now = clock.monotonic()
        return self._since >= 0 and now - self._since >= self._hold_off and now - self._last < self.length / 2

    @property
    def answered(self) -> bool:
        """Whether the last beat has got a reply, and not long ago."""
        return self._since >= 0 and clock.monotonic() - self._last < self.length / 2 + self.interval

    def beaten(self) -> tuple[int, int]:
        """The time of the last beat by the server's clock, and how long ago its reply was by the executor's clock, in
        milliseconds. Read this before `steady`. `renewed` changes `steady` first and this value last, so a beat that
        makes the executor unsteady cannot be seen here before `steady` is False."""
        last = self._proven
        return last.server_ms, round((clock.monotonic() - last.answered) * 1000)

    def end(self) -> None:
        """Stop renewing, and let the leases run out."""
        self.ended.set()
        self.soon.set()

    def ends_within(self, pause: float) -> bool:
        """Wait for the time of the next beat; returns whether the executor has stopped renewing its leases."""
        self.soon.wait(pause)
        # Cleared before the beat: what is set during the beat asks for another one.
        self.soon.clear()
        return self.ended.is_set()

    def renewed(self, beaten: Beaten | None) -> None:
        """Record that a round of beats has got its replies; None when the keys of all its queues are damaged."""
        self._latest = beaten or self._latest
        now = clock.monotonic()
        if self._since < 0:
            self._since, self._hold_off = now, self.length
        elif now - self._last > self.length / 2:
            # This process was paused, perhaps by a call that holds the GIL. The executor that took over its job then
            # runs the same call now, and is silent in the same way. If this executor took the job back after one lease,
            # the call would never finish on any executor.
            self._since, self._hold_off = now, 2 * self.length
        elif self._clock_jumped():
            # The idle times in Redis have jumped as well, so every executor looks silent until its next beat.
            self._since, self._hold_off = now, self.length
        self._last = now
        self._before = self._latest
        self._proven = self._latest or self._proven

    def missed(self) -> None:
        """Record that a beat got no reply."""
        self._since = -1.0

    def thread_ended(self) -> None:
        """Called by the thread that renews the leases, at its end."""
        # Thread.is_alive() is not enough: a thread that dies of an error counts as alive while it writes its traceback,
        # and with a stderr that blocks, this can take for ever.
        self.dead = not self.ended.is_set()

    def _clock_jumped(self) -> bool:
        """Whether the server's clock was set between the last two beats. A jump of less than a quarter of the lease is
        harmless: together with the time between two beats it is less than a lease, so no executor looks silent."""
        if self._latest is None or self._before is None:
            return False
        jump = self._latest.jump_since(self._before)
        if abs(jump) <= self.length / 4:
            return False
        _logger.warning("server_clock_jumped", seconds=round(jump, 3))
        return True
