"""Moments and durations for people."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo


def in_words(when: datetime, now: datetime) -> str:
    """`in 4 min`, `2 h 5 min ago`, `in 3 days`."""
    seconds = (when - now).total_seconds()
    length = length_of(int(abs(seconds)))
    if not length:
        return "now"
    return f"in {length}" if seconds > 0 else f"{length} ago"


def duration_in_words(seconds: float) -> str:
    """`12 s`, `2 h 5 min`, `3 days`."""
    return length_of(int(seconds)) or "0 s"


def length_of(seconds: int) -> str:
    """`12 s`, `4 min`, `2 h 5 min`, `3 days`; empty for 0."""
    if seconds < 60:
        return f"{seconds} s" if seconds else ""
    minutes = seconds // 60
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours // 24:,} days"


def in_zone(value: datetime | None, tz: str) -> str | None:
    """A moment in ISO 8601, in this time zone."""
    return value.astimezone(ZoneInfo(tz)).isoformat(timespec="milliseconds") if value else None
