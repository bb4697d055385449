"""A schedule: a recurring call, its options, and its form in Redis. `ticks` computes when it is due."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final, Literal, Self, TypedDict, cast, get_args

import orjson

from fennelq.errors import ConfigurationError
from fennelq.model.checks import NAME
from fennelq.model.job import Priority
from fennelq.model.options import OPTIONS, OptionArgs
from fennelq.model.ticks import Ticks, cron_problem, zone_problem
from fennelq.model.units import TEN_YEARS, Seconds, epoch_ms, seconds
from fennelq.model.wire import AnyWireJob
from fennelq.wording import suggestion

Overlap = Literal["allow", "skip", "queue"]
"""What a tick does while the previous run has not ended: start the next run, skip it, or let it wait."""

_SHORTEST_MS = 10


class When(TypedDict, total=False):
    """The options of a schedule besides its times."""

    tz: str
    """IANA name of the time zone of a cron expression. Default: UTC."""
    overlap: Overlap
    """If the previous run has not ended: start anyway (allow), leave this run out (skip), or run it afterwards
    (queue)."""
    catchup: str
    """Which ticks to run that were missed while no worker ran: none, last, or all:<n> (the last n). Default: none."""
    jitter: Seconds
    """Each run starts later by a random time up to this. Default: 0."""
    start: datetime
    """No run before this moment."""
    end: datetime
    """No run after this moment."""


class ScheduledArgs(When, OptionArgs, total=False):
    """The keyword arguments of the decorators of recurring tasks: options of the schedule and of the task."""


def split_when(args: ScheduledArgs) -> tuple[When, OptionArgs]:
    """The options of the schedule, and those of the task. Raises ConfigurationError for any other name."""
    known = {**When.__annotations__, **OptionArgs.__annotations__}
    if unknown := set(args) - set(known):
        raise ConfigurationError(f"unknown option {min(unknown)!r}{suggestion(min(unknown), known)}")
    times = {name: value for name, value in args.items() if name in When.__annotations__}
    options = {name: value for name, value in args.items() if name not in When.__annotations__}
    return cast("When", times), cast("OptionArgs", options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule(Ticks):
    """A recurring call: which job, when, and what to do when a run is late or still under way."""

    name: str
    task: str
    queue: str
    args: bytes
    """The arguments of each job, as JSON."""
    options: bytes = b""
    """Those options of each job that the worker reads, as JSON."""
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

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name) or len(self.name) > 100:
            raise ConfigurationError(
                f"schedule name {self.name[:120]!r} is not valid: use 1-100 of A-Z a-z 0-9 _ . -"
            )
        if (self.cron is None) == (self.every_ms is None):
            raise ConfigurationError(f"schedule {self.name}: give either a cron expression or an interval")
        _check_times(self)
        if self.overlap not in get_args(Overlap):
            raise ConfigurationError(
                f"schedule {self.name}: overlap is allow, skip or queue, not {self.overlap!r}"
            )
        self.caught_up([])
        if self.next_after(max(self.start_ms - 1, 0)) is None and self.end_ms == 0:
            raise ConfigurationError(f"schedule {self.name}: {self.cron!r} never happens")


@dataclass(frozen=True, slots=True, kw_only=True)
class WireSchedule(Schedule):
    """A schedule as it is written to Redis: with whatever else its jobs carry. Every schedule that users get is one."""

    carried: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    """What else its jobs carry, by the names of the table of fields."""

    def __repr__(self) -> str:
        return Schedule.__repr__(self).removeprefix("Wire")

    @classmethod
    def of(cls, name: str, job: AnyWireJob, *, cron: str | None, every: Seconds | None, when: When) -> Self:
        """The schedule of a described call; raises ConfigurationError, with the reason, for one that cannot work."""
        if unknown := set(when) - set(When.__annotations__):
            first = min(unknown)
            raise ConfigurationError(
                f"schedule {name}: unknown option {first!r}{suggestion(first, When.__annotations__)}"
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

    # On the wire

    def to_wire(self) -> bytes:
        """The schedule as JSON, with the keys in order: equal schedules are equal texts.

        Fields with their default are left out, so that an older version can read every schedule that uses no new field.
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
        """Reads the text that `to_wire` wrote; raises ValueError when it cannot, for example for a later version's."""
        try:
            own = cast("dict[str, Any]", orjson.loads(raw))
            args, options = str(own.pop("args", "")), str(own.pop("options", ""))
            carried = {name: own.pop(name) for name in _CARRIED if name in own}
            if strange := own.keys() - cls.__dataclass_fields__.keys():
                raise ValueError(f"{min(strange)!r} is not a field of a schedule")
            return cls(**own, args=args.encode(), options=options.encode(), carried=carried)
        except (ValueError, TypeError, AttributeError, ConfigurationError) as error:
            raise ValueError(f"the schedule cannot be read: {error}") from None


