"""Options: one typed set, checked where they are given, merged once."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, get_type_hints

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fennelq.errors import ConfigurationError
from fennelq.model.checks import valid_name
from fennelq.model.fields import FIELDS, MEANINGS
from fennelq.model.options import FOR_WORKERS, OPTIONS, OptionArgs, Options, read_wire
from fennelq.model.plan import Plan
from fennelq.model.retry import RetryPolicy
from fennelq.model.units import TEN_YEARS, epoch_ms, milliseconds, seconds

DURATIONS = ["delay", "expires", "ttl", "result_ttl", "failure_ttl", "timeout"]


def options_of(**options: Any) -> Options:
    return Options().with_(options)


def refusal(**options: Any) -> str:
    """The text with which these options are refused."""
    with pytest.raises(ConfigurationError) as caught:
        options_of(**options)
    return str(caught.value)


# Names


def test_the_typed_options_are_the_known_options() -> None:
    assert list(OPTIONS) == list(get_type_hints(OptionArgs))


def test_each_option_has_a_letter_of_its_own_where_it_is_read() -> None:
    of_the_worker = {name: option.letter for name, option in FOR_WORKERS.items() if name != "retries"}
    assert len(set(of_the_worker.values())) == len(of_the_worker)
    assert len(MEANINGS) == len(FIELDS)
    assert all(len(letter) == 1 for letter in [*of_the_worker.values(), *MEANINGS])


def test_what_is_carried_has_a_name_of_its_own() -> None:
    carried = [field.carried for field in FIELDS if field.carried]
    assert len(set(carried)) == len(carried)


def test_the_plan_has_an_attribute_for_everything_that_the_worker_reads() -> None:
    """Or `_with` would fail for it."""
    values: dict[str, Any] = {"retry": RetryPolicy.fixed(2), "headers": {"a": "1"}}
    for name in FOR_WORKERS:
        options = options_of(**{name: values.get(name, 1)})
        task = Plan.of(options, retries=3, result_ttl=1, failure_ttl=1)
        assert task.overridden(options.to_wire()) == task


def test_a_misspelt_option_is_refused_and_the_right_one_suggested() -> None:
    assert refusal(timout=5) == "unknown option 'timout': did you mean 'timeout'?"
    assert refusal(priorities="high") == "unknown option 'priorities': did you mean 'priority'?"
    assert "known: at, concurrency, dedupe, delay" in refusal(xyz=1)


@pytest.mark.parametrize("name", ["mail", "a", "A.b-c_9", "x" * 128])
def test_names_that_keys_can_be_made_of(name: str) -> None:
    assert valid_name("queue", name) == name
    assert options_of(queue=name).given.get("queue") == name
    assert options_of(job_id=name).given.get("job_id") == name


@pytest.mark.parametrize("name", ["", "x" * 129, "a b", "{a}", "a/b", "é", "a\n", "\ud800"])
@pytest.mark.parametrize("option", ["queue", "job_id"])
def test_other_names_are_refused_with_the_rule(option: str, name: Any) -> None:
    text = refusal(**{option: name})
    assert text.startswith(option)
    assert "use 1-128 of A-Z a-z 0-9 _ . -" in text
    assert len(text) < 300


@pytest.mark.parametrize("name", [5, None, b"mail"])
@pytest.mark.parametrize("option", ["queue", "job_id"])
def test_a_name_that_is_not_a_string_is_refused_as_such(option: str, name: Any) -> None:
    shown = "None" if name is None else {int: "an int object", bytes: "a bytes object"}[type(name)]
    assert refusal(**{option: name}) == f"{option} must be a string, not {shown}"


def test_a_whole_id_as_job_id_is_answered_with_its_two_parts() -> None:
    assert refusal(job_id="mail:42") == (
        "job_id 'mail:42' is not valid: it is the part of an id after the colon, and queue= is the part before it"
    )
    assert refusal(queue="a:b") == "queue 'a:b' is not valid: use 1-128 of A-Z a-z 0-9 _ . -"


@pytest.mark.parametrize("key", ["welcome:42", "x", "é" * 256, "user/42@example.com"])
def test_an_idempotency_key_is_almost_any_text(key: str) -> None:
    assert options_of(key=key).given.get("key") == key


@pytest.mark.parametrize("key", ["", "a b", "a\tb", "{a}", "x" * 257, "\ud800", "\x7f"])
def test_an_idempotency_key_that_redis_or_a_person_could_misread_is_refused(key: Any) -> None:
    assert refusal(key=key).endswith("is not valid: use 1-256 characters, no space and no braces")


@pytest.mark.parametrize(("key", "shown"), [(42, "an int object"), (None, "None"), (b"x", "a bytes object")])
def test_an_idempotency_key_that_is_not_a_string_is_refused_as_such(key: Any, shown: str) -> None:
    assert refusal(key=key) == f"idempotency key must be a string, not {shown}"


def test_a_priority_is_one_of_three() -> None:
    assert [options_of(priority=name).given.get("priority") for name in ("high", "normal", "low")] == [
        "high",
        "normal",
        "low",
    ]
    for value in ("urgent", "", None, 1, ["high"]):
        assert "is not one of high, normal, low" in refusal(priority=value)


# Numbers


@pytest.mark.parametrize("name", DURATIONS)
def test_a_duration_is_seconds_or_a_timedelta(name: str) -> None:
    for value in (1, 0.5, timedelta(minutes=2), TEN_YEARS):
        assert options_of(**{name: value}).given == {name: value}
    for wrong in ("5", b"5", [5], object()):
        assert refusal(**{name: wrong}).startswith(f"{name} must be seconds or a timedelta, not ")


@pytest.mark.parametrize("name", DURATIONS)
@pytest.mark.parametrize("value", [-1, -0.001, timedelta(seconds=-1), TEN_YEARS + 1, math.inf, math.nan])
def test_a_duration_is_between_nothing_and_ten_years(name: str, value: Any) -> None:
    assert refusal(**{name: value}).startswith(f"{name} must be between 0 s and ten years, not ")


@pytest.mark.parametrize("name", DURATIONS)
def test_only_a_timeout_can_be_none(name: str) -> None:
    if name == "timeout":
        assert options_of(timeout=None).given == {"timeout": None}
    else:
        assert "must be seconds or a timedelta" in refusal(**{name: None})


def test_a_timeout_of_nothing_is_refused() -> None:
    assert refusal(timeout=0) == "timeout must be more than 0; None means no timeout"
    assert refusal(timeout=timedelta(0)) == "timeout must be more than 0; None means no timeout"


def test_a_moment_knows_its_time_zone() -> None:
    moment = datetime(2030, 1, 1, tzinfo=timezone(timedelta(hours=2)))
    assert options_of(at=moment).given == {"at": moment}
    for value in (moment.replace(tzinfo=None), "2030-01-01", 1.5e9, None):
        assert refusal(at=value).startswith("at must be a datetime with a time zone, for example ")


def test_a_delay_and_a_moment_exclude_each_other() -> None:
    assert refusal(delay=5, at=datetime.now(UTC)) == "delay and at exclude each other: pass only one"
    with pytest.raises(ConfigurationError, match="exclude each other"):
        options_of(delay=5).with_({"at": datetime.now(UTC)})


@pytest.mark.parametrize(("name", "least"), [("retries", 0), ("max_deliveries", 1)])
def test_a_count_is_a_whole_number(name: str, least: int) -> None:
    for good in (least, least + 1, (1 << 63) - 1):
        assert options_of(**{name: good}).given == {name: good}
    for value in (least - 1, 2.5, "3", None, 1 << 63):
        assert refusal(**{name: value}).startswith(f"{name} must be a whole number, {least} or more, not ")


def test_a_retry_policy_is_one() -> None:
    assert options_of(retry=RetryPolicy.fixed(2)).given == {"retry": RetryPolicy.fixed(2)}
    for value in (5, "fixed", RetryPolicy):
        assert "a number of runs is retries=" in refusal(retry=value)


# Headers


def test_headers_are_a_few_short_texts() -> None:
    headers = {f"h{i}": "x" * 200 for i in range(32)}
    assert options_of(headers=headers).given == {"headers": headers}
    odd: list[Any] = [{"a": 1}, {1: "a"}, {"a": None}, "text", ["a"], None]
    for value in odd:
        sentence = f'headers must be a dict of strings, like {{"tenant": "acme"}}, not {value!r}'
        assert refusal(headers=value) == sentence
    assert refusal(headers={f"h{i}": "" for i in range(33)}) == "headers are at most 32, not 33"
    assert "headers take 8,193 bytes, more than 8,192" in refusal(headers={"a": "x" * 8192})
    assert "headers must be texts that UTF-8 can write" in refusal(headers={"a": "\ud800"})


# Merging


def test_a_later_option_replaces_an_earlier_one_and_leaves_the_others() -> None:
    merged = options_of(queue="mail", retries=1).with_({"retries": 2, "timeout": None})
    assert merged == options_of(queue="mail", retries=2, timeout=None)


def test_options_that_are_not_given_later_stay_as_they_are() -> None:
    every = options_of(queue="mail", priority="low", delay=1, key="k", headers={"a": "1"})
    assert every.with_({}) == every


def test_headers_are_merged_by_name_and_the_later_counts() -> None:
    merged = options_of(headers={"a": "1", "b": "1"}).with_({"headers": {"b": "2", "c": "2"}})
    assert merged.given == {"headers": {"a": "1", "b": "2", "c": "2"}}
    assert merged.with_({"headers": {}}) == merged
    with pytest.raises(ConfigurationError, match="headers must be a dict"):
        merged.with_({"headers": "text"})


def test_options_are_rebound_and_never_changed() -> None:
    options = options_of(queue="mail")
    options.with_({"queue": "other"})
    assert options == options_of(queue="mail")
    with pytest.raises(AttributeError):
        options.given = {"queue": "other"}  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


def test_given_is_what_was_given_and_nothing_else() -> None:
    assert Options().given == {}
    assert options_of(timeout=None, queue="mail").given == {"queue": "mail", "timeout": None}


# Over the wire


def test_only_what_a_worker_needs_is_sent() -> None:
    assert Options().to_wire() == b""
    assert options_of(queue="mail", priority="low", delay=1, key="k", expires=5, headers={}).to_wire() == b""


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "retries": st.integers(0, 1 << 60),
            "timeout": st.none()
            | st.floats(0.001, TEN_YEARS)
            | st.timedeltas(timedelta(seconds=1), timedelta(3650)),
            "result_ttl": st.floats(0, TEN_YEARS),
            "failure_ttl": st.integers(0, int(TEN_YEARS)),
            "headers": st.dictionaries(st.text(max_size=20), st.text(max_size=20), min_size=1, max_size=5),
        },
    )
)
def test_what_is_sent_is_what_arrives(options: dict[str, Any]) -> None:
    wire = options_of(**options).to_wire()
    read: Any = read_wire(wire) if wire else {}
    timeout = options.get("timeout")
    assert read.get("r") == options.get("retries")
    assert read.get("t") == (None if timeout is None else seconds(timeout))
    assert read.get("s") == options.get("result_ttl")
    assert read.get("f") == options.get("failure_ttl")
    assert read.get("h") == options.get("headers")


def test_a_whole_policy_is_sent_rather_than_a_number() -> None:
    wire = orjson.loads(options_of(retry=RetryPolicy.fixed(7, delay=2), retries=1).to_wire())
    assert wire == {"r": [7, "fixed", [2.0], False]}


def test_a_job_carries_only_what_is_not_as_usual() -> None:
    assert Options().carried() == {}
    assert (
        options_of(
            queue="mail", priority="normal", delay=0, expires=0, retries=1, headers={"a": "1"}
        ).carried()
        == {}
    )
    assert options_of(priority="low", delay=0.00001, max_deliveries=2, key="k", ttl=5).carried() == {
        "priority": "low",
        "delay_ms": 1,
        "idempotency": "k",
        "window_ms": 5000,
        "max_deliveries": 2,
    }
    assert options_of(at=datetime(1970, 1, 1, tzinfo=UTC)).carried() == {"at_ms": 1}
    assert options_of(delay=1, expires=2).carried() == {"delay_ms": 1000, "expires_ms": 2000}
    assert options_of(expires=0.0001).carried() == {"expires_ms": 1}


@pytest.mark.parametrize(
    "options",
    [
        {"delay": 10, "expires": 5},
        {"delay": timedelta(seconds=5), "expires": 5},
        {"key": "k", "dedupe": "debounce", "wait": 10, "expires": 5},
    ],
)
def test_a_job_that_would_expire_before_it_is_due_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"expires= is 5 s after the call, .* it would never run"):
        options_of(**options)
    assert options_of(**{**options, "expires": 11}).carried()["expires_ms"] == 11_000
    assert "expires_ms" not in options_of(**{**options, "expires": 0}).carried()


# Units


@given(st.floats(0, TEN_YEARS))
def test_a_duration_in_milliseconds_is_zero_only_when_it_is_nothing(value: float) -> None:
    assert (milliseconds(value) == 0) == (value == 0)
    assert abs(milliseconds(value) - value * 1000) <= 1


def test_a_timedelta_is_so_many_units() -> None:
    assert milliseconds(timedelta(minutes=1)) == 60_000
    assert seconds(timedelta(minutes=1)) == 60


@given(
    st.datetimes(
        timezones=st.sampled_from([UTC, timezone(timedelta(hours=13)), timezone(-timedelta(hours=12))])
    )
)
def test_a_moment_in_milliseconds_is_the_same_in_every_zone(moment: datetime) -> None:
    expected = (moment - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(milliseconds=1)
    assert abs(epoch_ms(moment) - expected) <= 1
