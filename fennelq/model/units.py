"""Converts the durations and moments that users write to seconds and milliseconds."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Final

TEN_YEARS: Final = 10 * 366 * 86400.0

Seconds = float | timedelta
"""A duration: a number of seconds, or a timedelta."""

_LONGEST_WRITTEN: Final = 10 * TEN_YEARS
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)", re.ASCII)
_UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def seconds(value: Seconds) -> float:
    """A duration in seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


def milliseconds(value: Seconds) -> int:
    """A duration in whole milliseconds, at least one when it is not zero."""
    return max(1, round(seconds(value) * 1000)) if value else 0


def epoch_ms(moment: datetime) -> int:
    """Milliseconds since the epoch of an aware datetime."""
    return round(moment.timestamp() * 1000)


def duration_in(text: str) -> float | None:
    """Seconds, of `60`, `90s`, `30m`, `1h30m` or `7d`; None when the text is not a duration, or longer than a
    century."""
    written = text.strip()
    if _NUMBER.fullmatch(written):
        length = float(written)
    elif written and not _PART.sub("", written):
        length = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(written))
    else:
        return None
    return length if length <= _LONGEST_WRITTEN else None
