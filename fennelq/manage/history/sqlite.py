"""The history in a file of SQLite: the default. Any number of processes may use it; one at a time writes."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from fennelq.errors import HistoryRefused, HistoryUnavailable
from fennelq.manage.history.row import COLUMNS, Row
from fennelq.manage.history.sql import Cursor, SqlStore

_BUSY_SECONDS: Final = 10.0
_MINE_ALONE: Final = 0o600
_MARKS: Final = ", ".join("?" * len(COLUMNS))
_PUT: Final = f"INSERT OR REPLACE INTO jobs ({', '.join(COLUMNS)}) VALUES ({_MARKS})"
_KNOWN: Final = "SELECT id, ended, starts, queue, task, status, created, due, started FROM jobs WHERE id IN "
_CURES: Final = {
    sqlite3.SQLITE_FULL: "the disk is full: free some space, or keep fewer jobs with --keep or --max-rows",
    sqlite3.SQLITE_READONLY: "the file is read-only for this user: change its permissions, or those of its folder",
    sqlite3.SQLITE_BUSY: "another process writes to it for too long: look for one that has it open",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened: check its folder, and the permissions of this user",
    sqlite3.SQLITE_IOERR: "the disk reports an error: check it, and the space that is left",
    sqlite3.SQLITE_PERM: "this user may not use the file: change its permissions",
}
_DAMAGED: Final = {
    sqlite3.SQLITE_NOTADB: "is not a database of SQLite: set history_url to another file",
    sqlite3.SQLITE_CORRUPT: "is damaged: restore it from a backup, or move it away to begin a new one",
}


class SqliteStore(SqlStore):
    """A file of SQLite."""

    has = "instr({}, ?) > 0"

    def __init__(self, path: Path, app: str) -> None:
        super().__init__(f"sqlite://{path}", app)
        self.path = path

    def connect(self) -> Any:
        """A new connection. Each statement is committed, unless a transaction was begun."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Rows contain arguments, so the file is for this user only, as its journal will be.
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, _MINE_ALONE))
        except PermissionError:
            if not self.path.is_file():
                raise
        connection = sqlite3.connect(
            self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA journal_mode = WAL")
        # After a power cut the last transactions may be missing, and the file is not damaged. Their entries are
        # acknowledged by then, so this is the price of one disk flush less for each batch.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA temp_store = MEMORY")
        return connection

    def _problem(self, error: Exception) -> Exception:
        if isinstance(error, OSError):
            return HistoryUnavailable(
                f"the history in {self.where} cannot be used: {error.strerror or error}"
            )
        if not isinstance(error, sqlite3.Error):
            return error
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _DAMAGED:
            return HistoryRefused(f"the history in {self.where} {_DAMAGED[code]}")
        if code in _CURES:
            return HistoryUnavailable(f"the history in {self.where} cannot be used: {_CURES[code]}")
        if isinstance(error, sqlite3.OperationalError):
            return HistoryUnavailable(f"the history in {self.where} cannot be used: {error}")
        return error

    def _begin(self, cursor: Cursor) -> None:
        cursor.run("BEGIN IMMEDIATE")

    def _exists(self, cursor: Cursor) -> bool:
        return bool(cursor.run("SELECT 1 FROM sqlite_master WHERE name = 'fennelq_history'"))

    def _known(self, cursor: Cursor, ids: Sequence[str]) -> Iterable[Sequence[Any]]:
        return cursor.run(f"{_KNOWN}({', '.join('?' * len(ids))})", ids)

    def _put(self, cursor: Cursor, rows: Sequence[Row]) -> None:
        cursor.each(_PUT, rows)

    def _size(self, cursor: Cursor) -> int:
        ((pages,),), ((size,),) = cursor.run("PRAGMA page_count"), cursor.run("PRAGMA page_size")
        return int(pages * size)
