"""Logs the end of a run: the outcome, the reason of a failure, and the time of the next run."""

from __future__ import annotations

import os
import re
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any, Final

from fennelq import clock, log
from fennelq.model import outcome as outcomes
from fennelq.model.job import Delivery, JobFailure
from fennelq.model.outcome import Outcome, failure_from_wire
from fennelq.model.times import rounded

_logger = log.get("fennelq.worker")

WORDS: Final = {
    outcomes.SUCCESS: ("info", "job_succeeded"),
    outcomes.SUCCESS_WITHOUT_VALUE: ("info", "job_succeeded"),
    outcomes.RETRY: ("warning", "job_retries"),
    outcomes.SNOOZE: ("info", "job_snoozes"),
    outcomes.RATE_LIMITED: ("info", "job_rate_limited"),
    outcomes.DEAD: ("error", "job_died"),
    outcomes.CANCELLED: ("info", "job_cancelled"),
}
_LONGEST_MESSAGE: Final = 1000
_ASKED_FOR: Final = ("fennelq.Retry", "fennelq.Reject")
"""Exceptions that a task raises on purpose. A traceback adds nothing to the message and the place, unless another
exception is the cause."""
_OF_VALUES: Final = ("bad_payload", "bad_result")
"""Failures to read the arguments or to write the result. fennelq never logs these values."""

_FRAME: Final = re.compile(r'^[ |]*File "(.+)", line (\d+)', re.MULTILINE)
_QUOTED_VALUE: Final = re.compile(r", input_value=.*, input_type=")
_CHAINED: Final = re.compile(r"^(?:The above exception was|During handling of)", re.MULTILINE)
_INSTALLED: Final = re.compile(r".*[/\\](?:site|dist)-packages[/\\][^/\\]+|<")
_LIBRARIES: Final = (f"{Path(os.__file__).parent}{os.sep}", f"{Path(log.__file__).parent}{os.sep}")


def report_end(delivery: Delivery, outcome: Outcome, seconds: float | None) -> None:
    """Log the end of a run. When its level is not logged, no facts are collected: this is called for every job."""
    level, event = WORDS[outcome.kind]
    if not log.wanted(level):
        return
    facts = _facts_of(delivery)
    if outcome.of:
        facts["max_tries"] = outcome.of
    if seconds is not None:
        facts["seconds"] = round(seconds, 4)
    if outcome.kind == outcomes.RETRY:
        facts |= _next_try(outcome)
    elif outcome.reason:
        facts["reason"] = outcome.reason
    if outcome.kind in (outcomes.RETRY, outcomes.DEAD):
        facts |= _why(failure_from_wire(outcome.error)[0])
    write: Any = getattr(_logger, level)
    write(event, **facts)


def report_lost(delivery: Delivery) -> None:
    """Log that another executor has the job now."""
    _logger.warning("lease_lost", **_facts_of(delivery))


def report_new_error(delivery: Delivery, outcome: Outcome) -> None:
    """Log that a job has died of a cause of which no other job is dead. The event of its death has the message."""
    if outcome.kind not in (outcomes.DEAD, outcomes.UNKNOWN_TASK):
        # The outcome could not be written, and the script has buried the job: the log has no facts about that.
        return
    failure, _ = failure_from_wire(outcome.error)
    facts = {**_facts_of(delivery), "fingerprint": failure.fingerprint, "reason": failure.reason}
    _logger.warning("new_error", **facts, error=failure.error_type)


def report_outrun(delivery: Delivery) -> None:
    """Log that the other copy of the job has ended it."""
    _logger.info("job_outrun", **_facts_of(delivery))


def report_doubled(delivery: Delivery, seconds: float, usual: float) -> None:
    """Log that a job gets a second copy: it has run for `seconds`, and most runs take at most `usual`."""
    _logger.info("job_doubled", **_facts_of(delivery), seconds=round(seconds, 3), usual=rounded(usual))


def _facts_of(delivery: Delivery) -> dict[str, object]:
    return {
        "job_id": delivery.id,
        "task": delivery.task[:200],
        "queue": delivery.queue,
        "tries": delivery.tries + 1,
    }


def _next_try(outcome: Outcome) -> dict[str, object]:
    seconds = int(outcome.value) / 1000
    at = clock.from_ms(clock.wall_ms()) + timedelta(seconds=seconds)
    return {"retry_in": round(seconds, 3), "retry_at": at.astimezone(UTC)}


def _why(failure: JobFailure) -> dict[str, object]:
    """The facts about a failure that the setting `log_errors` allows."""
    facts: dict[str, object] = {"error": failure.error_type}
    if failure.reason not in _OF_VALUES and (place := place_of(failure.traceback)):
        facts["at"] = place
    if log.shows("message"):
        facts["message"] = _message_of(failure)
    if log.shows("traceback") and _has_more_to_show(failure):
        facts["traceback"] = failure.traceback
    return facts


def _message_of(failure: JobFailure) -> str:
    message = failure.message
    if failure.reason in _OF_VALUES:
        message = _QUOTED_VALUE.sub(", input_type=", message)
    return message if len(message) <= _LONGEST_MESSAGE else message[: _LONGEST_MESSAGE - 1] + "…"


def _has_more_to_show(failure: JobFailure) -> bool:
    if failure.reason in _OF_VALUES or _FRAME.search(failure.traceback) is None:
        return False
    return failure.error_type not in _ASKED_FOR or _CHAINED.search(failure.traceback) is not None


def place_of(traceback: str) -> str:
    """The place where an error was raised, as `file:line`: the innermost frame of the user's code, or else of any code;
    empty without frames."""
    frames = [(found[1], found[2]) for found in _FRAME.finditer(traceback)]
    if not frames:
        return ""
    # The first frame is the task, which may be installed like a library.
    users = ("", _library_of(frames[0][0]))
    file, line = next((frame for frame in reversed(frames) if _library_of(frame[0]) in users), frames[-1])
    return f"{_shortened(file)}:{line}"


def _library_of(file: str) -> str:
    """The folder of the library that a file belongs to; empty for files of the user's project."""
    if installed := _INSTALLED.match(file):
        return installed[0]
    return next((folder for folder in _LIBRARIES if file.startswith(folder)), "")


def _shortened(file: str) -> str:
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return file
