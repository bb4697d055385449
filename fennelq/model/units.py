"""Converts the durations and moments that users write to seconds and milliseconds."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

TEN_YEARS: Final = 10 * 366 * 86400.0

Seconds = float | timedelta


def seconds(value: Seconds) -> float:
    """A duration in seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


def milliseconds(value: Seconds) -> int:
    """A duration in whole milliseconds, at least one when it is not zero."""
    return max(1, round(seconds(value) * 1000)) if value else 0


def epoch_ms(moment: datetime) -> int:
    """Milliseconds since the epoch of an aware datetime."""
    return round(moment.timestamp() * 1000)
