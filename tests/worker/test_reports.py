"""Reports: the line about a failed try contains what happened, where, and when the job runs again."""

from __future__ import annotations

import sysconfig
from typing import Any, cast

import pytest
from structlog.typing import EventDict

from fennelq.log import DETAILS
from fennelq.model import outcome
from fennelq.model.job import Delivery, JobFailure
from fennelq.model.outcome import Outcome, Reject, Retry, failure_of
from fennelq.worker.running.reports import place_of, report_end, report_lost

JOB = Delivery("mail", "s", "1-1", "7", "shop:task", b"[[],{}]", b"", 1, 1, 1, 1_700_000_000_000)
ABOUT = {"job_id": "mail:7", "task": "shop:task", "queue": "mail", "tries": 2}
NOON_MS = 1_779_105_600_000
HERE = "tests/worker/test_reports.py"
LIBRARY = sysconfig.get_path("stdlib")
INSTALLED = "/opt/venv/lib/python3.11/site-packages/"


@pytest.fixture(autouse=True)
def at_noon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fennelq.clock.wall_ms", lambda: NOON_MS)


@pytest.fixture
def detail(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The setting log_errors."""
    shown = DETAILS[: DETAILS.index(request.param) + 1]
    monkeypatch.setattr("fennelq.log.shows", shown.__contains__)
    return str(request.param)


def raised(error: BaseException, cause: BaseException | None = None) -> JobFailure:
    try:
        raise error from cause
    except BaseException as caught:
        return failure_of(caught, "rejected" if isinstance(error, Reject) else "failed")


def reported(logged: list[EventDict], ended: Outcome) -> EventDict:
    report_end(JOB, ended, 0.25)
    (line,) = logged
    return line


def frames(*places: tuple[str, int]) -> str:
    lines = "".join(f'  File "{file}", line {line}, in f\n    f()\n' for file, line in places)
    return f"Traceback (most recent call last):\n{lines}ValueError: no\n"


def test_a_failed_try_is_a_warning_that_names_the_error_its_place_and_the_next_try(
    logged: list[EventDict],
) -> None:
    failure = raised(ConnectionError("it hung up"))
    line = reported(logged, outcome.retried(2.5, failure, of=4))
    assert line.pop("at").startswith(f"{HERE}:")
    assert line == {
        **ABOUT,
        "event": "job_retries",
        "log_level": "warning",
        "max_tries": 4,
        "seconds": 0.25,
        "error": "ConnectionError",
        "message": "it hung up",
        "traceback": failure.traceback,
        "retry_in": 2.5,
        "retry_at": "2026-05-18T12:00:02.500000Z",
    }


def test_the_last_failed_try_is_an_error_without_a_next_one(logged: list[EventDict]) -> None:
    failure = raised(ConnectionError("it hung up"))
    line = reported(logged, outcome.died(failure, 2, 1000))
    assert (line["event"], line["log_level"], line["reason"]) == ("job_died", "error", "failed")
    assert (line["error"], line["message"]) == ("ConnectionError", "it hung up")
    assert line["traceback"] == failure.traceback
    assert not {"retry_in", "retry_at", "max_tries"} & line.keys()


@pytest.mark.parametrize(
    ("detail", "shown"),
    [
        ("type", {"error"}),
        ("message", {"error", "message"}),
        ("traceback", {"error", "message", "traceback"}),
    ],
    indirect=["detail"],
)
def test_log_errors_limits_what_is_logged_of_an_error(
    logged: list[EventDict], detail: str, shown: set[str]
) -> None:
    line = reported(logged, outcome.retried(1, raised(ValueError("no"))))
    assert {"error", "message", "traceback"} & line.keys() == shown
    assert line["at"].startswith(HERE)


@pytest.mark.parametrize("error", [Retry(reason="busy"), Reject("busy")])
def test_what_a_task_raises_on_purpose_needs_no_traceback_unless_it_has_a_cause(
    logged: list[EventDict], error: Exception
) -> None:
    line = reported(logged, outcome.retried(1, raised(error)))
    assert line["message"] == "busy"
    assert "traceback" not in line
    logged.clear()
    line = reported(logged, outcome.retried(1, raised(error, ConnectionError("it hung up"))))
    assert "ConnectionError: it hung up" in line["traceback"]


@pytest.mark.parametrize("reason", ["bad_payload", "bad_result"])
def test_arguments_and_results_that_an_error_quotes_are_left_out(
    logged: list[EventDict], reason: str
) -> None:
    text = (
        "Input should be a valid string [type=string_type, input_value='s3cret, input_type=', input_type=int]"
    )
    failure = raised(ValueError(text))._replace(reason=reason)
    line = reported(logged, outcome.died(failure, 2, 1000))
    assert line["message"] == "Input should be a valid string [type=string_type, input_type=int]"
    assert "s3cret" not in str(line)
    assert not {"traceback", "at"} & line.keys()


def test_a_message_is_cut_at_a_thousand_characters(logged: list[EventDict]) -> None:
    line = reported(logged, outcome.retried(1, raised(ValueError("x" * 5000))))
    assert line["message"] == "x" * 999 + "…"
    assert len(line["traceback"].encode()) <= 8192


def test_an_error_without_a_traceback_has_no_place(logged: list[EventDict]) -> None:
    line = reported(logged, outcome.died(JobFailure("E", "m"), 2, 1000))
    assert (line["error"], line["message"]) == ("E", "m")
    assert not {"traceback", "at"} & line.keys()


def test_nothing_is_read_or_formatted_for_a_line_that_is_not_written(
    logged: list[EventDict], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unread:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"{name} was read")

    def unwanted(_: Any) -> Any:
        raise AssertionError("worked out all the same")

    monkeypatch.setattr("fennelq.log.wanted", {"error": False, "warning": False}.__getitem__)
    monkeypatch.setattr("fennelq.worker.running.reports.failure_from_wire", unwanted)
    job = cast("Delivery", Unread())
    report_end(job, outcome.retried(1, JobFailure("E", "m")), 0.25)
    report_end(job, outcome.died(JobFailure("E", "m"), 2, 1000), 0.25)
    assert logged == []


def test_a_job_that_another_executor_has_taken_is_named(logged: list[EventDict]) -> None:
    report_lost(JOB)
    assert logged == [{"event": "lease_lost", "log_level": "warning", **ABOUT}]


# The place


@pytest.mark.parametrize(
    ("traceback", "place"),
    [
        (frames(("/srv/shop/tasks.py", 7), ("/srv/shop/bank.py", 9)), "/srv/shop/bank.py:9"),
        (frames(("/srv/shop/tasks.py", 7), (f"{LIBRARY}/json/decoder.py", 99)), "/srv/shop/tasks.py:7"),
        (frames(("/srv/shop/tasks.py", 7), (f"{INSTALLED}httpx/_client.py", 99)), "/srv/shop/tasks.py:7"),
        (
            frames(
                (f"{INSTALLED}shop/tasks.py", 7),
                (f"{INSTALLED}shop/bank.py", 9),
                (f"{INSTALLED}httpx/_client.py", 99),
            ),
            f"{INSTALLED}shop/bank.py:9",
        ),
        (frames((f"{LIBRARY}/json/decoder.py", 99)), f"{LIBRARY}/json/decoder.py:99"),
        (
            frames(("/srv/fennelq-shop/tasks.py", 7), ("<frozen importlib._bootstrap>", 1)),
            "/srv/fennelq-shop/tasks.py:7",
        ),
        ("ValueError: no\n", ""),
        ("", ""),
    ],
    ids=[
        "project",
        "standard library",
        "installed",
        "installed project",
        "no code of the user's",
        "frozen",
        "none",
        "empty",
    ],
)
def test_the_place_is_the_innermost_line_of_the_users_code(traceback: str, place: str) -> None:
    assert place_of(traceback) == place


def test_the_place_of_an_exception_in_a_group_is_found() -> None:
    group = raised(ExceptionGroup("several", [KeyError("first")]))
    assert place_of(group.traceback).startswith(f"{HERE}:")
