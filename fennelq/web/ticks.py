"""When a schedule runs, in words."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from fennelq import clock
from fennelq.model.schedule import Schedule
from fennelq.web import words

_DAYS: Final = (
    "Sundays",
    "Mondays",
    "Tuesdays",
    "Wednesdays",
    "Thursdays",
    "Fridays",
    "Saturdays",
    "Sundays",
)
_NUMBER: Final = re.compile(r"\d{1,2}")
_STEP: Final = re.compile(r"\*/(\d{1,2})")
_LONGEST: Final = 60


def when_of(schedule: Schedule) -> str:
    """`every 30 s`, `weekdays at 09:00, Europe/Paris`; the expression itself when it is not one of the usual ones."""
    if schedule.every_ms:
        return f"every {words.duration(schedule.every_ms / 1000)}"
    expression = (schedule.cron or "").strip()
    found = _usual(expression) if len(expression) <= _LONGEST else None
    zone = "" if schedule.tz == "UTC" else f", {schedule.tz}"
    return f"{found or words.cut(expression, _LONGEST)}{zone}"


def _usual(expression: str) -> str | None:
    parts = expression.split()
    if len(parts) != 5 or parts[3] != "*":
        return None
    minute, hour, day, _, weekday = parts
    if day == "*" and weekday == "*" and hour == "*":
        if minute == "*":
            return "every minute"
        if step := _STEP.fullmatch(minute):
            return f"every {step[1]} minutes"
        return f"every hour at minute {minute}" if _NUMBER.fullmatch(minute) else None
    if not (_NUMBER.fullmatch(minute) and _NUMBER.fullmatch(hour)):
        return None
    days = _days(day, weekday)
    return days and f"{days} at {int(hour):02}:{int(minute):02}"


def _days(day: str, weekday: str) -> str | None:
    if day != "*":
        return f"on day {day} of the month" if weekday == "*" and _NUMBER.fullmatch(day) else None
    if weekday == "*":
        return "every day"
    if weekday in ("1-5", "MON-FRI", "mon-fri"):
        return "weekdays"
    return _DAYS[int(weekday)] if weekday.isdecimal() and len(weekday) == 1 and int(weekday) < 8 else None


def next_runs(schedule: Schedule, now: datetime, number: int) -> list[datetime]:
    """The next times at which it is due."""
    found: list[datetime] = []
    at = round(now.timestamp() * 1000)
    while len(found) < number and (due := schedule.next_after(at)) is not None:
        found.append(clock.from_ms(due))
        at = due
    return found
