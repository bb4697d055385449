"""`app.history`: finds jobs that have ended, and keeps the history."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal

from fennelq import clock
from fennelq.manage.audit_entry import AuditEntry
from fennelq.manage.dead.search import Moment, moment_ms
from fennelq.manage.history.operations import Wanted
from fennelq.manage.history.store import FIRST, HistoryBucket, HistoryKeep, HistoryStats, Place, Store
from fennelq.manage.history.url import open_store
from fennelq.manage.offered import Awaiting, Blocking, Call, Family
from fennelq.manage.stories import JobStory
from fennelq.model.checks import check_count
from fennelq.model.job import JobInfo, split_id
from fennelq.model.query import Query, parse
from fennelq.model.story import Story, story
from fennelq.model.units import Seconds, seconds

if TYPE_CHECKING:
    from fennelq.app import App

MOST_FOUND: Final = 1000
MONTH: Final = timedelta(days=30)
KEEP: Final = 30 * 86400.0
KEEP_DEAD: Final = 180 * 86400.0
PRUNED_AT_ONCE: Final = 2000

OnPruned = Callable[[int], None]
"""Called with the number of rows that were removed so far."""


Jobs = list[JobInfo]
Buckets = list[HistoryBucket]
Operations = list[AuditEntry]


def keep_of(keep: Seconds | None, keep_dead: Seconds | None, max_rows: int | None) -> HistoryKeep:
    """How long rows are kept."""
    if max_rows is not None:
        check_count("max_rows", max_rows)
    return HistoryKeep(
        None if keep is None else seconds(keep), None if keep_dead is None else seconds(keep_dead), max_rows
    )


def _now() -> datetime:
    return datetime.now(UTC).astimezone()


class HistoryCalls(Family):
    """The operations on the history."""

    _attribute = "history"

    def __init__(self, app: App) -> None:
        super().__init__(app)
        self._store: Store | None = None

    def _archive(self) -> Store:
        """The database. Raises ConfigurationError when none is configured."""
        if self._store is None:
            self._store = open_store(self._app)
        return self._store

    @Call
    def find(self, where: str | Query = "", *, limit: int = 100) -> Jobs:
        """The jobs that match a filter, such as `state:dead task:welcome since:2d`: the latest end first, at most
        `limit`.

        Without a term about states it finds jobs with every end. Times are about the ends of the jobs. Arguments and
        headers are without their secrets. Raises InvalidFilter.
        """
        check_count("limit", limit)
        query = where if isinstance(where, Query) else parse(where, _now())
        return [row.info() for row in self._archive().find(query, limit)]

    @Call
    def info(self, job_id: str) -> JobInfo | None:
        """Everything that the history has of a job; None when it does not have it. Raises InvalidJobId."""
        split_id(job_id)
        row = self._archive().get(job_id)
        return None if row is None else row.info()

    @Call
    def story(self, job_id: str) -> Story | None:
        """What happened to a job, in words; None when the history does not have it. Raises InvalidJobId."""
        found = job_story(self, job_id)
        return None if found is None else found.story

    @Call
    def chart(
        self,
        since: Moment = MONTH,
        until: Moment = 0.0,
        *,
        by: Literal["hour", "day"] = "hour",
        queue: str | None = None,
        task: str | None = None,
    ) -> Buckets:
        """How many jobs ended in each hour or day, with each status, and the sums of their run and wait times."""
        now_ms = clock.wall_ms()
        since_ms, until_ms = moment_ms(since, now_ms), moment_ms(until, now_ms)
        return self._archive().chart(since_ms, until_ms, days=by == "day", queue=queue, task=task)

    @Call
    def operations(
        self,
        *,
        limit: int | None = 100,
        since: Moment | None = None,
        until: Moment | None = None,
        who: str | None = None,
        what: str | None = None,
    ) -> Operations:
        """The operations that match every filter, the newest first, as `app.audit.list` returns them; `limit=None`
        returns all.

        A recorder copies them every ten seconds, so the latest ones are only in Redis.
        """
        if limit is not None:
            check_count("limit", limit)
        now_ms = clock.wall_ms()
        since_ms = 0 if since is None else round(moment_ms(since, now_ms))
        until_ms = float("inf") if until is None else moment_ms(until, now_ms)
        return self._archive().operations(Wanted(since_ms, until_ms, who, what), limit)

    @Call
    def stats(self) -> HistoryStats:
        """What the history has: how many jobs, since when, and how many ends were missed."""
        return self._archive().facts()

    @Call
    def prune(
        self,
        keep: Seconds | None = KEEP,
        keep_dead: Seconds | None = KEEP_DEAD,
        max_rows: int | None = None,
        progress: OnPruned | None = None,
    ) -> int:
        """Remove jobs that ended longer ago than `keep` seconds, dead ones after `keep_dead`, and the oldest that are
        more than `max_rows`; None keeps them. Returns how many were removed.

        It works in small steps, between which ends are recorded. `progress` is called after each, perhaps in another
        thread.
        """
        wanted, removed, now_ms = keep_of(keep, keep_dead, max_rows), 0, clock.wall_ms()
        while True:
            done = self._archive().prune(wanted, now_ms, PRUNED_AT_ONCE)
            removed += done.removed
            if progress:
                progress(removed)
            if not done.more:
                return removed

    @Call
    def migrate(self) -> tuple[int, int]:
        """Bring the tables up to the version that this fennelq needs; returns the version before and now."""
        return self._archive().migrate()

    @Call
    def close(self) -> None:
        """Close the connection to the database. It can be used again."""
        self._archive().close()


def job_story(history: HistoryCalls, job_id: str) -> JobStory | None:
    """A job, what happened to it, and its story; None when the history does not have it. It blocks."""
    split_id(job_id)
    row = history._archive().get(job_id)  # pyright: ignore[reportPrivateUsage]  # it is not part of the public API
    if row is None:
        return None
    info, events = row.info(), row.lines()
    return JobStory(info, events, story(info, events, _now(), row.traces(), replayable=False))


def jobs_after(
    history: HistoryCalls, query: Query, limit: int, after: Place = FIRST
) -> tuple[list[JobInfo], Place]:
    """The next jobs that match a filter, the latest end first, and the place of the last one. It blocks."""
    rows = history._archive().find(query, limit, after)  # pyright: ignore[reportPrivateUsage]  # see job_story
    return [row.info() for row in rows], Place(rows[-1].ended, rows[-1].id) if rows else after


class History(HistoryCalls, Awaiting):
    """The jobs of an app that have ended. The setting `history_url` names the database, and `fennelq history run`
    records it.

    Its methods raise HistoryUnavailable when the database cannot be used.
    """


class BlockingHistory(HistoryCalls, Blocking):
    """The jobs of an app that have ended, for code without an event loop: `app.sync.history`."""
