"""Limits of a task: how many of its jobs run at once, how many start per second, and whose jobs take turns."""

from __future__ import annotations

import base64
import hashlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from typing import Any, Final, NamedTuple
from uuid import UUID

from fennelq.errors import ConfigurationError, InvalidArguments
from fennelq.model.gates import CONCURRENCY, LATEST, RATE, TURN, Gate
from fennelq.wording import a_kind_of, suggestion

Key = str | Callable[[Mapping[str, Any]], object]
"""The name of a parameter, or a function that gets the arguments of a call by name."""

_NAME: Final = re.compile(r"[A-Za-z0-9_.:-]{1,32}")
_SHORT: Final = re.compile(r"[A-Za-z0-9_.-]{1,24}")
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*/\s*(\d+(?:\.\d+)?)?\s*(ms|s|m|h|d)")
_MICROSECONDS: Final = {"ms": 1e3, "s": 1e6, "m": 60e6, "h": 3600e6, "d": 86400e6}
_LONGEST: Final = 366 * 86400e6
_MOST: Final = 1_000_000
_EXAMPLE: Final = '"10/s", "100/m", "5000/h" or "1/10s"'


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `number` jobs run at the same time: of a task, or with a `key` of a task for each value of the key.

    It counts within one queue. Tasks of a queue that have the same `name` share one limit."""

    number: int
    key: Key | None = None
    _: KW_ONLY
    name: str | None = None
    """Default: the name of the task."""
    per_queue: bool = False
    """Whether jobs may be sent to several queues: each queue counts for itself."""

    def __post_init__(self) -> None:
        if isinstance(self.number, bool) or not isinstance(self.number, int) or not 1 <= self.number <= _MOST:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"Limit({self.number!r:.80}): use a whole number from 1 to {_MOST}. To stop a queue, pause it"
            )
        _check_key(f"Limit({self.number})", self.key)
        _check_name(self.name)


@dataclass(frozen=True, slots=True)
class Rate:
    """At most this many jobs start per second, minute, hour or day: `Rate("10/s")`, of a task, or for each value of a
    `key`.

    `burst` may start at once after a quiet time. Without a rate, `Rate(key="host")`, only `raise RateLimited(…)` of a
    job stops the others for a time. It counts within one queue."""

    rate: str | None = None
    key: Key | None = None
    _: KW_ONLY
    burst: int = 1
    name: str | None = None
    """Default: the name of the task."""
    per_queue: bool = False
    """Whether jobs may be sent to several queues: each queue counts for itself."""

    def __post_init__(self) -> None:
        interval_of(self.rate)
        if isinstance(self.burst, bool) or not isinstance(self.burst, int) or not 1 <= self.burst <= _MOST:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"burst={self.burst!r:.80}: use a whole number from 1 to {_MOST}")
        _check_key(f"Rate({self.rate!r})", self.key)
        _check_name(self.name)


def interval_of(rate: str | None) -> int:
    """The microseconds between two starts; 0 without a rate. Raises ConfigurationError when it cannot be read."""
    if rate is None:
        return 0
    match = _RATE.fullmatch(rate.strip()) if isinstance(rate, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
    if match is None:
        raise ConfigurationError(f"the rate {rate!r:.80} cannot be read: write {_EXAMPLE}")
    number, times, unit = float(match[1]), float(match[2] or 1), match[3]
    interval = round(times * _MICROSECONDS[unit] / number) if number else 0
    if not 1 <= interval <= _LONGEST:
        raise ConfigurationError(
            f"the rate {rate!r:.80} is not between one in 366 days and a million per second. To stop a queue, pause it"
        )
    return interval


def rate_of(interval: int) -> str | None:
    """The rate with so many microseconds between two starts, as `interval_of` reads it; None without a rate."""
    if not interval:
        return None
    for unit in ("s", "m", "h", "d"):
        number = round(_MICROSECONDS[unit] / interval)
        if number and round(_MICROSECONDS[unit] / number) == interval:
            return f"{number}/{unit}"
    return f"1/{interval / 1e6:.6f}".rstrip("0").rstrip(".") + "s"


def numbers_in_words(kind: str, numbers: str) -> str:
    """The numbers of a limit, for people: `3`, `10/s`, `10/s, burst 5`."""
    number, _, burst = numbers.partition("/")
    if kind != RATE:
        return number
    rate = rate_of(int(number)) or "no rate"
    return rate if burst in ("", "1") else f"{rate}, burst {burst}"


def check_limit(name: str, value: Any) -> None:
    """The option `concurrency`."""
    if not isinstance(value, Limit):
        hint = f"Limit({value})" if isinstance(value, int) else 'Limit(1, key="account_id")'
        raise ConfigurationError(f"{name} must be a Limit, not {a_kind_of(value)}: write {name}={hint}")


def check_rate(name: str, value: Any) -> None:
    """The option `rate_limit`."""
    if not isinstance(value, Rate):
        hint = f"Rate({value!r})" if isinstance(value, str) else 'Rate("10/s")'
        raise ConfigurationError(f"{name} must be a Rate, not {a_kind_of(value)}: write {name}={hint}")


def check_fair_key(name: str, value: Any) -> None:
    """The option `fair_key`."""
    _check_key(name, value)
    if value is None:
        raise ConfigurationError(
            f'{name} must be the name of a parameter or a function: write {name}="tenant_id"'
        )


class Definition(NamedTuple):
    """What a task declares about one of its limits."""

    kind: str
    name: str
    number: int
    """Concurrency: how many at the same time. Rate: microseconds between two starts, 0 without a rate."""
    burst: int
    key: Key | None
    in_one_queue: bool
    """Whether it would be exceeded if the jobs were sent to several queues."""

    def gate(self, value: str) -> Gate:
        """Its gate for the jobs whose key has this value, with a slash before it."""
        return Gate(self.kind, self.number, self.burst, self.name + value)

    @property
    def numbers(self) -> str:
        """Its numbers, in the form in which an operator may change them."""
        return f"{self.number}/{self.burst}" if self.kind == RATE else str(self.number)


class Limits:
    """The limits of the calls through one task."""

    def __init__(self, task: str, options: Mapping[str, Any]) -> None:
        self._task = task
        self._concurrency: Limit | None = options.get("concurrency")
        self._rate: Rate | None = options.get("rate_limit")
        self._fair_key: Key | None = options.get("fair_key")

    @classmethod
    def of(cls, task: str, options: Mapping[str, Any]) -> Limits | None:
        """The limits among these options; None without any."""
        limits = cls(task, options)
        return limits if [*limits._each()] else None

    @property
    def counts_in_one_queue(self) -> bool:
        """Whether a limit would be exceeded if the jobs were sent to several queues."""
        return any(one.in_one_queue for one in self._each())

    @property
    def definitions(self) -> dict[str, Definition]:
        """The definition of each limit, by the name by which an operator may change it."""
        return {one.gate("").definition: one for one in self._each()}

    def check(self, names: Callable[[str], bool], parameters: Iterable[str]) -> None:
        """Raises ConfigurationError when a key is not an argument of the task; `parameters` are for its text."""
        for one in self._each():
            if isinstance(one.key, str) and not names(one.key):
                hint = suggestion(one.key, parameters)
                raise ConfigurationError(
                    f"{self._task} has no parameter {one.key!r}, which is {_role(one)}{hint}"
                    f"{'' if hint.endswith('?') else '.'} Name a parameter, or pass a function that gets the "
                    "arguments by name"
                )

    def gates(self, arguments: Mapping[str, Any]) -> str:
        """The gates of a call with these arguments. Raises InvalidArguments when they have no value for a key."""
        found: list[str] = []
        for one in self._each():
            value = "" if one.key is None else f"/{self._value(one.key, _role(one), arguments)}"
            found.append(str(one.gate(value)))
        return " ".join(found)

    def _each(self) -> Iterator[Definition]:
        if (limit := self._concurrency) is not None:
            name = limit.name or short_name(self._task)
            yield Definition(CONCURRENCY, name, limit.number, 1, limit.key, not limit.per_queue)
        if (rate := self._rate) is not None:
            name, interval = rate.name or short_name(self._task), interval_of(rate.rate)
            yield Definition(RATE, name, interval, rate.burst, rate.key, not rate.per_queue)
        if (fair := self._fair_key) is not None:
            # Tasks of a queue that are fair by the same parameter share the turns.
            name = fair if isinstance(fair, str) and _SHORT.fullmatch(fair) else short_name(self._task)
            yield Definition(TURN, name, 1, 1, fair, False)

    def _value(self, key: Key, role: str, arguments: Mapping[str, Any]) -> str:
        if isinstance(key, str):
            parameter, value = key, arguments.get(key)
        else:
            parameter, value = None, self._computed(key, role, arguments)
        if isinstance(value, Enum):
            value = value.value
        if value is None or value == "" or isinstance(value, bool) or not isinstance(value, str | int | UUID):
            problem = "None" if value is None else "empty" if value == "" else a_kind_of(value)
            if parameter and parameter not in arguments:
                problem = "missing"
            what = "its value is" if parameter else f"the function that is {role} returned"
            raise InvalidArguments(
                self._task,
                f"{what} {problem}, and {role} must be a string, a whole number or a UUID",
                parameter,
            )
        text = str(value)
        return text if _SHORT.fullmatch(text) else _digest(text)

    def _computed(
        self, key: Callable[[Mapping[str, Any]], object], role: str, arguments: Mapping[str, Any]
    ) -> object:
        try:
            return key(arguments)
        except Exception as error:
            raise InvalidArguments(
                self._task,
                f"the function that is {role} raised {type(error).__name__}: {error}",
            ) from error


def _role(one: Definition) -> str:
    """What a key is to its task, for the texts of errors."""
    return "its fair_key" if one.kind == TURN else "the key of its limit"


def short_name(task: str) -> str:
    """The name of a limit that has none: short, because every job carries it."""
    if _NAME.fullmatch(task) and len(task) <= 24:
        return task
    function = re.sub(r"[^A-Za-z0-9_-]", "", re.split("[:.]", task)[-1])[:15]
    return f"{function}-{_digest(task)[:8]}"


class _Defined(NamedTuple):
    task: str
    limit: Definition
    queue: str | None
    """None when routes may change it, or when each queue counts for itself."""

    def __str__(self) -> str:
        return f"{numbers_in_words(self.limit.kind, self.limit.numbers)} ({self.task})"


class Definitions:
    """The limits that the tasks of an app declare. Those of the same name are one limit, so they must agree."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, _Defined]] = {}

    def add(self, task: str, limits: Limits | None, queue: str | None) -> None:
        """Add the limits of a task. `queue` is None while routes may still change it. Raises ConfigurationError when
        another task defines a limit of the same name with other numbers, or for another queue."""
        for name, limit in limits.definitions.items() if limits else ():
            one = _Defined(task, limit, queue if limit.in_one_queue else None)
            others = self._known.setdefault(name, {})
            for other in others.values():
                if other.task != task:
                    _check_agreement(other, one)
            others[task] = one


