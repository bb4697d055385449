"""Bulk work at a given rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fennelq import clock
from fennelq.broker.talk import Talk, pause
from fennelq.broker.verb import MOST_JOBS
from fennelq.errors import ConfigurationError

if TYPE_CHECKING:
    pass


class Pace:
    """Limits jobs per second. A batch has at most as many jobs as fit into a tenth of a second."""

    def __init__(self, rate: float | None) -> None:
        if rate is not None and rate <= 0:
            raise ConfigurationError(f"rate must be more than 0 per second, not {rate}")
        self._rate = rate
        self._free_at = 0.0
        self.most = MOST_JOBS if rate is None else min(MOST_JOBS, max(1, int(rate / 10)))

    def wait_for(self, jobs: int) -> Talk[None]:
        """Returns when this number of jobs may be sent."""
        if self._rate is None:
            return
        now = clock.monotonic()
        yield from pause(max(0.0, self._free_at - now))
        self._free_at = max(now, self._free_at) + jobs / self._rate
