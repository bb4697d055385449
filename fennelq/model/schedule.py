"""When a recurring job is due. Pure arithmetic: what time it is, the caller says.

Times are milliseconds since the epoch. A cron expression is read on the wall clock of its zone: a time that the zone
skips runs at the next one that exists, a time that comes twice runs the first time.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from itertools import chain, count, islice
from typing import Any, Final, Literal, Self, TypedDict, cast, get_args
from zoneinfo import ZoneInfo, available_timezones

import orjson
from croniter import CroniterBadDateError, croniter

from fennelq.errors import ConfigurationError, suggestion
from fennelq.model.checks import NAME
from fennelq.model.job import Priority
from fennelq.model.options import OPTIONS, OptionArgs
from fennelq.model.units import TEN_YEARS, Seconds, epoch_ms, seconds
from fennelq.model.wire import AnyWireJob

Overlap = Literal["allow", "skip", "queue"]

_MOST_TICKS = 1000
_SHORTEST_MS = 10
_YEARS_BETWEEN = 50
_ALIASES = ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually")
_RANDOM = re.compile(r"(^|[\s,])r($|[\s,/(])", re.IGNORECASE)


class When(TypedDict, total=False):
    """What can be said about a schedule besides its times."""

    tz: str
    """IANA name of the zone a cron expression is read in. Default: UTC."""
    overlap: Overlap
    """While the previous run has not ended: start another (allow), leave this one out (skip), run it after (queue)."""
    catchup: str
    """Ticks missed while nothing ran: none, last, or all:<n> for the last n of them. Default: none."""
    jitter: Seconds
    """Each run is put off by anything up to this. Default: 0."""
    start: datetime
    """No run before."""
    end: datetime
    """No run after."""


class ScheduledArgs(When, OptionArgs, total=False):
    """What the decorators of recurring tasks accept: about the schedule, and about the task."""


def split_when(said: ScheduledArgs) -> tuple[When, OptionArgs]:
    """The part about the schedule, and the part about the task. Raises ConfigurationError for what is neither."""
    known = {**When.__annotations__, **OptionArgs.__annotations__}
    if unknown := set(said) - set(known):
        raise ConfigurationError(f"unknown option {min(unknown)!r}{suggestion(min(unknown), known)}")
    times = {name: value for name, value in said.items() if name in When.__annotations__}
    options = {name: value for name, value in said.items() if name not in When.__annotations__}
    return cast("When", times), cast("OptionArgs", options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A recurring call: what to run, when, and what to do when things get in each other's way."""

    name: str
    task: str
    queue: str
    args: bytes
    options: bytes = b""
    priority: Priority = "normal"
    expires_ms: int = 0
    max_deliveries: int = 0
    cron: str | None = None
    every_ms: int | None = None
    tz: str = "UTC"
    overlap: Overlap = "allow"
    catchup: str = "none"
    jitter_ms: int = 0
    start_ms: int = 0
    end_ms: int = 0
    carried: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    """What else its jobs carry, by the names of the table of fields."""

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name) or len(self.name) > 100:
            raise ConfigurationError(
                f"schedule name {self.name[:120]!r} is not valid: use 1-100 of A-Z a-z 0-9 _ . -"
            )
        if (self.cron is None) == (self.every_ms is None):
            raise ConfigurationError(f"schedule {self.name}: say either a cron expression or an interval")
        _check_times(self)
        if self.overlap not in get_args(Overlap):
            raise ConfigurationError(
                f"schedule {self.name}: overlap is allow, skip or queue, not {self.overlap!r}"
            )
        self.caught_up([])
        if self.next_after(max(self.start_ms - 1, 0)) is None and self.end_ms == 0:
            raise ConfigurationError(f"schedule {self.name}: {self.cron!r} never happens")

    @classmethod
    def of(cls, name: str, job: AnyWireJob, *, cron: str | None, every: Seconds | None, when: When) -> Self:
        """The schedule of a described call; raises ConfigurationError with the reason when it makes no sense."""
        if unknown := set(when) - set(When.__annotations__):
            said = min(unknown)
            raise ConfigurationError(
                f"schedule {name}: unknown option {said!r}{suggestion(said, When.__annotations__)}"
            )
        carried = dict(job.carried)
        _check_no_single_call(name, carried)
        return cls(
            name=name,
            task=job.task,
            queue=job.queue,
            args=job.args,
            options=str(carried.pop("options", "")).encode(),
            priority=carried.pop("priority", "normal"),
            expires_ms=carried.pop("expires_ms", 0),
            max_deliveries=carried.pop("max_deliveries", 0),
            carried={name: value for name, value in carried.items() if name in _CARRIED},
            cron=cron,
            every_ms=None if every is None else _duration_ms(name, "the interval", every),
            tz=when.get("tz", "UTC"),
            overlap=when.get("overlap", "allow"),
            catchup=when.get("catchup", "none"),
            jitter_ms=_duration_ms(name, "jitter", when.get("jitter", 0)),
            start_ms=_moment(name, when.get("start")),
            end_ms=_moment(name, when.get("end")),
        )

    # Ticks

    def after(self, moment_ms: int) -> Iterator[int]:
        """The ticks later than this moment, in order."""
        moment_ms = max(moment_ms, self.start_ms - 1)
        for due in self._intervals(moment_ms) if self.every_ms else self._times(moment_ms):
            if self.end_ms and due > self.end_ms:
                return
            yield due

    def next_after(self, moment_ms: int) -> int | None:
        """The first tick later than this moment; None when there is none."""
        return next(self.after(moment_ms), None)

    def first_ticks(
        self, first_ms: int | None, until_ms: int, most: int | None = _MOST_TICKS
    ) -> tuple[list[int], int | None]:
        """The ticks from one that is known up to a moment, no more than `most`, and the one after them."""
        if first_ms is None:
            return [], None
        found: list[int] = []
        for due in chain([first_ms], self.after(first_ms)):
            if due > until_ms or len(found) == most:
                return found, due
            found.append(due)
        return found, None

    def last_ticks(self, first_ms: int, until_ms: int) -> tuple[list[int], int | None]:
        """The same, but when there are more than a thousand the last of them.

        Looks back from the end, further and further: to go through all that an outage of weeks has left takes too long.
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
        """Which of the missed ticks are run after all."""
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
        """When the run of a tick may start: later by the jitter, the same however often it is asked."""
        if not self.jitter_ms:
            return due_ms
        chance = int.from_bytes(hashlib.sha1(f"{self.name}.{due_ms}".encode()).digest()[:6], "big")
        start = due_ms + chance % (self.jitter_ms + 1)
        return min(start, self.end_ms) if self.end_ms else start

    def job_key(self, due_ms: int) -> str:
        """The key of a tick's job: whoever claims the tick makes the same job."""
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

    # On the wire

    def to_wire(self) -> bytes:
        """The schedule as JSON, with the keys in order: equal schedules are equal texts.

        What is as usual is left out, so that an older version can read whatever uses nothing that it does not know.
        """
        own: dict[str, Any] = {
            name: value
            for name, field in self.__dataclass_fields__.items()
            if (value := getattr(self, name)) != field.default and name != "carried"
        }
        texts = {name: value.decode() for name, value in own.items() if isinstance(value, bytes)}
        return orjson.dumps({**own, **self.carried, **texts}, option=orjson.OPT_SORT_KEYS)

    @classmethod
    def from_wire(cls, raw: bytes) -> Self:
        """A schedule that was written; raises ValueError when it cannot be read, as one of a later version may be."""
        try:
            own = cast("dict[str, Any]", orjson.loads(raw))
            args, options = str(own.pop("args", "")), str(own.pop("options", ""))
            carried = {name: own.pop(name) for name in _CARRIED if name in own}
            return cls(**own, args=args.encode(), options=options.encode(), carried=carried)
        except (ValueError, TypeError, AttributeError, ConfigurationError) as error:
            raise ValueError(f"the schedule cannot be read: {error}") from None