def preview(expression: str, tz: str, after_ms: int, number: int) -> list[int]:
    """The next ticks of a cron expression; raises ConfigurationError when the expression or the zone is wrong."""
    schedule = Schedule(name="preview", task="a:b", queue="q", args=b"", cron=expression, tz=tz)
    return [*islice(schedule.after(after_ms), number)]


def _check_times(schedule: Schedule) -> None:
    if schedule.every_ms is not None and schedule.every_ms < _SHORTEST_MS:
        raise ConfigurationError(f"schedule {schedule.name}: an interval is at least {_SHORTEST_MS / 1000} s")
    if reason := zone_problem(schedule.tz):
        raise ConfigurationError(f"schedule {schedule.name}: {reason}")
    if schedule.cron is not None and (reason := cron_problem(schedule.cron)):
        raise ConfigurationError(
            f"schedule {schedule.name}: cron expression {schedule.cron!r} cannot be read: {reason}"
        )
    if schedule.jitter_ms < 0:
        raise ConfigurationError(f"schedule {schedule.name}: jitter must not be negative")
    if schedule.end_ms and schedule.end_ms < schedule.start_ms:
        raise ConfigurationError(f"schedule {schedule.name}: end comes before start")


_CARRIED: Final = frozenset(
    ["gates", *(option.carried for option in OPTIONS.values() if option.reader == "server")]
) - frozenset(Schedule.__dataclass_fields__)
"""The fields of a job that a schedule carries without having an attribute for them."""

_OF_ONE_CALL: Final = {"delay_ms": "delay", "at_ms": "at", "idempotency": "key", "nonce": "job_id"}

_INSTEAD: Final = {"key": ". If single calls need it, declare a second task without key= for the schedule"}


def _check_no_single_call(name: str, carried: Mapping[str, Any]) -> None:
    if "dedupe" in carried or "wait_ms" in carried or "duplicate" in carried:
        raise ConfigurationError(
            f"schedule {name}: dedupe= and on_duplicate= are for single calls. While the run before has not ended, "
            'overlap="skip" leaves a run out, and overlap="queue" runs it afterwards. If single calls need dedupe=, '
            "declare a second task without key= and dedupe= for the schedule"
        )
    for what, option in _OF_ONE_CALL.items():
        if what in carried:
            raise ConfigurationError(
                f"schedule {name}: {option}= belongs to a single call, and this one is made again and again"
                + _INSTEAD.get(option, "")
            )


def _duration_ms(name: str, what: str, value: Seconds) -> int:
    # A text like every="30" is refused: it may mean minutes.
    is_duration = isinstance(value, int | float | timedelta)  # pyright: ignore[reportUnnecessaryIsInstance]
    length = seconds(value) if is_duration else -1.0
    if not 0 <= length <= TEN_YEARS:
        raise ConfigurationError(
            f"schedule {name}: {what} must be seconds or a timedelta, up to ten years, not {value!r}"
        )
    return round(length * 1000)


def _moment(name: str, moment: datetime | None) -> int:
    if moment is None:
        return 0
    if not isinstance(moment, datetime) or moment.tzinfo is None:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"schedule {name}: start and end must be datetimes with a time zone")
    return epoch_ms(moment)
