"""How long to go on asking a server that does not answer."""

from __future__ import annotations

import random

from fennelq import clock
from fennelq.broker.connection import Address
from fennelq.broker.diagnosis import diagnose
from fennelq.broker.trouble import Trouble, classify
from fennelq.errors import BrokerUnavailable

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


class Patience:
    """How long to try to reach `address`: so many seconds from now, or from `since`. Only calls that may be repeated
    are tried with patience."""

    def __init__(self, seconds: float, address: Address, since: float | None = None) -> None:
        self._address = address
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
        """The seconds to wait before the next attempt. Raises the error itself when it is not about Redis, and
        BrokerUnavailable when no further attempt would help."""
        trouble = classify(error)
        if trouble is Trouble.BUG:
            raise error
        self._remember(error)
        if not trouble.passes:
            raise self._lost() from error
        pause = self._pause * random.uniform(0.5, 1.0)
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)
        return min(pause, max(0.0, self._deadline - clock.monotonic()))

    def _remember(self, error: Exception) -> None:
        # The last attempt is cut short by the deadline: the one before it failed for a better reason.
        cut_short = isinstance(error, TimeoutError) and clock.monotonic() >= self._deadline
        if not cut_short or isinstance(self._error, TimeoutError):
            self._error = error

    def _lost(self) -> BrokerUnavailable:
        return diagnose(self._address, self._error).error()
