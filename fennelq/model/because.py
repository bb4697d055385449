"""Why a job has not ended, in words. The sentences begin in lower case: they follow a colon, or another sentence."""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

from fennelq.model.job import JobInfo, Status

MESSAGE: Final = 200
"""So many characters of the message of an error are in a sentence."""
NAME: Final = 100
"""So many characters of the name of an executor are in a sentence."""


class Turn(NamedTuple):
    """The turn of a job in its queue."""

    before: int
    """How many jobs start before it."""
    at_least: bool
    """Whether more than `before` may start before it."""
    executors: int | None
    """How many executors take jobs from its lane; None when that is not known."""
    per_second: float | None = None
    """How many jobs of the queue have run per second lately; None when that is not known."""
    within: float = 0.0
    """The seconds of `per_second`."""


def running(info: JobInfo, now: datetime, gone: str | None) -> str:
    """It runs. `gone` is the state of its executor, if that does not answer any more."""
    seconds, owner = ago(info.started_at, now), one_line(str(info.owner), NAME)
    if gone is not None:
        return (
            f"it was started {seconds} ago on {owner}, which does not answer any more "
            f"({one_line(gone, MESSAGE)}); another executor takes the job over when its lease has run out"
        )
    asked = f", and was asked to stop ({one_line(info.stopping, MESSAGE)})" if info.stopping else ""
    return f"it has been running for {seconds} on {owner}{asked}"


def later(info: JobInfo, now: datetime) -> str:
    """It waits for its time."""
    due = "now" if info.due_at is None else f"in {span((info.due_at - now).total_seconds())}"
    if info.status is not Status.RETRY or info.error is None:
        return f"it is scheduled, due {due}"
    problem = one_line(f"{info.error.error_type}: {info.error.message}", MESSAGE)
    return f"try {info.tries} has failed ({problem}), the next one is due {due}"


def queued(info: JobInfo, others: int, executors: int) -> str:
    """It waits in its lane, as this many others do."""
    with_others = f" with {others:,} other{'s' if others != 1 else ''}" if others else ""
    return f"it waits in queue {info.queue!r}{with_others}{_served(executors)}"


def in_turn(info: JobInfo, turn: Turn) -> str:
    """It waits for its turn."""
    if not turn.before:
        return f"it is the next in queue {info.queue!r}{_served(turn.executors)}"
    many = "more than " if turn.at_least else ""
    jobs = f"{many}{turn.before:,} job{'s start' if turn.before != 1 else ' starts'} before it"
    return f"it waits for its turn in queue {info.queue!r}: {jobs}{_served(turn.executors)}{_takes(turn)}"


def _takes(turn: Turn) -> str:
    """How long it takes until it is the turn of the job; empty when that is not known."""
    if not turn.per_second:
        return ""
    many = "more than" if turn.at_least else "about"
    return f". At the rate of the last {span(turn.within)}, that takes {many} {span(turn.before / turn.per_second)}"


def _served(executors: int | None) -> str:
    return (
        "" if executors is None else f"; {executors} executor{'s serve' if executors != 1 else ' serves'} it"
    )


def ago(moment: datetime | None, now: datetime) -> str:
    """How long ago this was."""
    return span(0.0 if moment is None else (now - moment).total_seconds())


def span(seconds: float) -> str:
    """A duration for people: `0 s`, `119 s`, `2 min`, `50 h`, `3 days`."""
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def one_line(text: str, most: int) -> str:
    """The text in one line, with at most so many characters."""
    line = " ".join(text[: 4 * most].split())
    return line if len(line) <= most and len(text) <= 4 * most else f"{line[: most - 1].rstrip()}…"


def capital(text: str) -> str:
    """The text as the beginning of a sentence."""
    return text[:1].upper() + text[1:]
