"""The runs of a job, from its record and its history.

A run that ends its job writes no line of the history, and neither does one that is snoozed or refused by a rate. So the
last run, and those of which nothing is known, follow from the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from fennelq.model.because import MESSAGE, NAME, one_line, span
from fennelq.model.job import Event, JobInfo, Status
from fennelq.model.times import shown
from fennelq.streams import clean

ENDS: Final = {
    "failed": "failed",
    "recovered": "lost",
    "stopped": "handed back",
    "stranded": "not begun",
    "outrun": "outrun",
    "snoozed": "put off",
    "rate_limited": "put off",
    "dropped": "dropped",
    "unknown_task": "too old",
    "unknown_argument": "too old",
    "unknown_version": "too old",
}
"""A line of the history → the outcome of the run that it ends."""
DOUBLED: Final = "doubled"
REPLAYED: Final = "replayed"
RESTORED: Final = "restored"
_GOES_ON: Final = ""


class StoryRun(NamedTuple):
    """One run of a job."""

    number: int
    """1 for the first run of which something is known."""
    executor: str | None
    began: datetime | None
    ended: datetime | None
    """When its outcome was written; of a lost run, when another executor took the job over. None while it goes on, and
    when that is not known."""
    outcome: str
    """`running`, `succeeded`, `failed`, `died` (no try was left), `cancelled`, `lost` (its executor was killed, or did
    not renew its lease), `handed back` (its executor was stopped), `not begun`, `too old` (the worker's code was),
    `put off` (snoozed, or refused by a rate), `outrun` (the other copy was first), `dropped` or `unknown`."""
    more: str | None = None
    """The error, how the executor ended, or why it could not run the job."""

    @property
    def seconds(self) -> float | None:
        """How long it took. None while it goes on, and when the clock of the server was set back meanwhile."""
        if self.began is None or self.ended is None or self.ended < self.began:
            return None
        return (self.ended - self.began).total_seconds()


class Copy(NamedTuple):
    """The second copy of a running job."""

    executor: str | None
    """None while it waits for an executor."""
    began: datetime | None


class Traces(NamedTuple):
    """What a record shows of the runs of its job, beyond the attributes of JobInfo."""

    executor: str | None = None
    """The executor of the latest run."""
    isolated: bool = False
    """Whether it is in quarantine, or its latest run was."""
    asked: bool = False
    """Whether the job was asked to stop while it ran."""
    copy: Copy | None = None


class Life(NamedTuple):
    """Everything that is known about a job."""

    info: JobInfo
    events: Sequence[Event]
    runs: Sequence[StoryRun]
    traces: Traces

    @property
    def started(self) -> int:
        """How many runs have begun."""
        return max(self.info.deliveries, len(self.runs))

    @property
    def left_out(self) -> int:
        """How many runs have begun of which nothing is known."""
        return self.started - len(self.runs)

    @property
    def doubled(self) -> bool:
        """Whether a run had a second copy."""
        return any(event.what == DOUBLED for event in self.events)

    def last(self, outcome: str) -> StoryRun | None:
        """The last run with this outcome."""
        return next((run for run in reversed(self.runs) if run.outcome == outcome), None)


def runs_of(info: JobInfo, events: Sequence[Event], traces: Traces) -> list[StoryRun]:
    """The runs of which something is known, in the order in which they began or, of two copies, ended."""
    runs: list[StoryRun] = []
    for event in events:
        if event.begun is not None:
            place = _place_of(runs, event.owner, event.begun)
            runs[place] = _after(runs[place], event)
    if info.started_at is not None:
        place = _place_of(runs, traces.executor or info.owner, info.started_at)
        runs[place] = _latest(runs[place], info, traces)
    if traces.copy is not None and traces.copy.began is not None and info.status is Status.EXECUTING:
        place = _place_of(runs, traces.copy.executor, traces.copy.began)
        runs[place] = runs[place]._replace(outcome=runs[place].outcome or "running")
    runs = [run if run.outcome else run._replace(outcome="unknown") for run in runs]
    return runs if any(event.what == DOUBLED for event in events) else _with_message(runs, info)


def took(seconds: float | None) -> str:
    """A duration for people: `12 ms`, `16 s`, `3.1 s`, `15 min`, `3 h`; empty when it is not known."""
    if seconds is None:
        return ""
    if seconds < 0.001:
        return "under 1 ms"
    return span(seconds) if seconds >= 3600 else shown(seconds) or ""


def fate(how: str | None) -> str:
    """How an executor that has lost a job ended, after its name: `was killed (SIGKILL)`."""
    if how is None:
        return "did not renew its lease"
    if how.startswith("SIG"):
        return f"was killed ({how})"
    return f"was {how}" if how.startswith("killed") else f"ended ({how})"


def _place_of(runs: list[StoryRun], executor: str | None, began: datetime) -> int:
    """Where this run is in the list. It is added when it is missing."""
    name = None if executor is None else clean(one_line(executor, NAME))
    for place, run in enumerate(runs):
        if run.began == began and (name is None or run.executor in (None, name)):
            return place
    runs.append(StoryRun(len(runs) + 1, name, began, None, _GOES_ON))
    return len(runs) - 1


def _after(run: StoryRun, event: Event) -> StoryRun:
    """The run after this line of the history."""
    if run.outcome or event.what == DOUBLED:
        return run
    if event.what == REPLAYED:
        return run._replace(outcome="died")
    more = None if event.more is None else clean(one_line(str(event.more), MESSAGE))
    return run._replace(ended=event.at, outcome=ENDS.get(event.what, clean(event.what[:NAME])), more=more)


_NEVER_RAN: Final = ("dropped", "expired")
_TOO_OLD: Final = ("unknown_task", "unknown_argument", "unknown_version")


def _latest(run: StoryRun, info: JobInfo, traces: Traces) -> StoryRun:
    """The latest run, whose end is not in the history."""
    if run.outcome:
        return run
    match info.status:
        case Status.EXECUTING:
            return run._replace(outcome="running")
        case Status.SUCCESS:
            return run._replace(outcome="succeeded", ended=info.ended_at)
        case Status.DEAD if info.reason not in _NEVER_RAN:
            outcome = "too old" if info.reason in _TOO_OLD else "died"
            return run._replace(outcome=outcome, ended=info.ended_at)
        case Status.CANCELLED if traces.asked:
            return run._replace(outcome="cancelled", ended=info.ended_at)
        case _:
            return run._replace(outcome="put off")


def _with_message(runs: list[StoryRun], info: JobInfo) -> list[StoryRun]:
    """The record keeps the message of the latest failure only, and the history the types of all."""
    error = info.error
    failed = [place for place, run in enumerate(runs) if run.outcome in ("failed", "died")]
    if error is None or not failed:
        return runs
    place = failed[-1]
    run = runs[place]
    if info.status is Status.DEAD and (run.outcome != "died" or place != len(runs) - 1):
        return runs
    if run.more not in (None, clean(one_line(error.error_type, MESSAGE))):
        return runs
    more = clean(one_line(f"{error.error_type}: {error.message}", MESSAGE))
    return [*runs[:place], run._replace(more=more), *runs[place + 1 :]]