def preview(expression: str, tz: str, after_ms: int, number: int) -> list[int]:
    """The next ticks of a cron expression; raises ConfigurationError when it or the zone is wrong."""
    schedule = Schedule(name="preview", task="a:b", queue="q", args=b"", cron=expression, tz=tz)
    return [*islice(schedule.after(after_ms), number)]


def _check_times(schedule: Schedule) -> None:
    if schedule.every_ms is not None and schedule.every_ms < _SHORTEST_MS:
        raise ConfigurationError(f"schedule {schedule.name}: an interval is at least {_SHORTEST_MS / 1000} s")
    try:
        _zone(schedule.tz)
    except (KeyError, ValueError, OSError, TypeError):
        raise ConfigurationError(f"schedule {schedule.name}: {_no_zone(schedule.tz)}") from None
    if schedule.cron is not None and (reason := _unreadable(schedule.cron)):
        raise ConfigurationError(
            f"schedule {schedule.name}: cron expression {schedule.cron!r} cannot be read: {reason}"
        )
    if schedule.jitter_ms < 0:
        raise ConfigurationError(f"schedule {schedule.name}: jitter must not be negative")
    if schedule.end_ms and schedule.end_ms < schedule.start_ms:
        raise ConfigurationError(f"schedule {schedule.name}: end comes before start")