def _check_agreement(one: _Defined, other: _Defined) -> None:
    name = one.limit.name
    if one.limit.numbers != other.limit.numbers:
        raise ConfigurationError(
            f"the limit {name!r} has two numbers, {one} and {other}: give both the same, or give one of them "
            "another name="
        )
    if one.queue and other.queue and one.queue != other.queue:
        raise ConfigurationError(
            f"the limit {name!r} counts within one queue, and its tasks have two: {one.task} ({one.queue}) and "
            f"{other.task} ({other.queue}). Send both to one queue, give one of them another name=, or let each "
            "queue count for itself with per_queue=True"
        )


def _digest(text: str) -> str:
    """Twelve characters that stand for a longer text."""
    digest = hashlib.sha1(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).digest()
    return base64.b32encode(digest)[:12].decode().lower()


def _check_key(what: str, key: object) -> None:
    if key is not None and not callable(key) and not (isinstance(key, str) and key.isidentifier()):
        raise ConfigurationError(
            f"the key of {what} must be the name of a parameter or a function, not {key!r:.80}"
        )
    if inspect.iscoroutinefunction(key):
        raise ConfigurationError(
            f"the key of {what} is an async function, and is called without await: use a plain one"
        )


def _check_name(name: object) -> None:
    if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise ConfigurationError(f"limit name {name!r:.80} is not valid: use 1-32 of A-Z a-z 0-9 _ . : -")
    if isinstance(name, str) and name.startswith(LATEST):
        raise ConfigurationError(f'limit name {name!r} is taken by dedupe="latest": choose another one')
