"""Bulk work at a given rate."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from fennelq import clock
from fennelq.broker.talk import Talk, pause
from fennelq.broker.verb import MOST_JOBS
from fennelq.errors import ConfigurationError

_USUAL: Final = 0.1
_LONGEST: Final = 0.5
"""A batch has the jobs of so many seconds, depending on how long the last one took."""
_MADE_UP_FOR: Final = 2.0
"""The seconds of a stall for which the pace makes up afterwards."""
_LATE: Final = 0.05
"""Seconds by which a pause may usually be too long."""


class Pace:
    """Limits jobs per second. The rate is the average; after a stall it sends a tenth more until it has caught up, and
    never more than that within a second.

    Call `wait_for` before each batch, and `done` after it. A batch has at most `most` jobs.
    """

    def __init__(self, rate: float | None) -> None:
        if rate is not None and rate <= 0:
            raise ConfigurationError(f"rate must be more than 0 per second, not {rate}")
        self._rate = rate
        self._due: float | None = None
        """When the next jobs are due; None before the first."""
        self._may_follow = 0.0
        """When they may follow, if they are late: what is late is not sent in one burst."""
        self._sent: deque[tuple[float, int]] = deque()
        """The batches of the last second: when each was sent, and its number of jobs."""
        self._took = 0.0

    @property
    def most(self) -> int:
        """The most jobs that the next batch may have: those of a tenth of a second, or of the time that the last batch
        took, as over a slow network. Otherwise the rate would not be reached."""
        if self._rate is None:
            return MOST_JOBS
        usual, since = self._rate * _USUAL, clock.monotonic() - 1
        jobs = max(usual, math.ceil(self._highest * min(self._took, _LONGEST)))
        room = int(self._highest - sum(number for sent, number in self._sent if sent > since))
        return min(MOST_JOBS, max(1, min(int(jobs), room if room > 0 else MOST_JOBS)))

    def wait_for(self, jobs: int) -> Talk[None]:
        """Returns when this number of jobs may be sent."""
        if self._rate is None:
            return
        now = clock.monotonic()
        due = now if self._due is None else self._due
        yield from pause(max(0.0, max(due, self._may_follow, self._has_room(jobs)) - now))
        now = clock.monotonic()
        self._due = max(due, now - _MADE_UP_FOR) + jobs / self._rate
        self._may_follow = max(self._may_follow, now - _LATE) + jobs / self._highest
        while self._sent and self._sent[0][0] <= now - 1:
            self._sent.popleft()
        self._sent.append((now, jobs))

    def done(self) -> None:
        """The batch was sent."""
        if self._sent:
            self._took = clock.monotonic() - self._sent[-1][0]

    @property
    def _highest(self) -> float:
        """The most jobs within a second."""
        return 0.0 if self._rate is None else self._rate + self._rate / 10

    def _has_room(self, jobs: int) -> float:
        """When a second has room for so many more jobs."""
        room = max(self._highest, jobs) - jobs
        for sent, number in reversed(self._sent):
            room -= number
            if room < 0:
                return sent + 1
        return 0.0
