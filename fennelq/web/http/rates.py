"""How many calls a user may make per second."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from fennelq import clock
from fennelq.errors import FennelqError

_USERS: Final = 10_000


class TooFast(FennelqError):
    """A user makes more calls per second than allowed; `wait` is the number of seconds until the next."""

    def __init__(self, name: str, rate: float, wait: float) -> None:
        self.wait = wait
        super().__init__(f"{name} makes more than {rate:g} calls per second: wait {wait:.1f} s")


class Rates:
    """A bucket of tokens per user: it holds those of two seconds, so a short burst passes."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def check(self, user: str) -> None:
        """Count a call. Raises TooFast."""
        if self._rate is None:
            return
        most = max(1.0, self._rate * 2)
        now = clock.monotonic()
        left, at = self._buckets.pop(user, (most, now))
        left = min(most, left + (now - at) * self._rate)
        self._buckets[user] = (max(0.0, left - 1), now) if left >= 1 else (left, now)
        while len(self._buckets) > _USERS:
            self._buckets.popitem(last=False)
        if left < 1:
            raise TooFast(user, self._rate, (1 - left) / self._rate)
