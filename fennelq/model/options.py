"""Options of a job: one typed set, merged once: app < task < call."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from enum import Enum
from functools import cache
from typing import Annotated, Any, Final, Literal, TypedDict, cast, get_args

import orjson
from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict as PydanticTypedDict

from fennelq.errors import ConfigurationError, a_kind_of, suggestion
from fennelq.model.job import Priority
from fennelq.model.retry import RetryPolicy, policy_to_wire

NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
KEY = re.compile(r"[^\s{}\x00-\x1f\x7f\ud800-\udfff]{1,256}")
TEN_YEARS: Final = 10 * 366 * 86400.0
_MOST_HEADERS, _MOST_HEADER_BYTES = 32, 8192

Seconds = float | timedelta


class _Unset(Enum):
    """The one value that says: nothing was said."""

    UNSET = "unset"


UNSET: Final = _Unset.UNSET
Unset = Literal[_Unset.UNSET]


class OptionArgs(TypedDict, total=False):
    """What the task decorator and `options()` accept."""

    queue: str
    """Where the job waits. Default: `default_queue`."""
    priority: Priority
    """The lane of the queue: high, normal or low."""
    delay: Seconds
    """Seconds to wait before the job may start."""
    at: datetime
    """The moment the job may start; must know its time zone."""
    expires: Seconds
    """Seconds after which a job that has not started is cancelled with reason `expired`."""
    retries: int
    """Runs after the first. Default: `default_retries`."""
    retry: RetryPolicy
    """How to retry; overrides `retries`."""
    timeout: Seconds | None
    """Seconds a run may take; None is for ever."""
    key: str
    """Idempotency key: a further call with the same key gets the first job's handle."""
    ttl: Seconds
    """How long `key` is held. Default: as long as the first job's record lives."""
    job_id: str
    """The job's own key, given by the caller: its id is `queue:job_id`."""
    result_ttl: Seconds
    """Seconds a result is kept; 0 keeps none. Default: `result_ttl`."""
    failure_ttl: Seconds
    """Seconds the result of a failed job is kept. Default: `failure_ttl`."""
    max_deliveries: int
    """Deliveries that may end in a crash before the job is dead. Default: `max_deliveries`."""
    headers: Mapping[str, str]
    """Small texts that travel with the job; a later set is merged over an earlier one."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options said so far; what was not said is UNSET."""

    queue: str | Unset = UNSET
    priority: Priority | Unset = UNSET
    delay: Seconds | Unset = UNSET
    at: datetime | Unset = UNSET
    expires: Seconds | Unset = UNSET
    retries: int | Unset = UNSET
    retry: RetryPolicy | Unset = UNSET
    timeout: Seconds | Unset | None = UNSET
    key: str | Unset = UNSET
    ttl: Seconds | Unset = UNSET
    job_id: str | Unset = UNSET
    result_ttl: Seconds | Unset = UNSET
    failure_ttl: Seconds | Unset = UNSET
    max_deliveries: int | Unset = UNSET
    headers: Mapping[str, str] | Unset = UNSET

    def __post_init__(self) -> None:
        for name, value in self.said().items():
            _CHECKS[name](name, value)
        if self.at is not UNSET and self.delay is not UNSET:
            raise ConfigurationError("delay and at exclude each other: say one")

    def said(self) -> dict[str, Any]:
        """What was said, by name."""
        return {name: value for name in _NAMES if (value := getattr(self, name)) is not UNSET}

    def with_(self, more: Mapping[str, Any]) -> Options:
        """These options with `more` on top; raises ConfigurationError for a name that is not an option."""
        if strange := set(more) - set(_NAMES):
            name = min(strange)
            raise ConfigurationError(f"unknown option {name!r}{suggestion(name, _NAMES)}")
        if self.headers is not UNSET and isinstance(headers := more.get("headers"), Mapping):
            more = {**more, "headers": {**self.headers, **headers}}
        return replace(self, **more)

    def to_wire(self) -> bytes:
        """What the worker must know of these options, as JSON; empty when nothing."""
        wire: dict[str, Any] = {}
        if self.retry is not UNSET:
            wire["r"] = policy_to_wire(self.retry)
        elif self.retries is not UNSET:
            wire["r"] = self.retries
        for letter, value in (("t", self.timeout), ("s", self.result_ttl), ("f", self.failure_ttl)):
            if value is not UNSET:
                wire[letter] = None if value is None else seconds(value)
        if self.headers is not UNSET and self.headers:
            wire["h"] = dict(self.headers)
        return orjson.dumps(wire) if wire else b""


_Kept = Annotated[float, Field(ge=0, le=TEN_YEARS)]
_Count = Annotated[int, Field(ge=0)]


class WireOptions(PydanticTypedDict, total=False):
    """Options as they travel with a call: what `to_wire` writes and `read_wire` reads."""

    r: _Count | tuple[_Count, str, list[float], bool]
    """Retries, or a whole policy."""
    t: Annotated[float, Field(gt=0, le=TEN_YEARS)] | None
    """Timeout in seconds."""
    s: _Kept
    """Seconds a result is kept."""
    f: _Kept
    """Seconds the result of a failed job is kept."""
    h: dict[str, str]
    """Headers."""


