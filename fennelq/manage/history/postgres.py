"""The history in PostgreSQL: `pip install 'fennelq[postgres]'`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import orjson

from fennelq.broker.connection import masked
from fennelq.errors import ConfigurationError, HistoryRefused, HistoryUnavailable
from fennelq.manage.history.row import COLUMNS, Row
from fennelq.manage.history.sql import Cursor, SqlStore

_CONNECT_SECONDS: Final = 10
_LOCK: Final = 7_239_150_017_442_101
"""The number of the advisory lock of writers: two that write the same job at once would both count it."""
_NUMBERS: Final = {"ended", "created", "due", "started", "tries", "starts"}
_TYPES: Final = [f"{name} {'bigint' if name in _NUMBERS else 'text'}" for name in COLUMNS]
_PUT: Final = (
    f"INSERT INTO jobs ({', '.join(COLUMNS)}) SELECT * FROM json_to_recordset(%s) AS rows({', '.join(_TYPES)}) "
    "ON CONFLICT (id) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in COLUMNS if name != "id")
)
_KNOWN: Final = (
    "SELECT id, ended, starts, queue, task, status, created, due, started FROM jobs "
    "WHERE id = ANY(%s::text[])"
)
_CURES: Final = {
    "53100": "the disk of its server is full: free some space, or keep fewer jobs with --keep or --max-rows",
    "25006": "it is read-only: connect to the primary server, or make it writable",
    "53300": "its server takes no more connections: raise max_connections",
    "55P03": "another recorder or command holds its lock for too long: look for one that hangs",
}
_NOT_LET_IN: Final = re.compile(
    r"FATAL:\s+((?:password|peer|ident) authentication failed.*|"
    r'(?:role|database) ".*" does not exist|no pg_hba.conf .*)'
)
"""Errors of a connection have no code of SQL."""
_WANTS_INDEX: Final = (
    "SELECT quote_ident(nspname) FROM pg_extension JOIN pg_namespace ON pg_namespace.oid = extnamespace "
    "WHERE extname = 'pg_trgm' AND to_regclass('jobs_by_text') IS NULL"
)
"""The schema of the extension, unless there is an index of texts."""
_TIMEOUTS: Final = (
    "SELECT set_config('lock_timeout', '10s', false), "
    "set_config('idle_in_transaction_session_timeout', '60s', false)"
)
"""A recorder that hangs in a transaction, or whose host is gone, holds the lock of writers: the server ends it."""
_REFUSED: Final = {
    "3D000": "does not exist: create the database",
    "28P01": "refuses the password: correct history_url",
    "28000": "refuses the user: correct history_url",
    "42501": "does not allow this user to do that: grant the rights on its schema",
}


class PostgresStore(SqlStore):
    """A database of PostgreSQL 13 or later."""

    mark = "%s"
    # Not `strpos`, because LIKE can use the index of texts. The text stands for itself: it has no wildcards.
    has = r"{} LIKE '%%' || replace(replace(replace(?, '\', '\\'), '%%', '\%%'), '_', '\_') || '%%'"

    def __init__(self, url: str, app: str) -> None:
        try:
            import psycopg
        except ImportError as error:
            raise ConfigurationError(
                "a history in PostgreSQL needs psycopg: pip install 'fennelq[postgres]'"
            ) from error
        super().__init__(masked(url), app)
        self._url, self._psycopg = url, psycopg

    def connect(self) -> Any:
        """A new connection. Each statement is committed, unless a transaction was begun."""
        try:
            connection = self._psycopg.connect(
                self._url,
                autocommit=True,
                connect_timeout=_CONNECT_SECONDS,
                keepalives_idle=30,
                keepalives_interval=10,
                keepalives_count=3,
                application_name="fennelq-history",
            )
        except self._psycopg.ProgrammingError as error:
            # What follows the colon may be a part of the password.
            problem = str(error).partition(":")[0]
            raise HistoryRefused(
                f"the history in {self.where} is not a valid URL ({problem}): correct history_url"
            ) from None
        connection.execute(_TIMEOUTS)
        return connection

    def _problem(self, error: Exception) -> Exception:
        if not isinstance(error, self._psycopg.Error):
            return error
        state: str = getattr(error, "sqlstate", None) or ""
        if state in _REFUSED:
            return HistoryRefused(f"the history in {self.where} {_REFUSED[state]}")
        if state in _CURES:
            return HistoryUnavailable(f"the history in {self.where} cannot be used: {_CURES[state]}")
        if isinstance(error, self._psycopg.OperationalError | self._psycopg.InterfaceError):
            lines = masked(str(error)).strip().splitlines()
            if len(lines) == 1 and (refused := _NOT_LET_IN.search(lines[0])):
                return HistoryRefused(
                    f"the history in {self.where} refuses the connection: {refused[1]}: correct history_url"
                )
            return HistoryUnavailable(
                f"the history in {self.where} cannot be reached: {lines[0] if lines else type(error).__name__}"
            )
        return error

    def migrate(self) -> tuple[int, int]:
        """Create the tables, or bring them up to this version; returns the version of the schema before and now. Where
        the extension pg_trgm is installed, texts get an index."""
        versions = super().migrate()
        self.run(self._index_texts)
        return versions

    def _index_texts(self, cursor: Cursor) -> None:
        if not cursor.run(_WANTS_INDEX):
            return
        with self.transaction(cursor):
            for (schema,) in cursor.run(_WANTS_INDEX):
                columns = ", ".join(
                    f"{name} {schema}.gin_trgm_ops" for name in ("args", "headers", "message")
                )
                cursor.run(f"CREATE INDEX jobs_by_text ON jobs USING gin ({columns})")

    def _begin(self, cursor: Cursor) -> None:
        cursor.run("BEGIN")
        cursor.run("SELECT pg_advisory_xact_lock(?)", (_LOCK,))

    def _exists(self, cursor: Cursor) -> bool:
        return cursor.run("SELECT to_regclass('fennelq_history') IS NOT NULL") == [(True,)]

    def _known(self, cursor: Cursor, ids: Sequence[str]) -> Iterable[Sequence[Any]]:
        return cursor.run(_KNOWN, (list(ids),))

    def _put(self, cursor: Cursor, rows: Sequence[Row]) -> None:
        # As one JSON text, because psycopg makes arrays item by item in Python, for some 10 us per row.
        if rows:
            documents = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
            cursor.run(_PUT, (orjson.dumps(documents).decode(),))

    def _size(self, cursor: Cursor) -> int:
        ((size,),) = cursor.run("SELECT pg_total_relation_size('jobs') + pg_total_relation_size('counts')")
        return int(size)
