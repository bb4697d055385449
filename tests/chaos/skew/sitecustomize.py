"""A machine whose clock is wrong, by TEST_CLOCK_SKEW seconds: found by every interpreter that has this folder in its
PYTHONPATH, before anything else is imported. Clocks that only measure (`monotonic`) go on as they are."""

from __future__ import annotations

import datetime
import os
import time
from typing import Any, Self

SKEW = float(os.environ.get("TEST_CLOCK_SKEW", "0"))
SKEW_NS = round(SKEW * 1e9)

_time, _time_ns, _localtime, _gmtime = time.time, time.time_ns, time.localtime, time.gmtime
_datetime = datetime.datetime


class SkewedDatetime(datetime.datetime):
    """What this machine takes for now."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Self:
        return cls.fromtimestamp(_time() + SKEW, tz)

    @classmethod
    def utcnow(cls) -> Self:
        return cls.fromtimestamp(_time() + SKEW, datetime.UTC).replace(tzinfo=None)


def _skewed(function: Any) -> Any:
    def here(seconds: float | None = None) -> Any:
        return function(_time() + SKEW if seconds is None else seconds)

    return here


if SKEW:
    time.time = lambda: _time() + SKEW
    time.time_ns = lambda: _time_ns() + SKEW_NS
    time.localtime, time.gmtime = _skewed(_localtime), _skewed(_gmtime)
    datetime.datetime = SkewedDatetime  # type: ignore[misc]
