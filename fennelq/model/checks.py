"""Checks of the values of options. Each raises ConfigurationError, with the rule, for a value that is not valid."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, get_args

from fennelq.errors import ConfigurationError
from fennelq.model.job import Priority
from fennelq.model.retry import RetryPolicy
from fennelq.model.units import TEN_YEARS, seconds
from fennelq.wording import a_kind_of

NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
KEY: Final = re.compile(r"[^\s{}\x00-\x1f\x7f\ud800-\udfff]{1,256}")
REASON: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{1,500}")
_MOST_HEADERS, _MOST_HEADER_BYTES = 32, 8192


def valid_name(kind: str, name: str) -> str:
    """Returns `name` if it may be part of a Redis key; otherwise raises ConfigurationError with the rule."""
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"{kind} must be a string, not {a_kind_of(name)}")
    if not NAME.fullmatch(name):
        raise ConfigurationError(f"{kind} {name[:140]!r} is not valid: use 1-128 of A-Z a-z 0-9 _ . -")
    return name


def check_job_id(name: str, value: Any) -> None:
    """The part of an id after the colon."""
    if isinstance(value, str) and ":" in value:
        raise ConfigurationError(
            f"{name} {value[:140]!r} is not valid: it is the part of an id after the colon, "
            "and queue= is the part before it"
        )
    valid_name(name, value)


def check_priority(name: str, value: Any) -> None:
    """One of high, normal and low."""
    if value not in get_args(Priority):
        raise ConfigurationError(f"{name} {value!r} is not one of high, normal, low")


def check_key(_: str, value: Any) -> None:
    """An idempotency key."""
    if not isinstance(value, str):
        raise ConfigurationError(f"idempotency key must be a string, not {a_kind_of(value)}")
    if not KEY.fullmatch(value):
        raise ConfigurationError(
            f"idempotency key {value[:140]!r} is not valid: use 1-256 characters, no space and no braces"
        )


def check_line(name: str, value: Any) -> None:
    """A text for people, on one line."""
    if not isinstance(value, str):
        raise ConfigurationError(f"{name} must be a string, not {a_kind_of(value)}")
    if not REASON.fullmatch(value):
        raise ConfigurationError(
            f"{name} {value[:140]!r} is not valid: use 1-500 characters, on one line and without control characters"
        )


def check_reason(name: str, value: Any) -> None:
    """The reason for which a client cancels a job."""
    check_line(name, value)
    if value == "expired":
        raise ConfigurationError(f"{name} 'expired' means that a job did not start in time: use another word")


def check_headers(name: str, value: Any) -> None:
    """A few short texts."""
    # A plugin may add headers to every job, so this is one pass in C: joining fails when one of them is not a text.
    headers: Mapping[Any, Any] = value
    try:
        joined = "".join([*headers, *headers.values()])
    except (TypeError, AttributeError):
        raise ConfigurationError(
            f'{name} must be a dict of strings, like {{"tenant": "acme"}}, not {value!r:.100}'
        ) from None
    if len(headers) > _MOST_HEADERS:
        raise ConfigurationError(f"{name} are at most {_MOST_HEADERS}, not {len(headers)}")
    try:
        size = len(joined.encode())
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"{name} must be texts that UTF-8 can write: {error}") from None
    if size > _MOST_HEADER_BYTES:
        raise ConfigurationError(
            f"{name} take {size:,} bytes, more than {_MOST_HEADER_BYTES:,}: they are for ids, not for data"
        )


def check_can_start(expires: int, **due: int) -> None:
    """Raises ConfigurationError when a job would expire before it is due. Times are ms after the call; 0 is none."""
    for name, ms in due.items():
        if 0 < expires <= ms:
            raise ConfigurationError(
                f"expires= is {expires / 1000:g} s after the call, and with {name}= the job is due after "
                f"{ms / 1000:g} s: it would never run. Use a longer expires=, or leave it out"
            )


def check_duration(name: str, value: Any) -> None:
    """Seconds or a timedelta, 0 to ten years."""
    if not isinstance(value, int | float | timedelta):
        raise ConfigurationError(f"{name} must be seconds or a timedelta, not {value!r}")
    if not 0 <= seconds(value) <= TEN_YEARS:
        raise ConfigurationError(f"{name} must be between 0 s and ten years, not {value!r}")


def check_timeout(name: str, value: Any) -> None:
    """A duration of more than 0, or None."""
    if value is None:
        return
    check_duration(name, value)
    if not seconds(value):
        raise ConfigurationError(f"{name} must be more than 0; None means no timeout")


def check_moment(name: str, value: Any) -> None:
    """A datetime with a time zone."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ConfigurationError(
            f"{name} must be a datetime with a time zone, for example datetime.now(UTC) + timedelta(hours=1)"
        )


def check_retries(name: str, value: Any) -> None:
    """A whole number, 0 or more."""
    check_count(name, value, 0)


def check_count(name: str, value: Any, least: int = 1) -> None:
    """A whole number, `least` or more."""
    if not isinstance(value, int) or not least <= value < 1 << 63:
        raise ConfigurationError(f"{name} must be a whole number, {least} or more, not {value!r}")


def check_policy(name: str, value: Any) -> None:
    """A RetryPolicy."""
    if not isinstance(value, RetryPolicy):
        raise ConfigurationError(
            f"{name} must be a RetryPolicy, like RetryPolicy.fixed(5, delay=10), not {_named(value)}: "
            "a number of runs is retries="
        )


def _named(value: Any) -> str:
    return str(getattr(value, "__qualname__", None) or f"{value!r:.100}")
