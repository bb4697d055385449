"""What is known of dead jobs, and what became of a replay."""

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
    """A dead job, as its dead-letter queue lists it. `message` is cut; `get(id)` has everything."""

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
    """Runs it had. Only `get` knows this and what follows."""
    traceback: str = ""
    info: JobInfo | None = field(default=None, repr=False)
    """The whole record: times, headers, arguments as JSON, replays."""


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What became of a replay."""

    replayed: int = 0
    key_taken: int = 0
    """Still dead: another job holds their idempotency key by now."""
    gone: int = 0
    """Nothing left to do: they were replayed or removed by another caller at the same time."""
    broken: int = 0
    """Still dead: their records cannot be read, so there is nothing to run."""

    def __add__(self, other: ReplayReport) -> ReplayReport:
        return ReplayReport(
            self.replayed + other.replayed,
            self.key_taken + other.key_taken,
            self.gone + other.gone,
            self.broken + other.broken,
        )

    @property
    def total(self) -> int:
        """Dead jobs that were looked at."""
        return self.replayed + self.key_taken + self.gone + self.broken


@dataclass(frozen=True, slots=True)
class Group:
    """Dead jobs of one kind."""

    task: str
    error_type: str
    jobs: int
    """How many."""


def letter_of(dead: DeadJob) -> DeadLetter:
    """What the entry says."""
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
    """What the entry and the record say."""
    letter, failure = letter_of(dead), info.error
    return replace(
        letter,
        message=failure.message if failure else letter.message,
        traceback=failure.traceback if failure else "",
        tries=info.tries,
        info=info,
    )