def _unreadable(expression: str) -> str:
    """Why this is no cron expression; empty when it is one."""
    if not isinstance(expression, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        return "it is no text"
    if expression.startswith("@") and expression.lower() not in _ALIASES:
        return f"there is no such alias{suggestion(expression, _ALIASES)}"
    if not expression.startswith("@") and len(expression.split()) not in (5, 6):
        return "it has five fields (minute hour day month weekday), or six with the seconds last"
    if _RANDOM.search(expression):
        return "R would be another time in every process: use jitter="
    try:
        croniter(expression, datetime(2026, 1, 1))  # noqa: DTZ001 - wall clock time has no zone
    except (ValueError, KeyError, AttributeError) as error:
        return str(error)
    return ""


def _no_zone(name: object) -> str:
    if not isinstance(name, str):
        return f'tz= is the name of a zone, like tz="Europe/Paris", not {name!r:.100}'
    known = available_timezones()
    if not known:
        return f"time zone {name!r} cannot be looked up: install the tzdata package"
    near = get_close_matches(name[:100], known, n=1)
    better = f"did you mean {near[0]!r}?" if near else "write an IANA name like Europe/Paris"
    return f"{name[:100]!r} is no time zone: {better}"


_CARRIED: Final = frozenset(
    option.carried for option in OPTIONS.values() if option.reader == "server"
) - frozenset(Schedule.__dataclass_fields__)
"""The fields of a job that a schedule has no attribute for, and carries all the same."""

_OF_ONE_CALL: Final = {"delay_ms": "delay", "at_ms": "at", "idempotency": "key", "nonce": "job_id"}


def _check_no_single_call(name: str, carried: Mapping[str, Any]) -> None:
    for what, option in _OF_ONE_CALL.items():
        if what in carried:
            raise ConfigurationError(
                f"schedule {name}: {option}= belongs to a single call, and this one is made again and again"
            )


def _duration_ms(name: str, what: str, value: Seconds) -> int:
    # Whoever writes every="30" may mean minutes.
    is_duration = isinstance(value, int | float | timedelta)  # pyright: ignore[reportUnnecessaryIsInstance]
    length = seconds(value) if is_duration else -1.0
    if not 0 <= length <= TEN_YEARS:
        raise ConfigurationError(
            f"schedule {name}: {what} must be seconds or a timedelta, up to ten years, not {value!r}"
        )
    return round(length * 1000)


def _walls(expression: str, after: datetime) -> Iterator[datetime]:
    """The times on the wall that the expression names, from one on; the moment itself excluded."""
    times = croniter(expression, after, ret_type=datetime, max_years_between_matches=_YEARS_BETWEEN)
    while True:
        try:
            yield times.get_next()
        except CroniterBadDateError:
            return


def _instant(wall: datetime, zone: ZoneInfo) -> int:
    """The moment a clock of the zone first shows this time, or, when it skips it, the moment it skips to."""
    local = wall.replace(tzinfo=zone)
    moment = local.astimezone(UTC)
    if moment.astimezone(zone).replace(tzinfo=None) == wall:
        return epoch_ms(moment)
    return _end_of_gap(wall, zone)


def _end_of_gap(wall: datetime, zone: ZoneInfo) -> int:
    """The first moment after a gap that swallows this time. With the offset before the gap the time lies after its
    end, with the offset after it before; the transition is between, found to the second."""
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


def _moment(name: str, moment: datetime | None) -> int:
    if moment is None:
        return 0
    if not isinstance(moment, datetime) or moment.tzinfo is None:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"schedule {name}: start and end are datetimes that know their time zone")
    return epoch_ms(moment)
