"""Strangers: jobs for which the code of a worker is too old are reported, once a minute for each task."""

from __future__ import annotations

import pytest
from structlog.typing import EventDict

from fennelq import clock
from fennelq.broker.verbs.runs import TooNew
from fennelq.model.job import Delivery, JobFailure
from fennelq.model.outcome import not_known
from fennelq.worker.running.unrunnable import UnrunnableJobs


class Time:
    """A clock that is moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(clock, "monotonic", lambda: self.now)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


def meet(
    unrunnable: UnrunnableJobs,
    task: str = "shop:welcom",
    *,
    reason: str = "unknown_task",
    queue: str = "mail",
) -> None:
    delivery = Delivery(queue, "s", "1-1", "7", task, b"[[],{}]", b"", 0, 1, 1, 0)
    failure = JobFailure("UnknownTask", f"unknown task {task!r}", reason=reason)
    unrunnable.met(delivery, not_known(failure, 0, 1000))


def test_a_warning_names_task_queue_job_why_and_what_is_likely(time: Time, logged: list[EventDict]) -> None:
    meet(UnrunnableJobs({"shop:welcome"}, "tasks"))
    assert logged == [
        {
            "event": "task_unknown",
            "log_level": "warning",
            "task": "shop:welcom",
            "queue": "mail",
            "job_id": "mail:7",
            "times": 1,
            "why": "unknown task 'shop:welcom'",
            "likely": "the name is misspelt, or the sender's code is newer than this worker's",
            "doing": "handed back, for a worker that can run it",
        }
    ]


@pytest.mark.parametrize(
    ("task", "reason", "event", "likely"),
    [
        (
            "reports:yearly",
            "unknown_task",
            "task_unknown",
            "tasks, which this worker has imported, does not import reports, "
            "or the sender's code is newer than this worker's",
        ),
        (
            "shop:welcome",
            "unknown_argument",
            "argument_unknown",
            "the sender's code is newer than this worker's: restart the worker with the new code",
        ),
    ],
)
def test_the_likely_cause_depends_on_what_is_unknown(
    time: Time, logged: list[EventDict], task: str, reason: str, event: str, likely: str
) -> None:
    meet(UnrunnableJobs({"shop:welcome"}, "tasks"), task, reason=reason)
    assert [(line["event"], line["likely"]) for line in logged] == [(event, likely)]


def test_a_record_of_a_newer_fennelq_is_reported_as_well(time: Time, logged: list[EventDict]) -> None:
    unrunnable = UnrunnableJobs({"shop:welcome"}, "tasks")
    unrunnable.too_new(
        "mail", [TooNew("7", "shop:welcome", "wire version 2"), TooNew("8", "shop:welcome", "…")]
    )
    assert [(line["event"], line["job_id"], line["why"], line["likely"]) for line in logged] == [
        ("version_unknown", "mail:7", "wire version 2", "the sender's fennelq is newer than this worker's")
    ]


def test_each_task_is_reported_once_a_minute_with_how_often_it_was_met(
    time: Time, logged: list[EventDict]
) -> None:
    unrunnable = UnrunnableJobs({"shop:welcome"}, "tasks")
    for _ in range(30):
        meet(unrunnable)
        meet(unrunnable, "shop:goodby")
        time.now += 3
    assert [(line["task"], line["times"]) for line in logged] == [
        ("shop:welcom", 1),
        ("shop:goodby", 1),
        ("shop:welcom", 20),
        ("shop:goodby", 20),
    ]


def test_it_remembers_a_hundred_and_reports_the_latest_ten(time: Time, logged: list[EventDict]) -> None:
    unrunnable = UnrunnableJobs({"shop:welcome"}, "tasks")
    for number in range(101):
        meet(unrunnable, f"shop:{number}")
    assert [fact["task"] for fact in unrunnable.facts()] == [
        f"shop:{number}" for number in range(100, 90, -1)
    ]
    meet(unrunnable, "shop:1")
    assert len(logged) == 101  # it is still remembered
    meet(unrunnable, "shop:0")
    assert len(logged) == 102
    assert unrunnable.facts()[0] == {
        "queue": "mail",
        "task": "shop:0",
        "reason": "unknown_task",
        "why": "unknown task 'shop:0'",
    }


def test_what_was_not_met_lately_is_reported_no_more(time: Time) -> None:
    unrunnable = UnrunnableJobs({"shop:welcome"}, "tasks")
    meet(unrunnable)
    time.now += 90
    assert len(unrunnable.facts()) == 1
    time.now += 0.1
    assert unrunnable.facts() == []
