"""How sure an executor can be of its leases, judged by when its renewals were answered. Pure but for the clock."""

from __future__ import annotations

import threading
from typing import NamedTuple

from fennelq import clock, log

_logger = log.get("fennelq.heartbeat")


class Beaten(NamedTuple):
    """A beat that was answered."""

    server_ms: int
    """The server's clock."""
    sent: float
    answered: float
    """Our monotonic clock before and after it: the server read its own clock in between."""

    def jump_since(self, before: Beaten) -> float:
        """Seconds by which the server's clock has moved more (or, below 0, less) than time has passed between two
        beats, at the least: round trips may be slow, and explain some of the difference."""
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
        """Set when the executor renews no more, and lets its leases run out."""
        self.dead = False
        """Whether the thread that renews them has ended before it was to."""
        self._since = self._last = -1.0
        self._hold_off = length
        self._latest: Beaten | None = None
        self._before: Beaten | None = None
        self._proven = Beaten(0, 0.0, 0.0)

    @property
    def reply_timeout(self) -> float:
        """Seconds to wait for a reply on which the lease depends: when one reply is lost, the next attempt must be
        answered before the lease has run out."""
        return max(self.length / 4, min(1.0, self.length / 3))

    @property
    def steady(self) -> bool:
        """True after a whole lease of beats that were answered (two, if it was paused before), the last of them not
        long ago, and during which the server's clock did not jump. An executor that is not steady does not judge
        others: it may have been cut off, and so may Redis have been."""
        now = clock.monotonic()
        return self._since >= 0 and now - self._since >= self._hold_off and now - self._last < self.length / 2

    @property
    def answered(self) -> bool:
        """Whether the last beat was answered, not long ago."""
        return self._since >= 0 and clock.monotonic() - self._last < self.length / 2 + self.interval

    def beaten(self) -> tuple[int, int]:
        """When the last beat was answered: by the server's clock, and how long ago by ours, in milliseconds. Read it
        before `steady`: a beat that makes this executor unsteady is published here only afterwards."""
        last = self._proven
        return last.server_ms, round((clock.monotonic() - last.answered) * 1000)

    def renewed(self, beaten: Beaten | None) -> None:
        """A round of beats was answered; None when there was no queue to beat for."""
        self._latest = beaten or self._latest
        now = clock.monotonic()
        if self._since < 0:
            self._since, self._hold_off = now, self.length
        elif now - self._last > self.length / 2:
            # It was paused itself, perhaps by a call that holds the GIL. Then the executor that took over its job runs
            # that very call now and is as silent: if its jobs were taken after one lease, the call would never finish.
            self._since, self._hold_off = now, 2 * self.length
        elif self._clock_jumped():
            # Idle times have jumped with it, so every executor looks silent until its next beat.
            self._since, self._hold_off = now, self.length
        self._last = now
        self._before = self._latest
        self._proven = self._latest or self._proven

    def missed(self) -> None:
        """A beat was not answered."""
        self._since = -1.0

    def thread_ended(self) -> None:
        """The thread that renews the leases ends."""
        # Not read from Thread.is_alive(): while a dying thread writes its traceback to a stderr that blocks, it
        # still counts as alive.
        self.dead = not self.ended.is_set()

    def _clock_jumped(self) -> bool:
        """Whether the server's clock was set between the last two beats. Less than a quarter of the lease is harmless:
        with the time between two beats it is still less than a lease."""
        if self._latest is None or self._before is None:
            return False
        jump = self._latest.jump_since(self._before)
        if abs(jump) <= self.length / 4:
            return False
        _logger.warning("server_clock_jumped", seconds=round(jump, 3))
        return True
