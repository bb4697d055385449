"""The values a job is made of, and its id."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fennelq import clock
from fennelq.errors import InvalidJobId
from fennelq.model.checks import NAME
from fennelq.model.job import Delivery, JobInfo, Status, new_key, split_id
from tests.kit.jobs import sent


def test_keys_sort_by_the_time_they_were_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    for ms in (1, 255, 256, 1_700_000_000_000, 1_700_000_000_001, 0xFFFFFFFFFFFF):
        monkeypatch.setattr(clock, "wall_ms", lambda ms=ms: ms)
        made.append(new_key())
    assert made == sorted(made)


def test_keys_of_the_same_millisecond_are_all_different(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "wall_ms", lambda: 1_700_000_000_000)
    keys = {new_key() for _ in range(10_000)}
    assert len(keys) == 10_000
    assert all(len(key) == 20 and NAME.fullmatch(key) for key in keys)


def test_an_id_contains_the_queue_and_the_key_of_its_job() -> None:
    job = sent("mail", "7", "app:welcome")
    delivery = Delivery("mail", "s", "1-0", "7", "app:welcome", b"", b"", 0, 1, 1, 0)
    assert job.id == delivery.id == "mail:7"
    assert split_id(job.id) == ("mail", "7")


@given(st.from_regex(NAME, fullmatch=True), st.from_regex(NAME, fullmatch=True))
def test_an_id_is_taken_apart_at_its_colon(queue: str, key: str) -> None:
    assert split_id(f"{queue}:{key}") == (queue, key)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mail",
        ":7",
        "mail:",
        ":",
        "mail:7\n",
        "mail:7\nmail:8",
        "mail:\ud800",
        "mail:7 8",
        "ma il:7",
        "mail:{7}",
        "mail:a:b",
        "mail:" + "x" * 129,
        "x" * 129 + ":7",
        b"mail:7",
        7,
        None,
    ],
)
def test_what_is_not_an_id_is_refused_with_an_example(text: Any) -> None:
    with pytest.raises(
        InvalidJobId, match=r"is not a job id: an id has the form queue:key, like 'mail:0199c0de…'"
    ) as no:
        split_id(text)
    assert isinstance(no.value, ValueError)
    assert no.value.job_id == text
    assert str(no.value).encode()


def test_the_ids_that_fennelq_makes_are_ids() -> None:
    for key in (new_key(), f"cron.{'n' * 100}.{10**13}"):
        assert split_id(f"mail:{key}") == ("mail", key)


def test_a_delivery_is_finished_with_its_token() -> None:
    delivery = Delivery("mail", "s:high", "5-1", "7", "app:welcome", b"", b"", 0, 1, 1, 0)
    assert delivery.token == ("mail", "s:high", "5-1")


def test_the_words_for_a_jobs_life_are_these() -> None:
    assert [status.value for status in Status] == [
        "UNKNOWN",
        "SCHEDULED",
        "SENT",
        "EXECUTING",
        "RETRY",
        "SUCCESS",
        "DEAD",
        "CANCELLED",
    ]
    assert all(status.name == status.value == str(status) for status in Status)


def test_a_job_has_ended_when_nothing_more_will_happen_by_itself() -> None:
    assert {status for status in Status if status.ended} == {Status.SUCCESS, Status.DEAD, Status.CANCELLED}


def test_what_is_known_of_a_job_can_be_listed() -> None:
    info = JobInfo(id="mail:7", task="app:welcome", queue="mail", status=Status.SENT)
    assert dataclasses.asdict(info)["status"] == "SENT"
    with pytest.raises(AttributeError):
        info.status = Status.DEAD  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
