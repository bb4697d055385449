"""The events that `app.on(…)` subscribes to. The subscribers are called in the process where an event happens, and
events are not stored. A script in Redis makes no events: a job that it cancels or recovers has none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from fennelq.model.job import JobFailure

Ended = Literal["success", "retry", "snoozed", "dead", "cancelled", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSent:
    """This process has sent a job: it is in Redis. A call that got the handle of an earlier job has sent none."""

    id: str
    task: str
    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStarted:
    """The executor starts a run of a job."""

    id: str
    task: str
    queue: str
    tries: int
    """Which try this is, from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFinished:
    """A run has ended, and its outcome is about to be written. A job may have several runs."""

    id: str
    task: str
    queue: str
    tries: int
    """Which try this was, from 1."""
    outcome: Ended
    """`retry` and `snoozed`: the job runs again. `unknown`: this worker does not know the task or an argument, and
    another one may."""
    seconds: float | None
    """How long it ran. None when it was given up: it goes on although it was asked to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRetried:
    """A try has failed, and the job runs again. Follows the JobFinished of this run."""

    id: str
    task: str
    queue: str
    tries: int
    """Which try this was, from 1."""
    delay: float
    """Seconds until the next try."""
    error: JobFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDied:
    """A run has ended, and the job goes to the dead-letter queue. Follows the JobFinished of this run."""

    id: str
    task: str
    queue: str
    tries: int
    """The number of tries that it had."""
    error: JobFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStopped:
    """The executor stops, and hands a job back that it has begun: the job runs again."""

    id: str
    task: str
    queue: str
    tries: int
    """Which try this was, from 1. The next run has the same number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLost:
    """Another executor has the job now: the outcome of this run is not written."""

    id: str
    task: str
    queue: str
    tries: int
    """Which try this was, from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorStarted:
    """An executor begins to take jobs."""

    executor: str
    """Its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorStopped:
    """An executor has ended: its last event. An executor that is killed has none."""

    executor: str
    """Its name."""


AnyEvent = (
    JobSent
    | JobStarted
    | JobFinished
    | JobRetried
    | JobDied
    | JobStopped
    | LeaseLost
    | ExecutorStarted
    | ExecutorStopped
)
"""The events to which `app.on` subscribes."""

EVENTS: Final[tuple[type[AnyEvent], ...]] = (
    JobSent,
    JobStarted,
    JobFinished,
    JobRetried,
    JobDied,
    JobStopped,
    LeaseLost,
    ExecutorStarted,
    ExecutorStopped,
)