@cache
def _wire() -> TypeAdapter[WireOptions]:
    return TypeAdapter(WireOptions)


def read_wire(raw: bytes) -> WireOptions:
    """The options a call brought along; raises ValueError when they cannot be read."""
    try:
        return _wire().validate_json(raw, strict=True)
    except ValidationError as error:
        raise ValueError(f"the options of the job cannot be read: {error.errors()[0]['msg']}") from None


def seconds(value: Seconds) -> float:
    """A duration in seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


def milliseconds(value: Seconds | Unset) -> int:
    """A duration in whole milliseconds, at least one when it is not zero; UNSET is 0."""
    return 0 if value is UNSET or not value else max(1, round(seconds(value) * 1000))


def epoch_ms(moment: datetime) -> int:
    """Milliseconds since the epoch of an aware datetime."""
    return round(moment.timestamp() * 1000)


def valid_name(kind: str, name: str) -> str:
    """`name`, when it may be part of a Redis key; raises ConfigurationError with the rule otherwise."""
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"{kind} must be a string, not {a_kind_of(name)}")
    if not NAME.fullmatch(name):
        raise ConfigurationError(f"{kind} {name[:140]!r} is not valid: use 1-128 of A-Z a-z 0-9 _ . -")
    return name


def _check_job_id(name: str, value: Any) -> None:
    if isinstance(value, str) and ":" in value:
        raise ConfigurationError(
            f"{name} {value[:140]!r} is not valid: it is the part of an id after the colon, "
            "and queue= is the part before it"
        )
    valid_name(name, value)


def _check_priority(name: str, value: Any) -> None:
    if value not in get_args(Priority):
        raise ConfigurationError(f"{name} {value!r} is not one of high, normal, low")


def _check_key(_: str, value: Any) -> None:
    if not isinstance(value, str):
        raise ConfigurationError(f"idempotency key must be a string, not {a_kind_of(value)}")
    if not KEY.fullmatch(value):
        raise ConfigurationError(
            f"idempotency key {value[:140]!r} is not valid: use 1-256 characters, no space and no braces"
        )


def _check_headers(name: str, value: Any) -> None:
    headers = cast("Mapping[Any, Any]", value)
    texts: list[Any] = [*headers.keys(), *headers.values()] if isinstance(value, Mapping) else [None]
    if not all(isinstance(text, str) for text in texts):
        raise ConfigurationError(
            f'{name} must be a dict of strings, like {{"tenant": "acme"}}, not {value!r:.100}'
        )
    if len(headers) > _MOST_HEADERS:
        raise ConfigurationError(f"{name} are at most {_MOST_HEADERS}, not {len(headers)}")
    try:
        size = len("".join(texts).encode())
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"{name} must be texts that UTF-8 can write: {error}") from None
    if size > _MOST_HEADER_BYTES:
        raise ConfigurationError(
            f"{name} take {size:,} bytes, more than {_MOST_HEADER_BYTES:,}: they are for ids, not for data"
        )


def _check_duration(name: str, value: Any) -> None:
    if not isinstance(value, int | float | timedelta):
        raise ConfigurationError(f"{name} must be seconds or a timedelta, not {value!r}")
    if not 0 <= seconds(value) <= TEN_YEARS:
        raise ConfigurationError(f"{name} must be between 0 s and ten years, not {value!r}")


def _check_timeout(name: str, value: Any) -> None:
    if value is None:
        return
    _check_duration(name, value)
    if not seconds(value):
        raise ConfigurationError(f"{name} must be more than 0; None is no timeout")


def _check_moment(name: str, value: Any) -> None:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ConfigurationError(
            f"{name} must be a datetime that knows its time zone, "
            "for example datetime.now(UTC) + timedelta(hours=1)"
        )


def _check_retries(name: str, value: Any) -> None:
    _check_count(name, value, 0)


def _check_count(name: str, value: Any, least: int = 1) -> None:
    if not isinstance(value, int) or not least <= value < 1 << 63:
        raise ConfigurationError(f"{name} must be a whole number, {least} or more, not {value!r}")


def _check_policy(name: str, value: Any) -> None:
    if not isinstance(value, RetryPolicy):
        raise ConfigurationError(
            f"{name} must be a RetryPolicy, like RetryPolicy.fixed(5, delay=10), not {_named(value)}: "
            "a number of runs is retries="
        )


def _named(value: Any) -> str:
    return str(getattr(value, "__qualname__", None) or f"{value!r:.100}")


_CHECKS: Final[Mapping[str, Callable[[str, Any], object]]] = {
    "queue": valid_name,
    "job_id": _check_job_id,
    "priority": _check_priority,
    "key": _check_key,
    "headers": _check_headers,
    "at": _check_moment,
    "timeout": _check_timeout,
    "retry": _check_policy,
    "retries": _check_retries,
    "max_deliveries": _check_count,
    **dict.fromkeys(("delay", "expires", "ttl", "result_ttl", "failure_ttl"), _check_duration),
}
_NAMES: Final = tuple(field.name for field in fields(Options))
