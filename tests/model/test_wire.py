"""A job as it is sent, and as it is handed over to another slot."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from fennelq import ConfigurationError, Job
from fennelq.model.fields import KNOWN
from fennelq.model.wire import WireJob
from tests.kit.jobs import altered, sent

WHOLE: dict[str, Any] = {
    "priority": "low",
    "at_ms": 7,
    "expires_ms": 5,
    "max_deliveries": 2,
    "keep_ms": 9,
    "options": '{"h":{"a":"é"}}',
}


def test_a_job_is_handed_over_as_json_with_what_is_not_as_usual() -> None:
    plain = sent("mail", "1", "a:b", b"[[1],{}]")
    assert plain.to_wire() == b'{"queue":"mail","key":"1","task":"a:b","args":"[[1],{}]"}'
    whole = sent("mail", "1", "a:b", b"[[1],{}]", **WHOLE)
    assert orjson.loads(whole.to_wire()) == orjson.loads(plain.to_wire()) | WHOLE
    assert list(orjson.loads(whole.to_wire())) == ["queue", "key", "task", "args", *WHOLE]


@pytest.mark.parametrize("carried", [{}, WHOLE, *({name: 1} for name in sorted(KNOWN - {"options"}))])
def test_a_job_is_read_as_it_was_written(carried: dict[str, Any]) -> None:
    job = sent("mail", "1", "a:b", **carried)
    assert WireJob[Any].from_wire(job.to_wire()) == job


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"7",
        b"{}",
        b'{"queue":"mail","key":"1","task":"a:b"}',
        b'{"queue":"mail","key":"1","task":"a:b","args":5}',
        b'{"queue":"mail","key":"1","task":"a:b","args":"[]","from_a_later_version":1}',
    ],
)
def test_bytes_that_are_not_a_job_of_this_version_are_a_value_error(raw: bytes) -> None:
    with pytest.raises(ValueError, match="the job cannot be read"):
        WireJob[Any].from_wire(raw)


def test_users_see_where_a_job_goes_and_nothing_else() -> None:
    job: Job[Any] = sent("mail", "1", "a:b", **WHOLE)
    assert (job.id, job.queue, job.key, job.task, job.priority) == ("mail:1", "mail", "1", "a:b", "low")
    assert repr(job) == "<Job mail:1 of a:b>"
    assert type(job).__name__ == "Job"
    with pytest.raises(AttributeError):
        job.queue = "other"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("name", ["args", "carried", "returns", "queue", "key", "task", "id", "other"])
def test_no_attribute_of_a_job_can_be_assigned(name: str) -> None:
    job = sent("mail", "1", "a:b", **WHOLE)
    with pytest.raises(AttributeError):
        setattr(job, name, b"")
    assert job == sent("mail", "1", "a:b", **WHOLE)


def test_a_job_can_be_copied_and_pickled() -> None:
    job = sent("mail", "1", "a:b", **WHOLE)
    for other in (pickle.loads(pickle.dumps(job)), copy.copy(job)):
        assert (other.to_wire(), repr(other)) == (job.to_wire(), repr(job))


def test_jobs_are_equal_when_everything_about_them_is() -> None:
    job = sent("mail", "1", "a:b", priority="low")
    assert {job, sent("mail", "1", "a:b", priority="low")} == {job}
    for other in (altered(job, key="2"), altered(job, args=b""), altered(job, priority="high")):
        assert other != job


def test_the_size_of_a_job_counts_what_may_be_long() -> None:
    assert sent("mail", "1", "a:b", b"x" * 1000).size == 1100
    assert sent("mail", "1", "a:b", b"x" * 1000, options="y" * 50).size == 1150
    assert sent("mail", "1", "a:b", b"", max_deliveries=2).size == 100


@pytest.mark.parametrize(
    ("text", "size"), [("y" * 50, 50), ("é" * 50, 100), ("€" * 50, 150), ("🙂" * 50, 200)]
)
def test_the_size_of_a_job_is_in_bytes_and_not_in_characters(text: str, size: int) -> None:
    assert sent("mail", "1", "a:b", b"", options=text).size == 100 + size


# Other headers, other options


def test_a_job_with_more_headers_is_the_same_job_with_those_of_both() -> None:
    job = sent("mail", "1", "a:b", b"[[1],{}]", **WHOLE)
    more = job.with_headers({"a": "z", "trace": "7"})
    assert job.headers == {"a": "é"}
    assert more.headers == {"a": "z", "trace": "7"}
    assert (more.id, more.task, more.args, more.returns) == (job.id, job.task, job.args, job.returns)
    assert {**more.carried, "options": ""} == {**WHOLE, "options": ""}
    assert sent("mail", "1", "a:b").headers == {}
    with pytest.raises(TypeError):
        job.headers["a"] = "x"  # type: ignore[index]  # pyright: ignore[reportIndexIssue]


def test_headers_are_limited_together() -> None:
    job = sent("mail", "1", "a:b").with_headers({f"h{n}": "x" for n in range(30)})
    with pytest.raises(ConfigurationError, match="headers are at most 32, not 33"):
        job.with_headers({f"more{n}": "x" for n in range(3)})
    anything: Any = {"n": 1}
    with pytest.raises(ConfigurationError, match="headers must be a dict of strings"):
        job.with_headers(anything)


def test_a_job_with_other_options_carries_these_in_place_of_its_own() -> None:
    own: dict[str, Any] = {**WHOLE, "options": '{"h":{"a":"b"},"t":5.0,"r":2}'}
    job = sent("mail", "1", "a:b", **own)
    other = job.with_options(priority="high", expires=1, retries=0, timeout=None, headers={"c": "d"})
    assert other.priority == "high"
    assert {**other.carried, "options": ""} == {
        **WHOLE,
        "priority": "high",
        "expires_ms": 1000,
        "options": "",
    }
    assert orjson.loads(other.carried["options"]) == {"h": {"a": "b", "c": "d"}, "t": None, "r": 0}
    assert job.with_options(priority="normal").priority == "normal"
    assert "priority" not in job.with_options(priority="normal").carried


def test_an_idempotency_key_given_later_belongs_to_the_task_as_one_given_before() -> None:
    job = sent("mail", "1", "a:b")
    assert job.with_options(key="k", ttl=2).carried == {"idempotency": "a:b:k", "window_ms": 2000}
    assert job.with_options(ttl=2).carried == {}


@pytest.mark.parametrize("option", ["queue", "job_id"])
def test_the_id_of_a_job_cannot_be_changed(option: str) -> None:
    options: dict[str, Any] = {option: "x"}
    with pytest.raises(ConfigurationError, match=rf"{option}= is part of the id of <Job mail:1 of a:b>"):
        sent("mail", "1", "a:b").with_options(**options)


def test_options_that_do_not_fit_those_of_the_job_are_refused() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    with pytest.raises(ConfigurationError, match="delay and at exclude each other"):
        sent("mail", "1", "a:b", delay_ms=5).with_options(at=at)
    anything: dict[str, Any] = {"prioriti": "low"}
    with pytest.raises(ConfigurationError, match=r"unknown option 'prioriti': did you mean 'priority'\?"):
        sent("mail", "1", "a:b").with_options(**anything)
