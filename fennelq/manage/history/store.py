"""What the history needs of a database. `sqlite` and `postgres` provide it; another one may do the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple, Protocol

from fennelq.manage.audit_entry import AuditEntry
from fennelq.manage.history.operations import Wanted
from fennelq.manage.history.row import Row
from fennelq.model.query import Query


class Gap(NamedTuple):
    """Ends that no recorder has read."""

    queue: str
    since: int
    """Milliseconds since the epoch: the last look of a recorder before the gap."""
    until: int
    """When it was noticed."""
    missed: int
    """All ends of the queue that were missed so far, those of earlier gaps included."""


class Place(NamedTuple):
    """A place in the order of all rows, the latest end first."""

    ended: int
    id: str


FIRST: Final = Place(1 << 62, "")


class HistoryBucket(NamedTuple):
    """The jobs that ended in one hour or one day."""

    at: datetime
    status: str
    jobs: int
    run_seconds: float
    """The sum of their last runs."""
    wait_seconds: float
    """The sum of the times that they waited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryStats:
    """What a history has."""

    where: str
    """The URL, without a password."""
    version: int
    """Of its schema."""
    rows: int
    oldest: datetime | None
    newest: datetime | None
    size: int
    """Bytes of the database."""
    missed: int
    """The ends that were not recorded."""


class HistoryProgress(NamedTuple):
    """How far a recorder has come."""

    recorded: int
    """The rows that it has written."""
    read: int
    """The ends that it has read."""
    missed: int
    """The ends that were missed, of all queues, also before it started."""
    pruned: int


class HistoryKeep(NamedTuple):
    """How long rows are kept."""

    seconds: float | None = None
    """Since the end of the job; None keeps them for ever."""
    dead_seconds: float | None = None
    """Of dead jobs."""
    rows: int | None = None
    """At most so many: the oldest go first."""


class Pruned(NamedTuple):
    """The result of one step of pruning."""

    removed: int
    more: bool


class Store(Protocol):
    """A database with a history. Its methods block, and may be called from any thread, one at a time. They raise
    HistoryUnavailable and HistoryRefused."""

    where: str

    def migrate(self) -> tuple[int, int]:
        """Create the tables, or bring them up to this version; returns the version of the schema before and now."""
        ...

    def write(self, rows: Sequence[Row], gaps: Sequence[Gap] = ()) -> int:
        """Write the rows in one transaction. A row replaces an earlier end of its job, and nothing else; returns how
        many were new or replaced one."""
        ...

    def find(self, query: Query, limit: int, after: Place | None = None) -> list[Row]:
        """The newest rows that match; with a place, those after it, in the order of places."""
        ...

    def get(self, job_id: str) -> Row | None:
        """The row of a job."""
        ...

    def chart(
        self, since_ms: int, until_ms: int, *, days: bool, queue: str | None, task: str | None
    ) -> list[HistoryBucket]:
        """The jobs by hour or day and status."""
        ...

    def facts(self) -> HistoryStats:
        """What it has."""
        ...

    def newest_line(self) -> int:
        """When the newest line about an operation was written that it has, in ms since the epoch; 0 without one."""
        ...

    def put_operations(self, entries: Sequence[AuditEntry]) -> None:
        """Write operations in one transaction. One with an end stays as it is when only its begin is written again."""
        ...

    def operations(self, wanted: Wanted, limit: int | None) -> list[AuditEntry]:
        """The operations that match, the newest first; none before a recorder has created the tables."""
        ...

    def prune(self, keep: HistoryKeep, now_ms: int, most: int) -> Pruned:
        """Remove at most `most` rows that need not be kept."""
        ...

    def close(self) -> None:
        """Close its connection. It can be used again."""
        ...
