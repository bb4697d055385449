"""When a schedule is due: cron expressions, intervals, time zones. Pure arithmetic: the caller passes the time.

Times are milliseconds since the epoch. A cron expression names times on the wall clock of its zone. When the zone skips
such a time, the tick is at the next time that exists. When the time occurs twice, the tick is at the first one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import chain, count
from zoneinfo import ZoneInfo, available_timezones

from fennelq.errors import ConfigurationError
from fennelq.model.units import epoch_ms
from fennelq.wording import suggestion

_MOST_TICKS = 1000
_YEARS_BETWEEN = 50
_ALIASES = ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually")
_RANDOM = re.compile(r"(^|[\s,])r($|[\s,/(])", re.IGNORECASE)


class Ticks:
    """The ticks of a schedule: the times at which it is due. `Schedule` has the fields."""

    __slots__ = ()

    name: str
    cron: str | None
    every_ms: int | None
    tz: str
    catchup: str
    jitter_ms: int
    start_ms: int
    end_ms: int

    def after(self, moment_ms: int) -> Iterator[int]:
        """The ticks later than this moment, in order."""
        moment_ms = max(moment_ms, self.start_ms - 1)
        for due in self._intervals(moment_ms) if self.every_ms else self._times(moment_ms):
            if self.end_ms and due > self.end_ms:
                return
            yield due

    def next_after(self, moment_ms: int) -> int | None:
        """The first tick later than this moment; None when no tick follows."""
        return next(self.after(moment_ms), None)

    def first_ticks(
        self, first_ms: int | None, until_ms: int, most: int | None = _MOST_TICKS
    ) -> tuple[list[int], int | None]:
        """At most `most` ticks, from `first_ms` to `until_ms`, and the tick that follows them."""
        if first_ms is None:
            return [], None
        found: list[int] = []
        for due in chain([first_ms], self.after(first_ms)):
            if due > until_ms or len(found) == most:
                return found, due
            found.append(due)
        return found, None

    def last_ticks(self, first_ms: int, until_ms: int) -> tuple[list[int], int | None]:
        """As `first_ticks`, but if there are more than a thousand ticks, the last thousand.

        It searches backwards from the end, in growing steps: computing all ticks of an outage of weeks takes too long.
        """
        reach = _MOST_TICKS * (self.every_ms or 1000)
        while until_ms - first_ms > reach:
            found, following = self.first_ticks(self.next_after(until_ms - reach), until_ms, None)
            if len(found) >= _MOST_TICKS:
                return found[-_MOST_TICKS:], following
            reach *= 4
        found, following = self.first_ticks(first_ms, until_ms, None)
        return found[-_MOST_TICKS:], following

    def caught_up(self, missed: list[int]) -> list[int]:
        """The missed ticks that are run late."""
        if self.catchup == "none":
            return []
        if self.catchup == "last":
            return missed[-1:]
        kind, _, number = str(self.catchup).partition(":")
        if kind != "all" or not number.isdecimal() or not 1 <= int(number) <= _MOST_TICKS:
            raise ConfigurationError(
                f"schedule {self.name}: catchup is none, last or all:<n>, not {self.catchup!r}"
            )
        return missed[-int(number) :]

    def put_off(self, due_ms: int) -> int:
        """The time at which the run of a tick may start: later by the jitter, which is always the same for a tick."""
        if not self.jitter_ms:
            return due_ms
        chance = int.from_bytes(hashlib.sha1(f"{self.name}.{due_ms}".encode()).digest()[:6], "big")
        start = due_ms + chance % (self.jitter_ms + 1)
        return min(start, self.end_ms) if self.end_ms else start

    def job_key(self, due_ms: int) -> str:
        """The key of a tick's job: every executor that claims the tick makes the same job."""
        return f"cron.{self.name}.{due_ms}"

    def _intervals(self, moment_ms: int) -> Iterator[int]:
        every, origin = self.every_ms or 1, self.start_ms
        return count(origin + ((moment_ms - origin) // every + 1) * every, every)

    def _times(self, moment_ms: int) -> Iterator[int]:
        zone, last = _zone(self.tz), moment_ms
        wall = datetime.fromtimestamp(moment_ms / 1000, UTC).astimezone(zone).replace(tzinfo=None, fold=0)
        for candidate in _walls(self.cron or "", wall):
            due = _instant(candidate, zone)
            if due > last:
                yield due
                last = due


def cron_problem(expression: str) -> str:
    """Why this is not a cron expression; empty when it is one."""
    if not isinstance(expression, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        return "it is not a text"
    if expression.startswith("@") and expression.lower() not in _ALIASES:
        return f"this alias does not exist{suggestion(expression, _ALIASES)}"
    if not expression.startswith("@") and len(expression.split()) not in (5, 6):
        return "it has five fields (minute hour day month weekday), or six with the seconds last"
    if _RANDOM.search(expression):
        return "R would be another time in every process: use jitter="
    from croniter import croniter  # imported here: most programs have no cron expressions

    try:
        croniter(expression, datetime(2026, 1, 1))  # noqa: DTZ001 - wall clock time has no zone
    except (ValueError, KeyError, AttributeError) as error:
        return str(error)
    return ""


def zone_problem(name: object) -> str:
    """Why this does not name a time zone; empty when it does."""
    try:
        _zone(name)
    except (KeyError, ValueError, OSError, TypeError):
        return _explained(name)
    return ""


def _explained(name: object) -> str:
    if not isinstance(name, str):
        return f'tz= is the name of a zone, like tz="Europe/Paris", not {name!r:.100}'
    known = available_timezones()
    if not known:
        return f"time zone {name!r} cannot be looked up: install the tzdata package"
    from difflib import get_close_matches

    near = get_close_matches(name[:100], known, n=1)
    better = f"did you mean {near[0]!r}?" if near else "write an IANA name like Europe/Paris"
    return f"{name[:100]!r} is not a time zone: {better}"


def _walls(expression: str, after: datetime) -> Iterator[datetime]:
    """The times on the wall clock that the expression names, later than `after`."""
    from croniter import CroniterBadDateError, croniter

    times = croniter(expression, after, ret_type=datetime, max_years_between_matches=_YEARS_BETWEEN)
    while True:
        try:
            yield times.get_next()
        except CroniterBadDateError:
            return


def _instant(wall: datetime, zone: ZoneInfo) -> int:
    """The moment at which a clock of the zone first shows this time; if the clock skips it, the end of the gap."""
    local = wall.replace(tzinfo=zone)
    moment = local.astimezone(UTC)
    if moment.astimezone(zone).replace(tzinfo=None) == wall:
        return epoch_ms(moment)
    return _end_of_gap(wall, zone)


def _end_of_gap(wall: datetime, zone: ZoneInfo) -> int:
    """The first moment after the gap (of daylight saving time) that contains this time.

    With the offset before the gap, the time is a moment after the transition; with the offset after the gap, it is a
    moment before it. The transition is between the two, and a binary search finds it to the second.
    """
    late = epoch_ms(wall.replace(tzinfo=zone, fold=0))
    early = epoch_ms(wall.replace(tzinfo=zone, fold=1))
    low, high = min(early, late) // 1000, max(early, late) // 1000
    before = _offset(low, zone)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _offset(middle, zone) == before else (low, middle)
    return high * 1000


def _offset(second: int, zone: ZoneInfo) -> timedelta:
    return datetime.fromtimestamp(second, zone).utcoffset() or timedelta()


@lru_cache(maxsize=256)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)
