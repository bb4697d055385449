"""Options of a job: one typed set, merged once: app < task < call."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final, Literal, TypedDict, get_args

import orjson

from fennelq.errors import ConfigurationError
from fennelq.model.job import Priority
from fennelq.model.retry import RetryPolicy

NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
KEY = re.compile(r"[^\s{}\x00-\x1f\x7f]{1,256}")
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
        _check_names(self)
        _check_numbers(self)

    def with_(self, more: Mapping[str, Any]) -> Options:
        """These options with `more` on top; raises ConfigurationError for a name that is not an option."""
        known = {f.name for f in fields(self)}
        if strange := set(more) - known:
            from fennelq.errors import suggestion

            name = min(strange)
            raise ConfigurationError(f"unknown option {name!r}{suggestion(name, known)}")
        if more.get("headers") and self.headers is not UNSET:
            more = {**more, "headers": {**self.headers, **more["headers"]}}
        return replace(self, **more)

    def to_wire(self) -> bytes:
        """What the worker must know of these options, as JSON; empty when nothing."""
        wire: dict[str, Any] = {}
        if self.retry is not UNSET:
            wire["r"] = self.retry.to_wire()
        elif self.retries is not UNSET:
            wire["r"] = self.retries
        for letter, value in (("t", self.timeout), ("s", self.result_ttl), ("f", self.failure_ttl)):
            if value is not UNSET:
                wire[letter] = None if value is None else seconds(value)
        if self.headers is not UNSET and self.headers:
            wire["h"] = dict(self.headers)
        return orjson.dumps(wire) if wire else b""


def seconds(value: Seconds) -> float:
    """A duration in seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


def milliseconds(value: Seconds | Unset) -> int:
    """A duration in whole milliseconds, at least one when it is not zero; UNSET is 0."""
    return 0 if value is UNSET or not value else max(1, round(seconds(value) * 1000))


def epoch_ms(moment: datetime) -> int:
    """Milliseconds since the epoch of an aware datetime."""
    return round(moment.astimezone(UTC).timestamp() * 1000)


def valid_name(kind: str, name: str) -> str:
    """`name`, when it may be part of a Redis key; raises ConfigurationError with the rule otherwise."""
    if not isinstance(name, str) or not NAME.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"{kind} {str(name)[:140]!r} is not valid: use 1-128 of A-Z a-z 0-9 _ . -")
    return name


def _check_names(options: Options) -> None:
    if options.queue is not UNSET:
        valid_name("queue", options.queue)
    if options.job_id is not UNSET:
        valid_name("job_id", options.job_id)
    if options.priority is not UNSET and options.priority not in get_args(Priority):
        raise ConfigurationError(f"priority {options.priority!r} is not one of high, normal, low")
    if options.key is not UNSET and not KEY.fullmatch(options.key):
        raise ConfigurationError(
            f"idempotency key {options.key[:140]!r} is not valid: 1-256 characters, no space, no braces"
        )
    if options.headers is not UNSET:
        _check_headers(options.headers)


def _check_headers(headers: Mapping[Any, Any]) -> None:
    if len(headers) > 32 or not all(isinstance(k, str) and isinstance(v, str) for k, v in headers.items()):
        raise ConfigurationError("headers are at most 32 texts by name")


def _check_numbers(options: Options) -> None:
    for name in ("delay", "expires", "ttl", "result_ttl", "failure_ttl", "timeout"):
        value = getattr(options, name)
        if value is not UNSET and value is not None and not 0 <= seconds(value) <= 10 * 366 * 86400:
            raise ConfigurationError(f"{name} must be between 0 s and ten years, not {value!r}")
    if options.timeout is not UNSET and options.timeout is not None and seconds(options.timeout) == 0:
        raise ConfigurationError("timeout must be more than 0; None is no timeout")
    if options.at is not UNSET and options.at.tzinfo is None:
        raise ConfigurationError(
            "at must know its time zone, for example datetime.now(UTC) + timedelta(hours=1)"
        )
    if options.at is not UNSET and options.delay is not UNSET:
        raise ConfigurationError("delay and at exclude each other: say one")
    for name, least in (("retries", 0), ("max_deliveries", 1)):
        value = getattr(options, name)
        if value is not UNSET and value < least:
            raise ConfigurationError(f"{name} must be {least} or more, not {value}")
