"""The outcome of a run, which settling writes to Redis, and the exceptions by which a task chooses one."""

from __future__ import annotations

import math
import re
import traceback
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Final, NamedTuple

import orjson

from fennelq.errors import PayloadTooLarge
from fennelq.model.job import JobFailure
from fennelq.model.units import TEN_YEARS

Hidden = Callable[[str], str]
"""A function that hides secrets in a text."""

_TRACEBACK_BYTES = 8192
_MESSAGE_BYTES = 4096
_TYPE_BYTES = 256
_REASON_BYTES = 500
_MARK = len("…".encode())


class Retry(Exception):
    """Raise it in a task to run the job again, after `delay` seconds or by the task's own curve.

    It counts as a failed try: when none is left, the job is dead.
    """

    def __init__(self, delay: float | timedelta | None = None, reason: str = "asked to retry") -> None:
        """`delay` is in seconds; without it the retry policy of the task decides."""
        self.delay = None if delay is None else _seconds(delay)
        super().__init__(reason)


class Snooze(Exception):
    """Raise it in a task to be run again later; it is not counted as a try."""

    def __init__(self, delay: float | timedelta | None = None, *, until: datetime | None = None) -> None:
        """Either a `delay` in seconds, or `until`, a datetime with a time zone."""
        if (delay is None) == (until is None):
            raise TypeError("Snooze takes either a delay in seconds or until=, a datetime with a time zone")
        if until is not None and until.tzinfo is None:
            raise ValueError("until must have a time zone")
        self.delay = None if delay is None else _seconds(delay)
        self.until = until
        super().__init__(f"snoozed until {until}" if until else f"snoozed for {self.delay} s")


class RateLimited(Snooze):
    """Raise it in a task that was refused by another service: the job runs again after `retry_after` seconds, and the
    try is not counted. If the task has a rate limit, other jobs of this rate do not start until then either."""

    def __init__(self, retry_after: float | timedelta) -> None:
        """`retry_after` is in seconds."""
        super().__init__(retry_after)


def seconds_of(snooze: Snooze) -> float:
    """The seconds from now for which the job waits."""
    if snooze.until is not None:
        return max(0.0, (snooze.until - datetime.now(UTC)).total_seconds())
    return snooze.delay or 0.0


class Reject(Exception):
    """Raise it in a task to make the job dead at once, whatever retries are left."""

    def __init__(self, reason: str = "rejected") -> None:
        """`reason` is shown in the dead-letter queue."""
        super().__init__(reason)


class Raised(Exception):
    """An exception of a task that ran in a process of its own, as that process has described it. The exception itself
    stays there: not every exception can be sent, and making one here would run code that its class chooses."""

    def __init__(self, failure: JobFailure, *, again: bool = False) -> None:
        self.failure, self.again = failure, again
        """`again` is whether the task's policy retries this exception."""
        # Not `super()`: that is Retry or Reject in the classes below, which takes something else.
        Exception.__init__(self, f"{failure.error_type}: {failure.message}")


class RaisedRetry(Raised, Retry):
    """The task raised Retry."""

    def __init__(self, failure: JobFailure, delay: float | None) -> None:
        super().__init__(failure, again=True)
        self.delay = delay


class RaisedReject(Raised, Reject):
    """The task raised Reject."""


class Outcome(NamedTuple):
    """The result of a delivery, which settling writes: one of the kinds below, a value, and how long to keep it."""

    kind: str
    value: bytes = b""
    """The result envelope, or the milliseconds to wait before the next run."""
    error: bytes = b""
    ttl_ms: int = 0
    reason: str = ""
    of: int = 0
    """The number of tries that the job has in all, if the try failed and another follows; otherwise 0."""


SUCCESS = "S"
SUCCESS_WITHOUT_VALUE = "N"
RETRY = "R"
SNOOZE = "Z"
RATE_LIMITED = "G"
DEAD = "D"
CANCELLED = "K"
UNKNOWN_TASK = "U"
"""The worker's code is too old for the job: the task or an argument is unknown."""


def succeeded(encoded: bytes, ttl_ms: int) -> Outcome:
    """The task returned. `encoded` is empty when the task is annotated `-> None`."""
    if not encoded:
        return Outcome(SUCCESS_WITHOUT_VALUE)
    return Outcome(SUCCESS, b'{"ok":%b}' % encoded, ttl_ms=ttl_ms)


def retried(delay: float, failure: JobFailure, of: int = 0) -> Outcome:
    """The try failed; the job runs again `delay` seconds from now. It has `of` tries in all."""
    error = failure_to_wire(failure, 0)
    return Outcome(RETRY, b"%d" % round(delay * 1000), error, reason=failure.error_type, of=of)


def snoozed(delay: float) -> Outcome:
    """The task asked to be run later; no try is counted."""
    return Outcome(SNOOZE, b"+%d" % max(1, round(delay * 1000)), reason="snoozed")


def rate_limited(delay: float) -> Outcome:
    """The task was refused by another service: it and its rate wait; no try is counted."""
    return Outcome(RATE_LIMITED, b"+%d" % max(1, round(delay * 1000)), reason="rate limited")


