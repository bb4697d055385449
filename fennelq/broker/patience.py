"""How long to go on asking a server that does not reply."""

from __future__ import annotations

import random

from fennelq import clock
from fennelq.broker.connection import Address
from fennelq.broker.diagnosis import diagnose
from fennelq.broker.trouble import Trouble, classify
from fennelq.errors import BrokerUnavailable

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


class Patience:
    """How long to try to reach `address`: so many seconds from now, or from `since`. If it is renewable, the time
    begins anew with every reply. Only calls that may be repeated are tried with patience."""

    def __init__(
        self, seconds: float, address: Address, since: float | None = None, *, renewable: bool = True
    ) -> None:
        self._address, self._seconds, self._renewable = address, seconds, renewable
        self.since = clock.monotonic() if since is None else since
        """When it began: at first, or when it was renewed."""
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
            # With its cause: the cause of a BrokerUnavailable is what the server replied.
            raise self.verdict(error)
        self._remember(error)
        pause = self._pause * random.uniform(0.5, 1.0)
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)
        return min(pause, max(0.0, self._deadline - clock.monotonic()))

    def verdict(self, error: Exception) -> Exception:
        """What to raise for an error that waiting does not help: the error itself when it is not about Redis, otherwise
        BrokerUnavailable."""
        if classify(error) is Trouble.BUG:
            return error
        unavailable = diagnose(self._address, error).error()
        unavailable.__cause__ = error
        return unavailable

    def renew(self) -> None:
        """Redis has replied: the time begins anew."""
        if not self._renewable:
            return
        self.since = clock.monotonic()
        self._deadline, self._pause = self.since + self._seconds, _FIRST_PAUSE

    def _remember(self, error: Exception) -> None:
        # The last attempt is cut short by the deadline: the one before it failed for a better reason.
        cut_short = isinstance(error, TimeoutError) and clock.monotonic() >= self._deadline
        if not cut_short or isinstance(self._error, TimeoutError):
            self._error = error

    def _lost(self) -> BrokerUnavailable:
        return diagnose(self._address, self._error).error()
