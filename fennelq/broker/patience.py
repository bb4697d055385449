"""How long to go on asking a server that does not answer."""

from __future__ import annotations

import random

from fennelq import clock
from fennelq.broker.trouble import Trouble, classify
from fennelq.errors import BrokerUnavailable

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


class Patience:
    """Lasts so many seconds from its making, or from `since`. Only what may be said twice is asked with patience."""

    def __init__(self, seconds: float, since: float | None = None) -> None:
        self._deadline = seconds + (clock.monotonic() if since is None else since)
        self._pause = _FIRST_PAUSE
        self._error: Exception = TimeoutError(f"no answer within {seconds:g} s")

    def left(self) -> float:
        """The seconds that an attempt may take; raises BrokerUnavailable when none are left."""
        left = self._deadline - clock.monotonic()
        if left <= 0:
            raise self._lost() from self._error
        return left

    def pause_after(self, error: Exception) -> float:
        """The seconds to wait before the next attempt; raises when no further one would help."""
        trouble = classify(error)
        if trouble is Trouble.BUG:
            raise error
        self._error = error
        if not trouble.passes:
            raise self._lost() from error
        pause = self._pause * random.uniform(0.5, 1.0)
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)
        return min(pause, max(0.0, self._deadline - clock.monotonic()))

    def _lost(self) -> BrokerUnavailable:
        return BrokerUnavailable(str(self._error) or type(self._error).__name__)
