"""Decides how long to retry while a server does not reply."""

from __future__ import annotations

import random

from fennelq import clock
from fennelq.broker.connection import Address
from fennelq.broker.diagnosis import diagnose
from fennelq.broker.trouble import Trouble, classify
from fennelq.errors import BrokerUnavailable

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


class Patience:
    """The time to try to reach `address`: `seconds` from now, or from `since`. If it is renewable, the time begins anew
    with every reply. Use it only for calls that are safe to repeat."""

    def __init__(
        self, seconds: float, address: Address, since: float | None = None, *, renewable: bool = True
    ) -> None:
        self._address, self._seconds, self._renewable = address, seconds, renewable
        self.since = clock.monotonic() if since is None else since
        """When the time began, or was last renewed."""
        self._deadline = self.since + seconds
        self._pause = _FIRST_PAUSE
        self._error: Exception = TimeoutError(f"no reply within {seconds:g} s")

    def left(self) -> float:
        """The seconds that an attempt may take; raises BrokerUnavailable when none are left."""
        left = self._deadline - clock.monotonic()
        if left <= 0:
            raise self._lost() from self._error
        return left

    def pause_after(self, error: Exception) -> float:
        """The seconds to wait before the next attempt. Raises the error itself when it is not about Redis, and
        BrokerUnavailable when no further attempt would help."""
        if not classify(error).passes:
            # Not `from error`: `verdict` sets the cause of a BrokerUnavailable, and the error itself keeps its own.
            raise self.verdict(error)
        self.remember(error)
        pause = self._pause * random.uniform(0.5, 1.0)
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)
        return min(pause, max(0.0, self._deadline - clock.monotonic()))

    def verdict(self, error: Exception) -> Exception:
        """The exception to raise after the last attempt: the error itself when it is not about Redis, otherwise a
        BrokerUnavailable."""
        if classify(error) is Trouble.BUG:
            return error
        unavailable = diagnose(self._address, error).error()
        unavailable.__cause__ = error
        return unavailable

    def remember(self, error: Exception) -> None:
        """Record the error of an attempt: it is the cause of the BrokerUnavailable when the time is over."""
        # The deadline cuts the last attempt short. Its timeout explains less than the error of an earlier attempt.
        cut_short = isinstance(error, TimeoutError) and clock.monotonic() >= self._deadline
        if not cut_short or isinstance(self._error, TimeoutError):
            self._error = error

    def renew(self) -> None:
        """Begin the time anew, because Redis has replied."""
        if not self._renewable:
            return
        self.since = clock.monotonic()
        self._deadline, self._pause = self.since + self._seconds, _FIRST_PAUSE

    def _lost(self) -> BrokerUnavailable:
        return diagnose(self._address, self._error).error()