def died(failure: JobFailure, tries: int, ttl_ms: int) -> Outcome:
    """No more runs: the job goes to the dead-letter queue."""
    error = failure_to_wire(failure, tries)
    return Outcome(DEAD, b'{"dead":%b}' % error, error, ttl_ms, failure.reason)


def not_known(failure: JobFailure, tries: int, ttl_ms: int) -> Outcome:
    """This worker does not have the task or a parameter. The job waits for a worker that does, and is dead when none
    appears in time. The reason is cut, because the record and the log contain it."""
    short = failure._replace(message=_cut(failure.message, _REASON_BYTES))
    return died(short, tries, ttl_ms)._replace(kind=UNKNOWN_TASK)


def cancelled(reason: str, ttl_ms: int) -> Outcome:
    """The job ends without a value, because it was cancelled or because it expired."""
    return Outcome(CANCELLED, orjson.dumps({"cancelled": reason}), ttl_ms=ttl_ms, reason=reason)


def failure_of(
    error: BaseException, reason: str = "failed", hiding: Callable[[], Hidden] | None = None
) -> JobFailure:
    """The parts of an exception that are kept, never more than a few kilobytes. `hiding` makes a function that hides
    the secrets of the job in its texts."""
    hidden = hiding() if hiding else str
    if isinstance(error, Raised):
        failure = error.failure if error.failure.reason != "failed" else error.failure._replace(reason=reason)
        return failure._replace(message=hidden(failure.message), traceback=hidden(failure.traceback))
    text = "".join(traceback.format_exception(type(error), error, trace_of_task(error)))
    kind, module = _kind_of(error), type(error).__module__
    if module.startswith("fennelq."):
        # Use the name under which users import it, not the module in which it is defined.
        text = re.sub(rf"^{re.escape(module)}(?=\.)", "fennelq", text, flags=re.MULTILINE)
    return JobFailure(
        _cut(kind, _TYPE_BYTES),
        _cut(hidden(_message(error)), _MESSAGE_BYTES),
        _tail(hidden(text), _TRACEBACK_BYTES),
        reason,
    )


def bad_result(error: BaseException, hiding: Callable[[], Hidden] | None = None) -> JobFailure:
    """Why a result cannot be written."""
    failure = failure_of(error, "bad_result", hiding)
    if isinstance(error, ValueError | PayloadTooLarge) and error.__cause__ is None:
        # The message is enough: a traceback would show only code of fennelq.
        failure = failure._replace(traceback="")
    return failure


_AROUND_TASKS: Final = ("fennelq.worker.", "fennelq.plugins.", "fennelq.carry")


def trace_of_task(error: BaseException) -> TracebackType | None:
    """Its traceback from the task on: the frames of the worker and of plugins, which called the task, do not explain
    the failure."""
    inner = error.__traceback__
    while inner is not None and _module_of(inner).startswith(_AROUND_TASKS):
        inner = inner.tb_next
    if inner is None and not type(error).__module__.startswith("fennelq."):
        # The traceback contains no code of the user's: it is an error of the worker itself.
        return error.__traceback__
    return inner


def _kind_of(error: BaseException) -> str:
    """The name of its class, with the module from which it is imported."""
    name, module = type(error).__qualname__, type(error).__module__
    if module in ("builtins", "__main__"):
        return name
    return f"fennelq.{name}" if module.startswith("fennelq.") else f"{module}.{name}"


def _module_of(trace: TracebackType) -> str:
    return str(trace.tb_frame.f_globals.get("__name__", ""))


def failure_to_wire(failure: JobFailure, tries: int) -> bytes:
    """A failure as JSON."""
    fields = {
        "type": failure.error_type,
        "message": failure.message,
        "traceback": failure.traceback,
        "reason": failure.reason,
        "tries": tries,
    }
    if failure.fingerprint:
        fields["f"] = failure.fingerprint
    return orjson.dumps(fields)


def failure_from_wire(raw: bytes) -> tuple[JobFailure, int]:
    """Reads a failure and its number of tries; unreadable text becomes a failure that describes that."""
    try:
        fields: dict[str, Any] = orjson.loads(raw)
        failure = JobFailure(
            fields["type"],
            fields["message"],
            fields.get("traceback", ""),
            fields.get("reason", "failed"),
            str(fields.get("f", "")),
        )
        return failure, int(fields.get("tries", 0))
    except (ValueError, KeyError, TypeError, AttributeError):
        return JobFailure("Unreadable", raw[:200].decode("utf-8", "replace"), reason="broken"), 0


def _seconds(delay: float | timedelta) -> float:
    """The delay of a Retry or Snooze: 0 when it is negative, and never more than can be kept."""
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
    if math.isnan(seconds):
        raise ValueError("the delay is nan")
    return min(max(seconds, 0.0), TEN_YEARS)


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as inner:  # str() may be the user's code, and may even raise SystemExit
        return f"(its message cannot be shown: {type(inner).__name__})"


def _cut(text: str, size: int) -> str:
    raw = text.encode("utf-8", "replace")
    return raw.decode() if len(raw) <= size else raw[: size - _MARK].decode("utf-8", "ignore") + "…"


def _tail(text: str, size: int) -> str:
    raw = text.encode("utf-8", "replace")
    return raw.decode() if len(raw) <= size else "…" + raw[_MARK - size :].decode("utf-8", "ignore")
