"""The story of a job: where it is, why it ran more than once, why it does not run yet, why it is dead, and which
executor has it.

The story contains only what is known: the history of a job has no line about the run that has ended it, and it keeps
the last fifty lines only.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from fennelq.model import because
from fennelq.model.again import earlier, moment_of
from fennelq.model.because import MESSAGE, Turn, capital, one_line
from fennelq.model.happened import StoryLine, lines_of, nth
from fennelq.model.job import Event, JobInfo, Status
from fennelq.model.runs import Life, StoryRun, Traces, runs_of, took
from fennelq.streams import clean

_REASON: Final = 1000
"""So many characters of the reason why a job waits are in the sentence."""
_DEATHS: Final = {
    "failed": "It died after {tries}: {error}",
    "timeout": "It died after {tries}, because its run took too long: {error}",
    "rejected": "It died, because the task has rejected it: {error}",
    "crashed": "It died after {tries}, because the process of its task ended: {error}",
    "crash_loop": "It died, because {message}",
    "unknown_task": "It died, because no worker could run it in time: {message}",
    "unknown_argument": "It died, because no worker could run it in time: {message}",
    "unknown_version": "It died, because no worker could run it in time: {message}",
    "bad_payload": "It died, because its arguments do not fit the task: {error}",
    "bad_result": "It died, because its result cannot be stored: {error}",
    "bad_retry_policy": "It died, because its retry policy raised an error: {error}",
    "broken": "It died, because its record or its outcome cannot be read: {message}",
    "dropped": "It was dropped: {message}",
}
"""The reason of a dead job → why it died."""


class Story(NamedTuple):
    """What happened to a job, for people."""

    sentence: str
    """Where the job is, and why: some sentences without control characters."""
    runs: tuple[StoryRun, ...]
    """The runs of which something is known."""
    lines: tuple[StoryLine, ...]
    """What happened, the oldest first."""


def story(
    info: JobInfo,
    events: Sequence[Event],
    now: datetime,
    traces: Traces | None = None,
    *,
    turn: Turn | None = None,
    gone: str | None = None,
    replayable: bool = True,
) -> Story:
    """The story of a job, from its record and its history, at this moment of the server's clock.

    `turn` is the turn of a job that only waits for others; `gone` is the state of the executor that runs the job, if it
    does not answer any more. A dead job is not `replayable` when it is known from the history only.
    """
    traces = traces or Traces(info.owner)
    runs = runs_of(info, events, traces)
    life = Life(info, events, runs, traces)
    sentences = [_state(life, now, turn, gone, replayable), *earlier(life)]
    lines = lines_of(info, events, runs)
    return Story(" ".join(map(_with_full_stop, sentences)), tuple(runs), tuple(lines))


def _state(life: Life, now: datetime, turn: Turn | None, gone: str | None, replayable: bool) -> str:
    """Where the job is, or how it ended."""
    info = life.info
    match info.status:
        case Status.SUCCESS:
            return f"It succeeded{_in_which_run(life)}"
        case Status.DEAD:
            return _dead(info, replayable)
        case Status.CANCELLED:
            return _cancelled(life)
        case Status.EXECUTING:
            return f"{capital(because.running(info, now, gone))}{_alone(life)}"
        case Status.SENT | Status.RETRY | Status.SCHEDULED:
            return _waiting(life, now, turn)
        case _:
            return "Its status is not known to this version of fennelq"


def _in_which_run(life: Life) -> str:
    """` on web-1 in its second run, which took 3 s`."""
    run = life.last("succeeded")
    if run is None:
        return ""
    number = "last" if life.left_out else nth(run.number)
    on = f" on {run.executor}" if run.executor else ""
    in_run = f" in its {number} run" if life.started > 1 else ""
    seconds = took(run.seconds)
    which = f", which took {seconds}" if in_run else f" after {seconds}"
    return f"{on}{in_run}{which if seconds else ''}{_alone(life)}"


def _alone(life: Life) -> str:
    return " (in quarantine: alone in an executor of its own)" if life.traces.isolated else ""


def _dead(info: JobInfo, replayable: bool) -> str:
    error = info.error
    again = f" `fennelq job retry {info.id}` runs it again" if replayable else ""
    if error is None:
        return f"It is dead.{again}"
    template = _DEATHS.get(info.reason or "")
    facts = {
        "tries": "1 try" if info.tries == 1 else f"{info.tries} tries",
        "error": one_line(f"{error.error_type}: {error.message}", MESSAGE),
        "message": one_line(error.message, MESSAGE),
    }
    reason = one_line(info.reason or "for an unknown reason", MESSAGE)
    died = template.format(**facts) if template else f"It died ({reason}): {facts['error']}"
    return f"{_with_full_stop(died)}{again}"


def _cancelled(life: Life) -> str:
    info, run = life.info, life.last("cancelled")
    if info.reason == "expired":
        when = f" before {moment_of(info.expires_at)}" if info.expires_at else " in time"
        return f"It expired, because no executor began it{when}"
    reason = "" if info.reason in (None, "cancelled") else f" ({one_line(str(info.reason), MESSAGE)})"
    if run is not None:
        on = f" on {run.executor}" if run.executor else ""
        after = f", after {took(run.seconds)}" if run.seconds is not None else ""
        return f"It was cancelled during its run{on}{after}{reason}"
    if life.traces.asked:
        return f"It was cancelled{reason}: it was asked to stop, and its run was lost or handed back"
    when = "while it waited for its next run" if life.started else "before it began"
    return f"It was cancelled {when}{reason}"


def _waiting(life: Life, now: datetime, turn: Turn | None) -> str:
    info = life.info
    reason = info.waiting_because
    if reason is None and info.status is not Status.SENT:
        at = f" ({moment_of(info.due_at)})" if info.due_at else ""
        return f"{capital(because.later(info, now))}{at}"
    if reason is None and turn is not None:
        reason = because.in_turn(info, turn)
    begin = "It waits for its next run" if life.started else "It has not begun yet"
    end = f": {one_line(reason, _REASON)}" if reason else f", and is in queue {info.queue!r}"
    return f"{begin}{_alone(life)}{end}"


def _with_full_stop(text: str) -> str:
    """The text as a sentence without control characters."""
    shown = clean(text)
    return shown if shown.endswith((".", "?", "!", "…")) else f"{shown}."
