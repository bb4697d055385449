"""How a run ended: what a task may raise to decide it, and what is written."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fennelq.model import outcome
from fennelq.model.job import JobFailure
from fennelq.model.outcome import (
    Outcome,
    Reject,
    Retry,
    Snooze,
    failure_from_wire,
    failure_of,
    failure_to_wire,
    seconds_of,
)
from fennelq.model.units import TEN_YEARS


def raised(error: BaseException) -> BaseException:
    """The same exception, with a traceback."""
    try:
        raise error
    except BaseException as caught:
        return caught


# What a task may raise


def test_a_retry_has_a_delay_or_uses_the_policy_of_its_task() -> None:
    assert Retry().delay is None
    assert Retry(30).delay == 30
    assert Retry(timedelta(minutes=1)).delay == 60
    assert Retry(delay=-5).delay == 0
    assert str(Retry()) == "asked to retry"
    assert str(Retry(5, "the api is busy")) == "the api is busy"


def test_a_snooze_lasts_for_a_time_or_until_a_moment() -> None:
    assert seconds_of(Snooze(30)) == 30
    assert seconds_of(Snooze(timedelta(minutes=1))) == 60
    assert seconds_of(Snooze(-5)) == 0
    assert seconds_of(Snooze(until=datetime.now(UTC) - timedelta(days=1))) == 0
    assert 3590 < seconds_of(Snooze(until=datetime.now(UTC) + timedelta(hours=1))) <= 3600


def test_a_snooze_takes_one_of_the_two_and_a_moment_with_a_time_zone() -> None:
    with pytest.raises(TypeError, match="either a delay in seconds or until="):
        Snooze()
    with pytest.raises(TypeError, match="either a delay in seconds or until="):
        Snooze(5, until=datetime.now(UTC))
    with pytest.raises(ValueError, match="must have a time zone"):
        Snooze(until=datetime(2030, 1, 1))  # noqa: DTZ001 - that is the mistake


@pytest.mark.parametrize("asked", [Retry, Snooze])
def test_a_delay_can_always_be_written_down(asked: type[Retry] | type[Snooze]) -> None:
    assert asked(math.inf).delay == TEN_YEARS
    assert asked(timedelta.max).delay == TEN_YEARS
    with pytest.raises(ValueError, match="nan"):
        asked(math.nan)
    with pytest.raises((TypeError, ValueError)):
        asked("soon")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert outcome.retried(TEN_YEARS, JobFailure("E", "")).value.isdigit()


def test_a_reject_gives_its_reason() -> None:
    assert str(Reject("no such user")) == "no such user"
    assert str(Reject()) == "rejected"


# What is written down


def test_a_success_carries_its_value_and_how_long_to_keep_it() -> None:
    assert outcome.succeeded(b"[1]", 5000) == Outcome("S", b'{"ok":[1]}', b"", 5000, "")
    assert outcome.succeeded(b"", 5000) == Outcome("N")


def test_a_retry_carries_milliseconds_and_the_failure() -> None:
    failure = JobFailure("ValueError", "no", "Traceback …")
    retried = outcome.retried(1.5, failure)
    assert (retried.kind, retried.value, retried.reason) == ("R", b"1500", "ValueError")
    assert failure_from_wire(retried.error) == (failure, 0)


def test_a_retry_knows_how_many_tries_there_are() -> None:
    failure = JobFailure("ValueError", "no")
    assert outcome.retried(1.5, failure, of=4) == outcome.retried(1.5, failure)._replace(of=4)
    assert outcome.retried(1.5, failure).of == 0


def test_a_snooze_is_never_for_no_time() -> None:
    assert outcome.snoozed(0).value == b"+1"
    assert outcome.snoozed(2).value == b"+2000"


def test_a_death_carries_the_failure_twice_once_for_the_record_and_once_for_who_waits() -> None:
    died = outcome.died(JobFailure("E", "m", "t", "rejected"), 4, 9000)
    assert (died.kind, died.ttl_ms, died.reason) == ("D", 9000, "rejected")
    assert orjson.loads(died.value) == {"dead": orjson.loads(died.error)}
    assert failure_from_wire(died.error) == (JobFailure("E", "m", "t", "rejected"), 4)


def test_of_what_is_not_known_the_message_is_short() -> None:
    ended = outcome.not_known(JobFailure("UnknownTask", "ü" * 400, "", "unknown_task"), 0, 9000)
    assert orjson.loads(ended.error)["message"] == "ü" * 248 + "…"


def test_a_job_of_an_unknown_task_is_a_death_that_may_wait() -> None:
    failure = JobFailure("UnknownTask", "m", "", "unknown_task")
    assert outcome.not_known(failure, 0, 9000) == outcome.died(failure, 0, 9000)._replace(kind="U")


def test_a_cancellation_carries_its_reason() -> None:
    assert outcome.cancelled("expired", 100) == Outcome("K", b'{"cancelled":"expired"}', b"", 100, "expired")


# What is kept of an exception


class Quiet(Exception):
    def __str__(self) -> str:
        raise RuntimeError("never mind")


class Odd(Exception):
    def __str__(self) -> str:
        return cast("str", 5)


def test_an_exception_is_kept_by_its_full_name_message_and_traceback() -> None:
    failure = failure_of(raised(orjson.JSONDecodeError("bad", "x", 0)), "bad_payload")
    assert failure.error_type == "orjson.JSONDecodeError"
    assert failure.message == "bad: line 1 column 1 (char 0)"
    assert failure.traceback.startswith("Traceback (most recent call last)")
    assert 'raised(orjson.JSONDecodeError("bad"' not in failure.error_type
    assert failure.reason == "bad_payload"
    assert failure_of(ValueError("x")) == JobFailure("ValueError", "x", "ValueError: x\n", "failed")


def test_an_exception_of_fennelq_has_the_name_by_which_it_is_imported() -> None:
    assert failure_of(Retry(reason="busy")).traceback == "fennelq.Retry: busy\n"
    failure = failure_of(raised(Reject("fennelq.model.outcome.Reject")))
    assert failure.error_type == "fennelq.Reject"
    assert failure.traceback.endswith("\nfennelq.Reject: fennelq.model.outcome.Reject\n")


@pytest.mark.parametrize(("error", "shown"), [(Quiet(), "RuntimeError"), (Odd(), "TypeError")])
def test_an_exception_that_cannot_be_shown_is_kept_all_the_same(error: Exception, shown: str) -> None:
    failure = failure_of(raised(error))
    assert failure.message == f"(its message cannot be shown: {shown})"
    assert type(error).__name__ in failure.traceback


def test_nothing_of_an_exception_grows_without_bound() -> None:
    endless = type("E" * 10_000, (Exception,), {})
    failure = failure_of(raised(endless("é" * 1_000_000)))
    assert len(failure.error_type.encode()) <= 256
    assert len(failure.message.encode()) <= 4096
    assert len(failure.traceback.encode()) <= 8192
    assert failure.message.startswith("éé")
    assert failure.message.endswith("é…")
    assert failure.traceback.startswith("…")


def test_of_a_long_traceback_the_end_is_kept() -> None:
    def down(depth: int) -> None:
        if depth:
            # A different line each time, so that the frames are not folded into one.
            exec(
                compile("\n" * depth + "down(depth - 1)", f"file{depth}.py", "exec"),
                locals() | {"down": down},
            )
        raise LookupError("at the bottom")

    with pytest.raises(LookupError) as caught:
        down(200)
    failure = failure_of(caught.value)
    assert failure.traceback.endswith("LookupError: at the bottom\n")
    assert len(failure.traceback.encode()) <= 8192


@given(st.text(alphabet=st.characters(codec=None)) | st.text(alphabet="\ud800\udfff\x00é"))
def test_whatever_the_message_is_the_failure_can_be_written_and_read(message: str) -> None:
    failure = failure_of(raised(ValueError(message)))
    assert failure_from_wire(failure_to_wire(failure, 2)) == (failure, 2)
    if message.isascii():
        assert failure.message == message


def test_an_exception_group_and_its_causes_are_in_the_traceback() -> None:
    try:
        try:
            raise KeyError("first")
        except KeyError as cause:
            raise ExceptionGroup("several", [ValueError("one"), TypeError("two")]) from cause
    except ExceptionGroup as group:
        failure = failure_of(group)
    assert failure.error_type == "ExceptionGroup"
    for part in ("KeyError: 'first'", "ValueError: one", "TypeError: two"):
        assert part in failure.traceback


# Over the wire


texts = st.text()


@given(st.builds(JobFailure, texts, texts, texts, texts), st.integers(0, 1 << 60))
def test_a_failure_arrives_as_it_was_written(failure: JobFailure, tries: int) -> None:
    assert failure_from_wire(failure_to_wire(failure, tries)) == (failure, tries)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"x",
        b"null",
        b"[]",
        b"5",
        b'{"type":"E"}',
        b'{"type":"E","message":"m","tries":"many"}',
        b"\xff\xfe",
    ],
)
def test_a_failure_that_cannot_be_read_is_reported_as_unreadable(raw: bytes) -> None:
    failure, tries = failure_from_wire(raw)
    assert (failure.error_type, failure.reason, tries) == ("Unreadable", "broken", 0)


@given(st.binary() | st.dictionaries(texts, st.none() | texts | st.floats(allow_nan=False)).map(orjson.dumps))
def test_whatever_was_written_reading_a_failure_never_raises(raw: bytes) -> None:
    failure, tries = failure_from_wire(raw)
    assert isinstance(failure, JobFailure)
    assert isinstance(tries, int)


def test_a_failure_of_an_earlier_version_is_read() -> None:
    old: Any = {"type": "E", "message": "m", "unheard_of": 1}
    assert failure_from_wire(orjson.dumps(old)) == (JobFailure("E", "m", "", "failed"), 0)
