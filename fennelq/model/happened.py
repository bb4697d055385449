"""What happened to a job, line by line: a part of its story."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from fennelq.model.because import MESSAGE, NAME, one_line
from fennelq.model.job import Event, JobInfo, Status
from fennelq.model.runs import DOUBLED, ENDS, REPLAYED, RESTORED, StoryRun, fate, took
from fennelq.streams import clean

_ORDINALS: Final = (
    *("first", "second", "third", "fourth", "fifth"),
    *("sixth", "seventh", "eighth", "ninth", "tenth"),
)
_ENDED: Final = {
    "failed": "It failed",
    "handed back": "Its executor was stopped, and handed it back",
    "not begun": "It had not begun: a reply of Redis was lost, and the job was put back",
    "too old": "The worker's code was too old for it",
    "put off": "It was put off (snoozed, or refused by a rate)",
    "outrun": "It was stopped: the other copy was first",
    "dropped": "The copy was dropped",
    "succeeded": "Succeeded",
    "died": "Died",
    "cancelled": "Cancelled",
}


_LAST: Final = ("succeeded", "died", "cancelled")
"""The outcomes that end the job."""


class StoryLine(NamedTuple):
    """Something that happened to a job."""

    at: datetime | None
    """When, by the server's clock; None when that is not known."""
    text: str


def nth(number: int) -> str:
    """`first`, `second`, … `tenth`, `11th`."""
    if number <= len(_ORDINALS):
        return _ORDINALS[number - 1]
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number:,}{ending}"


def lines_of(info: JobInfo, events: Iterable[Event], runs: Sequence[StoryRun]) -> list[StoryLine]:
    """Everything that is known to have happened, the oldest first. The order is that of the history, because the clock
    of the server may have been set back meanwhile."""
    written = _Lines(info, runs)
    for event in events:
        written.add(event)
    written.end()
    return written.lines


class _Lines:
    """Adds the lines in order."""

    def __init__(self, info: JobInfo, runs: Sequence[StoryRun]) -> None:
        self._info, self._runs = info, runs
        self._begun: set[int] = set()
        self._ended: set[int] = set()
        self._copied = 0
        """The number of lines before those of two copies, whose order the history does not show."""
        self.lines: list[StoryLine] = []
        if info.enqueued_at is not None:
            priority = "" if info.priority == "normal" else f", with {info.priority} priority"
            self._line(info.enqueued_at, f"Sent to queue {info.queue!r}{priority}")

    def add(self, event: Event) -> None:
        """Add what a line of the history shows."""
        run = self._run_of(event)
        if run is not None:
            self._begin(run)
        if event.what == DOUBLED:
            self._line(event.at, "A second copy was sent, because the run takes unusually long")
            self._copied = len(self.lines)
        elif event.what == REPLAYED:
            changed = " and with new arguments" if event.more else ""
            self._line(event.at, f"The dead job was replayed, with all its tries{changed}")
        elif event.what == RESTORED:
            self._line(event.at, "The dead job came back from an export")
        elif run is not None and run.ended == event.at and run.number not in self._ended:
            self._end(run)
        else:
            self._line(event.at, _of_event(event))

    def end(self) -> None:
        """Add the runs whose end is not in the history, and the end of the job."""
        for run in self._runs:
            self._begin(run)
        for run in self._runs:
            if run.outcome in _LAST and run.ended is not None:
                self._end(run)
                return
        if self._info.status.ended:
            self._line(self._info.ended_at, self._how_it_ended())

    def _how_it_ended(self) -> str:
        """The end of a job that no run has brought about, as far as is known."""
        info = self._info
        if info.status is Status.SUCCESS:
            return "Succeeded"
        if info.status is Status.DEAD:
            return f"Died{_problem(info)}"
        return "Expired" if info.reason == "expired" else f"Cancelled{_reason(info)}"

    def _begin(self, run: StoryRun) -> None:
        if run.number in self._begun or run.began is None:
            return
        self._begun.add(run.number)
        on = f" on {run.executor}" if run.executor else ""
        line = StoryLine(
            run.began, f"{nth(run.number).capitalize()} run begins{on}{self._after_waiting(run)}"
        )
        place = len(self.lines)
        while self._copied and place > self._copied and _is_later(self.lines[place - 1], run.began):
            place -= 1
        self.lines.insert(place, line)

    def _after_waiting(self, run: StoryRun) -> str:
        sent = self._info.enqueued_at
        if run.number != 1 or self._info.due_at or sent is None or run.began is None or run.began < sent:
            return ""
        return f", {took((run.began - sent).total_seconds())} after it was sent"

    def _end(self, run: StoryRun) -> None:
        self._ended.add(run.number)
        after = f" after {took(run.seconds)}" if run.seconds is not None else ""
        more = f": {run.more}" if run.more else ""
        if run.outcome == "lost":
            text = f"Taken over{after}, because its executor {fate(run.more)}"
        elif run.outcome == "cancelled":
            text = f"Cancelled{after}{_reason(self._info)}"
        elif run.outcome == "died":
            text = f"Died{after}{_problem(self._info)}"
        else:
            text = f"{_ENDED.get(run.outcome, run.outcome)}{after}{more}"
        self._line(run.ended, text)

    def _run_of(self, event: Event) -> StoryRun | None:
        if event.begun is None:
            return None
        owner = None if event.owner is None else clean(one_line(event.owner, NAME))
        return next((run for run in self._runs if run.began == event.begun and run.executor == owner), None)

    def _line(self, at: datetime | None, text: str) -> None:
        self.lines.append(StoryLine(at, text))


def _is_later(line: StoryLine, moment: datetime) -> bool:
    return line.at is not None and line.at > moment


def _of_event(event: Event) -> str:
    """A line that ends no run."""
    what = _ENDED.get(ENDS.get(event.what, ""), event.what)
    more = f": {event.more}" if event.more else ""
    return clean(one_line(f"{what}{more}", MESSAGE))


def _problem(info: JobInfo) -> str:
    error = info.error
    return "" if error is None else clean(one_line(f": {error.error_type}: {error.message}", MESSAGE))


def _reason(info: JobInfo) -> str:
    """Why the job was cancelled, if that is more than the word itself."""
    if info.reason in (None, "cancelled"):
        return ""
    return f" ({clean(one_line(str(info.reason), MESSAGE))})"
