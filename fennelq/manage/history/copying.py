"""Copies the operations of users from Redis, which keeps only the latest, into the history."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from fennelq import clock
from fennelq.errors import HistoryRefused
from fennelq.manage.audit import operations_since
from fennelq.manage.history.store import Store

if TYPE_CHECKING:
    from fennelq.app import App

EVERY: Final = 10.0
"""Seconds from one copy to the next."""

UntilPossible = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a call of the store, and waits while the database is away; returns None when it is stopped before."""


class Failed(Protocol):
    """Notes an error."""

    def __call__(self, error: Exception, **facts: str) -> None:
        """Note it with these facts."""
        ...


class Copying:
    """Copies the operations of one app."""

    def __init__(self, app: App, store: Store, until_possible: UntilPossible, failed: Failed) -> None:
        self._app, self._store = app, store
        self._until_possible, self._failed = until_possible, failed
        self._due = clock.monotonic()

    async def when_due(self) -> None:
        """Copy, unless the latest copy was a moment ago."""
        if clock.monotonic() >= self._due:
            await self.now()

    async def now(self) -> None:
        """Copy what is new since the latest line that the history has. An error does not stop the record of jobs: any
        client of Redis may write a line that no database takes."""
        self._due = clock.monotonic() + EVERY
        try:
            newest = await self._until_possible(self._store.newest_line)
            if newest is None:
                return
            entries = await self._app.client.converse(operations_since(self._app, newest))
            if entries:
                await self._until_possible(lambda: self._store.put_operations(entries))
        except HistoryRefused:
            raise
        except Exception as error:
            self._failed(error, table="audit")
