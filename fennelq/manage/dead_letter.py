"""The facts about dead jobs, and the result of a replay."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

from fennelq import clock
from fennelq.broker.verbs.dead import DeadJob
from fennelq.model.job import JobInfo

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A dead job, as its dead-letter queue lists it. `message` is cut; `get(id)` returns all facts."""

    id: str
    queue: str
    task: str
    error_type: str
    message: str
    reason: str
    died_at: datetime
    entry: str
    """Its place in the queue; a job that dies again gets a new one."""
    tries: int = 0
    """The number of its tries. Only `get` sets this attribute and the following ones."""
    traceback: str = ""
    info: JobInfo | None = field(default=None, repr=False)
    """The whole record: times, headers, arguments as JSON, replays."""


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """The result of a replay."""

    replayed: int = 0
    key_taken: int = 0
    """Still dead, because another job holds their idempotency key now."""
    gone: int = 0
    """Not dead any more: another caller has replayed or removed them at the same time."""
    broken: int = 0
    """Still dead, because their records cannot be read."""

    def __add__(self, other: ReplayReport) -> ReplayReport:
        return ReplayReport(
            self.replayed + other.replayed,
            self.key_taken + other.key_taken,
            self.gone + other.gone,
            self.broken + other.broken,
        )

    @property
    def total(self) -> int:
        """All jobs that the replay has visited."""
        return self.replayed + self.key_taken + self.gone + self.broken


@dataclass(frozen=True, slots=True)
class Group:
    """Dead jobs of one kind."""

    task: str
    error_type: str
    jobs: int
    """The number of these jobs."""


def letter_of(dead: DeadJob) -> DeadLetter:
    """The facts in the entry."""
    return DeadLetter(
        id=dead.id,
        queue=dead.queue,
        task=dead.task,
        error_type=dead.error_type,
        message=dead.message,
        reason=dead.reason,
        died_at=clock.from_ms(dead.died_ms),
        entry=dead.entry,
    )


def detailed(dead: DeadJob, info: JobInfo) -> DeadLetter:
    """The facts in the entry and in the record."""
    letter, failure = letter_of(dead), info.error
    return replace(
        letter,
        message=failure.message if failure else letter.message,
        traceback=failure.traceback if failure else "",
        tries=info.tries,
        info=info,
    )
