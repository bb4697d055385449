"""Decides whether a failed job runs again, and after how long."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fennelq.errors import ConfigurationError

Curve = Callable[[int], float]
"""Seconds to wait after the n-th failed try; n counts from 1."""

_LONGEST = 30 * 86400.0
_NUMBERS = {"exponential": 3, "linear": 2, "fixed": 1, "calling": 0}


@dataclass(frozen=True, slots=True)
class _Backoff:
    """The fields of a policy that define how long to wait; only fennelq reads them."""

    retries: int = 3
    kind: str = "exponential"
    numbers: tuple[float, ...] = (1.0, 2.0, 600.0)
    jitter: bool = True
    curve: Curve | None = None


@dataclass(frozen=True, slots=True)
class RetryPolicy(_Backoff):
    """How often a failed job runs again, after how long, and for which exceptions.

    Built by `exponential`, `linear`, `fixed`, `explicit` or `calling`. `retries` is the number of runs after
    the first. `on` limits retrying to these exceptions, `give_up_on` excludes some; both go by `isinstance`.
    """

    retries: int = 3
    on: tuple[type[BaseException], ...] = (Exception,)
    give_up_on: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.retries, int) or self.retries < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"retries must be a whole number, 0 or more, not {self.retries!r}")
        if not all(map(_is_number, self.numbers)):
            raise ConfigurationError(
                f"a retry policy's numbers are seconds, 0 or more and finite: not {self.numbers}"
            )
        if not all(map(_is_error, (*self.on, *self.give_up_on))):
            raise ConfigurationError(
                "only_on and giving_up_on take classes of exceptions, one by one, like only_on(OSError, ValueError): "
                f"not {(*self.on, *self.give_up_on)}"
            )
        if self.curve is not None and not callable(self.curve):
            raise ConfigurationError(
                f"RetryPolicy.calling takes a function of the try's number, not {self.curve!r}"
            )
        count = _NUMBERS.get(self.kind)
        if self.kind != "explicit" and (count != len(self.numbers) or (self.curve is None) == (count == 0)):
            raise ConfigurationError(
                "a retry policy is built by exponential, linear, fixed, explicit or calling, "
                f"not from {self.kind!r} with {self.numbers}"
            )

    @classmethod
    def exponential(
        cls,
        retries: int = 3,
        *,
        base: float = 1.0,
        factor: float = 2.0,
        cap: float = 600.0,
        jitter: bool = True,
    ) -> RetryPolicy:
        """`base`, `base·factor`, `base·factor²` … seconds, at most `cap`; with full jitter, between 0 and this
        value."""
        return cls(retries, "exponential", (base, factor, cap), jitter)

    @classmethod
    def linear(
        cls, retries: int = 3, *, step: float = 10.0, cap: float = 600.0, jitter: bool = False
    ) -> RetryPolicy:
        """`step`, `2·step`, `3·step` … seconds, at most `cap`."""
        return cls(retries, "linear", (step, cap), jitter)

    @classmethod
    def fixed(cls, retries: int = 3, *, delay: float = 10.0, jitter: bool = False) -> RetryPolicy:
        """The same `delay` every time."""
        return cls(retries, "fixed", (delay,), jitter)

    @classmethod
    def explicit(cls, delays: Sequence[float], *, jitter: bool = False) -> RetryPolicy:
        """One retry after each of these delays, in order."""
        if not isinstance(delays, Sequence) or isinstance(delays, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"RetryPolicy.explicit takes a list of seconds, like [1, 10, 60], not {delays!r}"
            )
        return cls(len(delays), "explicit", tuple(delays), jitter)

    @classmethod
    def calling(cls, curve: Curve, retries: int = 3, *, jitter: bool = False) -> RetryPolicy:
        """`curve(n)` seconds after the n-th failed try. For @app.task only: a function cannot be sent."""
        return cls(retries, "calling", (), jitter, curve)

    def only_on(self, *errors: type[BaseException]) -> RetryPolicy:
        """The same policy, which retries only these exceptions."""
        return replace(self, on=errors)

    def giving_up_on(self, *errors: type[BaseException]) -> RetryPolicy:
        """The same policy, which never retries these exceptions."""
        return replace(self, give_up_on=errors)


def allows(policy: RetryPolicy, tries: int, error: BaseException) -> bool:
    """Whether a job that has now failed `tries` times, last with `error`, runs again."""
    return (
        tries <= policy.retries and isinstance(error, policy.on) and not isinstance(error, policy.give_up_on)
    )


def wait_after(policy: RetryPolicy, tries: int, chance: Callable[[], float] = random.random) -> float:
    """Seconds until the next run, after `tries` failed tries."""
    base = _base(policy, tries)
    if math.isnan(base):
        raise ValueError(f"the retry curve returned nan after try {tries}")
    seconds = min(max(base, 0.0), _LONGEST)
    return seconds * chance() if policy.jitter else seconds


def _base(policy: RetryPolicy, tries: int) -> float:
    if policy.curve is not None:
        return float(policy.curve(tries))
    match policy.kind:
        case "exponential":
            base, factor, cap = policy.numbers
            return _exponential(base, factor, cap, tries - 1)
        case "linear":
            step, cap = policy.numbers
            return min(cap, step * tries)
        case "explicit":
            return policy.numbers[min(tries, len(policy.numbers)) - 1] if policy.numbers else 0.0
        case _:
            return policy.numbers[0]


def policy_to_wire(policy: RetryPolicy) -> list[Any]:
    """The policy as JSON values, for a call that overrides its task's; raises when it holds code."""
    if policy.curve is not None or policy.on != (Exception,) or policy.give_up_on:
        raise ConfigurationError(
            "this retry policy holds functions or exception classes, which cannot be sent with a call: "
            "declare it on the task with @app.task(retry=…)"
        )
    return [policy.retries, policy.kind, list(policy.numbers), policy.jitter]


def policy_from_wire(policy: RetryPolicy, value: int | tuple[int, str, Sequence[float], bool]) -> RetryPolicy:
    """The policy that a call asks for: a whole one, or `policy` with another number of `retries`."""
    if isinstance(value, int):
        return replace(policy, retries=value)
    retries, kind, numbers, jitter = value
    return RetryPolicy(retries, kind, tuple(numbers), jitter)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < math.inf


def _is_error(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)


def _exponential(base: float, factor: float, cap: float, doublings: int) -> float:
    try:
        return min(cap, base * float(factor) ** doublings)
    except OverflowError:
        return cap if base else 0.0
