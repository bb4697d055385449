"""What the databases of the history have in common: the statements, and how they are run."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

from fennelq import clock
from fennelq.broker.dispatch import pages
from fennelq.errors import HistoryRefused
from fennelq.manage.audit_entry import AuditEntry
from fennelq.manage.history import operations
from fennelq.manage.history.operations import Wanted
from fennelq.manage.history.prune import PruneStatements
from fennelq.manage.history.row import COLUMNS, Row, clean_text
from fennelq.manage.history.schema import STEPS, VERSION, VERSION_TABLE
from fennelq.manage.history.store import Gap, HistoryBucket, HistoryKeep, HistoryStats, Place, Pruned
from fennelq.manage.history.sums import HOUR_MS, add_gap, added
from fennelq.manage.history.where import condition_of
from fennelq.model.query import Query

T = TypeVar("T")

DAY_MS: Final = 24 * HOUR_MS
_ROWS_AT_ONCE: Final = 500
_LIST: Final = ", ".join(COLUMNS)
_KNOWN: Final = "id, ended, starts, queue, task, status, created, due, started"
_TASKS: Final = """
WITH RECURSIVE names(task) AS (
    SELECT min(task) FROM jobs
    UNION ALL
    SELECT (SELECT min(task) FROM jobs WHERE task > names.task) FROM names WHERE names.task IS NOT NULL
)
SELECT task FROM names WHERE task IS NOT NULL"""
"""The tasks, found by steps in the index: `DISTINCT` would read all of it."""
_END_ONLY: Final = """
INSERT INTO jobs (id, queue, status, ended) VALUES (?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET status = excluded.status, ended = excluded.ended, started = NULL"""


class Cursor(NamedTuple):
    """A cursor of either driver, for statements with `?` for each value."""

    raw: Any
    mark: str

    def run(self, statement: str, values: Sequence[object] = ()) -> list[Any]:
        """Execute a statement; returns its rows."""
        values = [clean_text(value) if isinstance(value, str) else value for value in values]
        self.raw.execute(self._translated(statement), values)
        return self.raw.fetchall() if self.raw.description else []

    def number(self, statement: str, values: Sequence[object] = ()) -> int:
        """Execute a statement; returns how many rows it has changed."""
        self.raw.execute(self._translated(statement), values)
        return int(self.raw.rowcount)

    def each(self, statement: str, values: Collection[Sequence[object]]) -> None:
        """Execute a statement once for each of these."""
        if values:
            self.raw.executemany(self._translated(statement), values)

    def _translated(self, statement: str) -> str:
        return statement if self.mark == "?" else statement.replace("?", self.mark)


class SqlStore(ABC):
    """A history in a database that understands SQL."""

    mark = "?"
    has = ""
    """The expression for `a text contains another one`."""
    numbers_of_jobs = "SELECT count(*) FROM jobs"

    def __init__(self, where: str, app: str) -> None:
        self.where, self._app = where, app
        self._lock = threading.Lock()
        self._connection: Any = None
        self._pid = 0

    # What the databases do differently

    @abstractmethod
    def connect(self) -> Any:
        """A new connection, which commits each statement unless a transaction was begun."""

    @abstractmethod
    def _problem(self, error: Exception) -> Exception:
        """The error to raise for one of the driver."""

    @abstractmethod
    def _begin(self, cursor: Cursor) -> None:
        """Begin a transaction in which no other process writes."""

    @abstractmethod
    def _exists(self, cursor: Cursor) -> bool:
        """Whether the table with the version of the schema exists."""

    @abstractmethod
    def _known(self, cursor: Cursor, ids: Sequence[str]) -> Iterable[Sequence[Any]]:
        """The rows with these ids."""

    @abstractmethod
    def _put(self, cursor: Cursor, rows: Sequence[Row]) -> None:
        """Insert these rows, or replace those with the same ids."""

    @abstractmethod
    def _size(self, cursor: Cursor) -> int:
        """Bytes of the database."""

    # The schema

    def migrate(self) -> tuple[int, int]:
        """Create the tables, or bring them up to this version; returns the version of the schema before and now."""
        return self.run(self._migrate)

    def _migrate(self, cursor: Cursor) -> tuple[int, int]:
        with self.transaction(cursor):
            before = self._version(cursor)
            if before == VERSION:
                return before, VERSION
            if before == 0:
                cursor.run(VERSION_TABLE)
                cursor.run("INSERT INTO fennelq_history (version, app) VALUES (?, ?)", (0, self._app))
            for statement in (statement for step in STEPS[before:] for statement in step):
                cursor.run(statement)
            cursor.run("UPDATE fennelq_history SET version = ?", (VERSION,))
            return before, VERSION

    def _version(self, cursor: Cursor) -> int:
        """The version of the schema, 0 for none. Raises HistoryRefused for one that is newer, or of another app."""
        if not self._exists(cursor):
            return 0
        ((version, app),) = cursor.run("SELECT version, app FROM fennelq_history")
        if app != self._app:
            raise HistoryRefused(
                f"the history in {self.where} belongs to app {app[:140]!r}, and this is {self._app!r}: "
                "set history_url to another database"
            )
        if version > VERSION:
            raise HistoryRefused(
                f"the history in {self.where} has version {version} of its tables, and this fennelq knows "
                f"{VERSION} at most: update fennelq, or set history_url to another database"
            )
        return int(version)

    def _check(self, cursor: Cursor) -> None:
        """Raises HistoryRefused when the tables are missing or older."""
        version = self._version(cursor)
        if version == 0:
            raise HistoryRefused(
                f"the history in {self.where} is empty: start its recorder with `fennelq history run`"
            )
        if version < VERSION:
            raise HistoryRefused(
                f"the history in {self.where} has version {version} of its tables, and this fennelq needs "
                f"{VERSION}: run `fennelq history migrate`"
            )

    # Writing

    def write(self, rows: Sequence[Row], gaps: Sequence[Gap] = ()) -> int:
        """Write the rows in one transaction. A row replaces an earlier end of its job, and nothing else; returns how
        many were new or replaced one."""
        latest: dict[str, Row] = {}
        for row in rows:
            other = latest.get(row.id)
            if other is None or _replaces(row, other):
                latest[row.id] = row
        return self.run(lambda cursor: self._write(cursor, latest, gaps))

    def _write(self, cursor: Cursor, latest: dict[str, Row], gaps: Sequence[Gap]) -> int:
        with self.transaction(cursor):
            known = self._rows_of(cursor, list(latest))
            new = [row for row in latest.values() if row.id not in known or _replaces(row, known[row.id])]
            full = [row for row in new if row.task is not None]
            self._put(cursor, full)
            cursor.each(_END_ONLY, [row[:4] for row in new if row.task is None])
            for statement, values in added(new, known):
                cursor.each(statement, values)
            for gap in gaps:
                add_gap(gap, cursor.number)
            return len(new)

    def _rows_of(self, cursor: Cursor, ids: Sequence[str]) -> dict[str, Row]:
        found: dict[str, Row] = {}
        for page in pages(ids, _ROWS_AT_ONCE):
            for job, ended, starts, queue, task, status, created, due, started in self._known(cursor, page):
                found[job] = Row(job, queue, status, ended, task, created, due, started, None, starts)
        return found

    # Reading

    def find(self, query: Query, limit: int, after: Place | None = None) -> list[Row]:
        """The newest rows that match; with a place, those after it, in the order of places."""

        def find(cursor: Cursor) -> list[Row]:
            self._check(cursor)
            where = condition_of(query, self.has, lambda name: _tasks_like(cursor, name))
            clauses = [where.sql] if where.sql else []
            clauses += ["(ended, id) < (?, ?)"] if after else []
            filtered = f"WHERE {' AND '.join(clauses)} " if clauses else ""
            # Without the id, an index has the rows in this order.
            order = "ended DESC, id DESC" if after else "ended DESC"
            statement = f"SELECT {_LIST} FROM jobs {filtered}ORDER BY {order} LIMIT ?"
            return [Row(*found) for found in cursor.run(statement, (*where.values, *(after or ()), limit))]

        return self.run(find)

    def get(self, job_id: str) -> Row | None:
        """The row of a job."""

        def get(cursor: Cursor) -> Row | None:
            self._check(cursor)
            found = cursor.run(f"SELECT {_LIST} FROM jobs WHERE id = ?", (job_id,))
            return Row(*found[0]) if found else None

        return self.run(get)

    def chart(
        self, since_ms: int, until_ms: int, *, days: bool, queue: str | None, task: str | None
    ) -> list[HistoryBucket]:
        """The jobs by hour or day and status."""
        width = DAY_MS if days else HOUR_MS
        clauses, values = ["hour >= ?", "hour <= ?"], [since_ms // HOUR_MS * HOUR_MS, until_ms]

        def chart(cursor: Cursor) -> list[HistoryBucket]:
            self._check(cursor)
            chosen, given = list(clauses), list[Any](values)
            if queue is not None:
                chosen.append("queue = ?")
                given.append(queue)
            if task is not None:
                names = sorted({task, *_tasks_like(cursor, task)})
                chosen.append(f"task IN ({', '.join('?' * len(names))})")
                given += names
            table = "hours" if queue is None and task is None else "counts"
            statement = (
                f"SELECT hour / {width} * {width}, status, sum(n), sum(run_ms), sum(wait_ms) FROM {table} "
                f"WHERE {' AND '.join(chosen)} GROUP BY 1, 2 HAVING sum(n) > 0 ORDER BY 1, 2"
            )
            return [
                HistoryBucket(clock.from_ms(int(at)), status, int(n), float(run) / 1000, float(wait) / 1000)
                for at, status, n, run, wait in cursor.run(statement, given)
            ]

        return self.run(chart)

    def facts(self) -> HistoryStats:
        """What it has."""

        def facts(cursor: Cursor) -> HistoryStats:
            self._check(cursor)
            ((oldest, newest),) = cursor.run(
                "SELECT (SELECT min(ended) FROM jobs), (SELECT max(ended) FROM jobs)"
            )
            ((missed,),) = cursor.run(
                "SELECT COALESCE(sum(most), 0) FROM (SELECT max(missed) AS most FROM gaps GROUP BY queue) AS of_queues"
            )
            ((rows,),) = cursor.run(self.numbers_of_jobs)
            return HistoryStats(
                where=self.where,
                version=VERSION,
                rows=int(rows),
                oldest=None if oldest is None else clock.from_ms(oldest),
                newest=None if newest is None else clock.from_ms(newest),
                size=self._size(cursor),
                missed=int(missed),
            )

        return self.run(facts)

    # Operations

    def newest_line(self) -> int:
        """When the newest line about an operation was written that it has, in ms since the epoch; 0 without one."""
        return self.run(operations.newest_line)

    def put_operations(self, entries: Sequence[AuditEntry]) -> None:
        """Write operations in one transaction. One with an end stays as it is when only its begin is written again."""

        def put(cursor: Cursor) -> None:
            with self.transaction(cursor):
                operations.put(cursor, entries)

        self.run(put)

    def operations(self, wanted: Wanted, limit: int | None) -> list[AuditEntry]:
        """The operations that match, the newest first; none before a recorder has created the tables."""

        def find(cursor: Cursor) -> list[AuditEntry]:
            if self._version(cursor) == 0:
                return []
            self._check(cursor)
            return list(islice(operations.found(cursor, wanted), limit))

        return self.run(find)

    # Pruning

    def prune(self, keep: HistoryKeep, now_ms: int, most: int) -> Pruned:
        """Remove at most `most` rows that need not be kept."""

        def prune(cursor: Cursor) -> Pruned:
            self._check(cursor)
            with self.transaction(cursor):
                removed, statements = 0, PruneStatements(keep, now_ms, cursor.run)
                for statement, values in statements.of_jobs():
                    if removed < most:
                        removed += cursor.number(statement, (*values, most - removed))
                for statement, values in statements.of_counts():
                    cursor.number(statement, (*values, most))
                return Pruned(removed, removed >= most)

        return self.run(prune)

    # Connections

    def close(self) -> None:
        """Close its connection. It can be used again."""
        with self._lock:
            self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        # One that a fork has inherited belongs to the parent.
        if connection is not None and self._pid == os.getpid():
            with suppress(Exception):
                connection.close()

    def run(self, act: Callable[[Cursor], T]) -> T:
        """Do something with a connection, which is made if there is none."""
        with self._lock:
            try:
                if self._connection is None or self._pid != os.getpid():
                    self._connection, self._pid = self.connect(), os.getpid()
                return act(Cursor(self._connection.cursor(), self.mark))
            except HistoryRefused:
                self._disconnect()
                raise
            except Exception as error:
                self._disconnect()
                raise self._problem(error) from error

    @contextmanager
    def transaction(self, cursor: Cursor) -> Generator[None]:
        """A transaction in which no other process writes."""
        self._begin(cursor)
        try:
            yield
        except BaseException:
            with suppress(Exception):
                cursor.run("ROLLBACK")
            raise
        cursor.run("COMMIT")


def _replaces(row: Row, known: Row) -> bool:
    """Whether a row is a later end of its job than the one that is known. A row without a record knows only the
    time."""
    if row.task is None or known.task is None:
        return row.ended > known.ended or (row.ended == known.ended and row.task is not None)
    return row.order > known.order


def _tasks_like(cursor: Cursor, name: str) -> list[str]:
    """The tasks whose function has this name."""
    if ":" in name:
        return []
    return [task for (task,) in cursor.run(_TASKS) if task.rpartition(":")[2] == name]
