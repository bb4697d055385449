"""Wait for something to become true, instead of sleeping and hoping."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast, overload

T = TypeVar("T")
Tolerated = tuple[type[BaseException], ...]

POLL = 0.005
PATIENCE = 30.0
"""Seconds after which a wait is given up. It only ends a test that hangs: a busy machine must not reach it. A run that
judges mutants sets it lower."""


class Deadline:
    """A point in time `within` seconds from now."""

    def __init__(self, within: float) -> None:
        self.within = within
        self._start = time.monotonic()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._start

    @property
    def passed(self) -> bool:
        return self.elapsed >= self.within


class NeverHappened(AssertionError):
    """What was waited for did not become true in time."""


def eventually(
    predicate: Callable[[], T | None],
    *,
    within: float | None = None,
    every: float = POLL,
    tolerate: Tolerated = (),
    what: str | None = None,
) -> T:
    """Call `predicate` until it returns something true, and return that.

    A failed `assert` inside it, and exceptions of the `tolerate`d types, mean "not yet". When `within`
    seconds (else `PATIENCE`) have passed, `NeverHappened` contains what was waited for, for how long, and what was seen
    last.
    """
    __tracebackhide__ = True
    watch = _Watch(predicate, within, what)
    not_yet: Tolerated = (AssertionError, *tolerate)
    while True:
        final = watch.deadline.passed
        try:
            value = predicate()
        except not_yet as refusal:
            watch.refused(refusal)
        else:
            if value:
                return value
            watch.saw(value)
        if final:
            watch.give_up()
        time.sleep(every)


@overload
async def aeventually(
    predicate: Callable[[], Awaitable[T | None]],
    *,
    within: float | None = ...,
    every: float = ...,
    tolerate: Tolerated = ...,
    what: str | None = ...,
) -> T: ...
@overload
async def aeventually(
    predicate: Callable[[], T | None],
    *,
    within: float | None = ...,
    every: float = ...,
    tolerate: Tolerated = ...,
    what: str | None = ...,
) -> T: ...
async def aeventually(
    predicate: Callable[[], object],
    *,
    within: float | None = None,
    every: float = POLL,
    tolerate: Tolerated = (),
    what: str | None = None,
) -> object:
    """`eventually` for a running event loop; the predicate may be a coroutine function or a plain one.

    An attempt that hangs is ended at the deadline, but not before it had a second.
    """
    __tracebackhide__ = True
    watch = _Watch(predicate, within, what)
    not_yet: Tolerated = (AssertionError, *tolerate)
    while True:
        final = watch.deadline.passed
        try:
            value = await _ask(predicate, watch.deadline)
        except not_yet as refusal:
            watch.refused(refusal)
        else:
            if value:
                return value
            watch.saw(value)
        if final:
            watch.give_up()
        await asyncio.sleep(every)


async def quickest(attempt: Callable[[], Awaitable[object]], below: float) -> float:
    """The seconds of the quickest of three attempts, and of up to twelve while none took less than `below`: a busy
    machine delays some of them, and a wait that is too long by design delays them all."""
    took: list[float] = []
    while len(took) < 3 or (min(took) >= below and len(took) < 12):
        began = time.monotonic()
        await attempt()
        took.append(time.monotonic() - began)
    return min(took)


async def _ask(predicate: Callable[[], object], deadline: Deadline) -> object:
    answer = predicate()
    if not inspect.isawaitable(answer):
        return answer
    seconds = max(deadline.within - deadline.elapsed, 1.0)
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return cast("object", await answer)
    except TimeoutError as error:
        if not limit.expired():
            raise  # the predicate's own
        raise AssertionError(f"an attempt was still unfinished after {seconds:.1f} s") from error


class _Watch:
    """Remembers what was seen, for the message."""

    def __init__(self, predicate: Callable[[], object], within: float | None, what: str | None) -> None:
        self.deadline = Deadline(PATIENCE if within is None else within)
        self._predicate = predicate
        self._what = what
        self._attempts = 0
        self._last = "nothing"
        self._refusal: BaseException | None = None

    def saw(self, value: object) -> None:
        self._attempts += 1
        self._last = f"returned {value!r}"
        self._refusal = None

    def refused(self, refusal: BaseException) -> None:
        self._attempts += 1
        self._last = f"raised {type(refusal).__name__}: {refusal}"
        self._refusal = refusal

    def give_up(self) -> None:
        __tracebackhide__ = True
        waited = f"{self.deadline.elapsed:.2f} s and {self._attempts} attempts"
        subject = self._what or _source_of(self._predicate)
        story = f"not true after {waited}: {subject}\nlast attempt {self._last}"
        raise NeverHappened(story) from self._refusal


def _source_of(predicate: Callable[[], object]) -> str:
    """The line the predicate was written in, so that the message reads like the test."""
    if getattr(predicate, "__name__", "<lambda>") != "<lambda>":
        return predicate.__name__.replace("_", " ").strip()
    try:
        return " ".join(inspect.getsource(predicate).split())
    except (OSError, TypeError):
        return repr(predicate)
