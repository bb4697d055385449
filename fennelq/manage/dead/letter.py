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
    fingerprint: str
    """8 hexadecimal digits, equal for all failures of one cause."""
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
    """Not dead any more: another caller has replayed or removed them at the same time. Or this one has replayed them,
    and the reply of the server was lost."""
    broken: int = 0
    """Still dead, because their records cannot be read."""

    skipped: int = 0
    """Still dead, because the function that makes new arguments has returned None for them, or because they come after
    one whose new arguments do not fit."""
    died_anew: int = 0
    """Canary jobs that have died of something else than before."""
    stopped: str = ""
    """Why the replay has stopped early; empty when it has not. The other jobs are untouched."""

    def __add__(self, other: ReplayReport) -> ReplayReport:
        return ReplayReport(
            self.replayed + other.replayed,
            self.key_taken + other.key_taken,
            self.gone + other.gone,
            self.broken + other.broken,
            self.skipped + other.skipped,
            self.died_anew + other.died_anew,
            self.stopped or other.stopped,
        )

    @property
    def failed(self) -> bool:
        """Whether jobs are still dead that were to go back, or a canary job has died."""
        return bool(self.key_taken or self.broken or self.died_anew or self.stopped)

    @property
    def total(self) -> int:
        """All jobs that the replay has visited."""
        return self.replayed + self.key_taken + self.gone + self.broken


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Dead jobs of one cause: their failures have one fingerprint."""

    fingerprint: str
    """`other` when a queue has a thousand groups already: then the jobs of further causes are counted together, and
    this group has no task, no type and no message."""
    task: str
    error_type: str
    reason: str
    message: str
    """The message of one of these jobs, cut."""
    jobs: int
    """The number of these jobs."""
    first: datetime
    """When the first of them died, or an earlier job of the group that was replayed or removed."""
    newest: datetime
    """When a job of the group died last, even if it was replayed or removed since."""


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
        fingerprint=dead.fingerprint,
    )


def detailed(dead: DeadJob, info: JobInfo) -> DeadLetter:
    """The facts in the entry and in the record."""
    return with_record(letter_of(dead), info)


def with_record(letter: DeadLetter, info: JobInfo) -> DeadLetter:
    """The same job, with what its record has."""
    failure = info.error
    return replace(
        letter,
        message=failure.message if failure else letter.message,
        traceback=failure.traceback if failure else "",
        tries=info.tries,
        info=info,
    )
