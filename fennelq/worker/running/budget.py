"""The jobs that the rate of an executor allows it to take now."""

from __future__ import annotations

from fennelq import clock

_LATE = 0.1
"""Seconds for which unused budget is kept. Without it, each job that is taken a few milliseconds late would be lost to
the rate: at 10/s, an executor would take 588 jobs a minute."""
_PACK = 0.05
"""Seconds to wait at least: at more than 20 jobs a second, a wait for each single job would cost more than the jobs."""


class Budget:
    """Allows a rate. In any `w` seconds, the executor takes at most `1 + (w + 0.1) × rate` jobs."""

    def __init__(self, per_second: float) -> None:
        self._rate = per_second
        self._most = 1.0 + _LATE * per_second
        self._saved, self._at = self._most, clock.monotonic()

    @property
    def left(self) -> int:
        """How many jobs may be taken now."""
        self._grow()
        return int(self._saved)

    @property
    def seconds(self) -> float:
        """Seconds to wait until the next jobs may be taken; 0 when one may be taken now."""
        self._grow()
        return 0.0 if self._saved >= 1 else max((1 - self._saved) / self._rate, _PACK)

    def spend(self, jobs: int) -> None:
        """Record that so many jobs were taken."""
        # What was not used while the reply was under way is not saved up either.
        self._grow()
        self._saved -= jobs

    def _grow(self) -> None:
        now = clock.monotonic()
        self._saved = min(self._most, self._saved + (now - self._at) * self._rate)
        self._at = now
