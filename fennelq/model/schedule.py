"""When a recurring job is due. Pure arithmetic: what time it is, the caller says.

Times are milliseconds since the epoch. A cron expression is read on the wall clock of its zone: a time that the zone
skips runs at the next one that exists, a time that comes twice runs the first time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Literal, Self, TypedDict, cast, get_args
from zoneinfo import ZoneInfo

import orjson
from croniter import CroniterBadDateError, croniter

from fennelq.errors import ConfigurationError
from fennelq.model.job import AnyJob, Priority
from fennelq.model.options import NAME, OptionArgs, Seconds, epoch_ms, seconds

Overlap = Literal["allow", "skip", "queue"]

_MOST_MISSED = 1000
_SHORTEST_MS = 10


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
    """The part about the schedule, and the part about the task."""
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
    cron: str | None = None
    every_ms: int | None = None
    tz: str = "UTC"
    overlap: Overlap = "allow"
    catchup: str = "none"
    jitter_ms: int = 0
    start_ms: int = 0
    end_ms: int = 0

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
    def of(cls, name: str, job: AnyJob, *, cron: str | None, every: Seconds | None, when: When) -> Self:
        """The schedule of a described call; raises ConfigurationError with the reason when it makes no sense."""
        if unknown := set(when) - set(When.__annotations__):
            raise ConfigurationError(f"schedule {name}: unknown option {min(unknown)!r}")
        return cls(
            name=name,
            task=job.task,
            queue=job.queue,
            args=job.args,
            options=job.options,
            priority=job.priority,
            cron=cron,
            every_ms=None if every is None else round(seconds(every) * 1000),
            tz=when.get("tz", "UTC"),
            overlap=when.get("overlap", "allow"),
            catchup=when.get("catchup", "none"),
            jitter_ms=round(seconds(when.get("jitter", 0)) * 1000),
            start_ms=_moment(name, when.get("start")),
            end_ms=_moment(name, when.get("end")),
        )

    # Ticks

    def next_after(self, moment_ms: int) -> int | None:
        """The first tick later than this moment; None when there is none."""
        moment_ms = max(moment_ms, self.start_ms - 1)
        due = self._next_interval(moment_ms) if self.every_ms else self._next_cron(moment_ms)
        return None if due is None or (self.end_ms and due > self.end_ms) else due

    def ticks(self, first_ms: int, until_ms: int) -> tuple[list[int], int | None]:
        """The ticks from one that is known up to a moment (the last thousand, if there are more), and the one after."""
        due: int | None = first_ms
        found: list[int] = []
        if self.every_ms and until_ms - first_ms > self.every_ms * _MOST_MISSED:
            due = self._next_interval(until_ms - self.every_ms * _MOST_MISSED)
        while due is not None and due <= until_ms:
            found.append(due)
            due = self.next_after(due)
        return found[-_MOST_MISSED:], due

    def caught_up(self, missed: list[int]) -> list[int]:
        """Which of the missed ticks are run after all."""
        if self.catchup == "none":
            return []
        if self.catchup == "last":
            return missed[-1:]
        kind, _, number = self.catchup.partition(":")
        if kind != "all" or not number.isdigit() or not 1 <= int(number) <= _MOST_MISSED:
            raise ConfigurationError(
                f"schedule {self.name}: catchup is none, last or all:<n>, not {self.catchup!r}"
            )
        return missed[-int(number) :]

    def put_off(self, due_ms: int) -> int:
        """When the run of a tick may start: later by the jitter, the same however often it is asked."""
        if not self.jitter_ms:
            return due_ms
        chance = int.from_bytes(hashlib.sha1(f"{self.name}.{due_ms}".encode()).digest()[:6], "big")
        return due_ms + chance % (self.jitter_ms + 1)

    def job_key(self, due_ms: int) -> str:
        """The key of a tick's job: whoever claims the tick makes the same job."""
        return f"cron.{self.name}.{due_ms}"

    def _next_interval(self, moment_ms: int) -> int:
        every, origin = self.every_ms or 1, self.start_ms
        return origin + ((moment_ms - origin) // every + 1) * every

    def _next_cron(self, moment_ms: int) -> int | None:
        zone = _zone(self.tz)
        wall = datetime.fromtimestamp(moment_ms / 1000, UTC).astimezone(zone).replace(tzinfo=None, fold=0)
        for candidate in _walls(self.cron or "", wall):
            due = _instant(candidate, zone)
            if due > moment_ms:
                return due
        return None

    # On the wire

    def to_wire(self) -> bytes:
        """The schedule as JSON, with the keys in order: equal schedules are equal texts."""
        said: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        said["args"], said["options"] = self.args.decode(), self.options.decode()
        return orjson.dumps(
            {k: v for k, v in said.items() if v not in (None, "", 0)}, option=orjson.OPT_SORT_KEYS
        )

    @classmethod
    def from_wire(cls, raw: bytes) -> Self:
        """A schedule that was written; raises ValueError when it cannot be read."""
        try:
            said = cast("dict[str, Any]", orjson.loads(raw))
            args, options = str(said.pop("args", "")), str(said.pop("options", ""))
            return cls(**said, args=args.encode(), options=options.encode())
        except (TypeError, AttributeError, ConfigurationError) as error:
            raise ValueError(f"the schedule cannot be read: {error}") from None


def preview(expression: str, tz: str, after_ms: int, count: int) -> list[int]:
    """The next ticks of a cron expression; raises ConfigurationError when it or the zone is wrong."""
    schedule = Schedule(name="preview", task="a:b", queue="q", args=b"", cron=expression, tz=tz)
    found: list[int] = []
    due = schedule.next_after(after_ms)
    while due is not None and len(found) < count:
        found.append(due)
        due = schedule.next_after(due)
    return found


def _check_times(schedule: Schedule) -> None:
    if schedule.every_ms is not None and schedule.every_ms < _SHORTEST_MS:
        raise ConfigurationError(f"schedule {schedule.name}: an interval is at least {_SHORTEST_MS / 1000} s")
    try:
        _zone(schedule.tz)
    except (KeyError, ValueError, OSError):
        raise ConfigurationError(
            f"schedule {schedule.name}: {schedule.tz!r} is no time zone: write an IANA name like Europe/Paris"
        ) from None
    if schedule.cron is not None:
        try:
            croniter(schedule.cron, datetime(2026, 1, 1))  # noqa: DTZ001 - wall clock time has no zone
        except (ValueError, KeyError, AttributeError) as error:
            raise ConfigurationError(
                f"schedule {schedule.name}: cron expression {schedule.cron!r} cannot be read: {error}"
            ) from None
    if schedule.jitter_ms < 0:
        raise ConfigurationError(f"schedule {schedule.name}: jitter must not be negative")
    if schedule.end_ms and schedule.end_ms < schedule.start_ms:
        raise ConfigurationError(f"schedule {schedule.name}: end comes before start")


def _walls(expression: str, after: datetime) -> Iterator[datetime]:
    """The times on the wall that the expression names, from one on; the moment itself excluded."""
    times = croniter(expression, after, ret_type=datetime, max_years_between_matches=50)
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
    if moment.tzinfo is None:
        raise ConfigurationError(f"schedule {name}: start and end must know their time zone")
    return epoch_ms(moment)
