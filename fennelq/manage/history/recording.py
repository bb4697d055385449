"""A recorder for programs of users, and for `fennelq history run`.

It is a module of its own, because commands that only look into the history need neither a recorder nor a logger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING

from fennelq.manage.history.choice import Choice
from fennelq.manage.history.recorder import Recorder
from fennelq.manage.history.store import HistoryKeep, HistoryProgress
from fennelq.manage.history.url import open_store
from fennelq.model.job import Status

if TYPE_CHECKING:
    from fennelq.app import App


class HistoryRecorder:
    """Records how the jobs of an app end, beside the other work of a program: `await HistoryRecorder(app).run()`.

    `fennelq history run` is a program that does only this.
    """

    def __init__(
        self,
        app: App,
        *,
        only: Collection[Status] = (),
        sample: float = 1.0,
        keep: HistoryKeep | None = None,
        report: Callable[[HistoryProgress], None] | None = None,
    ) -> None:
        """It records `only` jobs with these ends, and of those that are not dead a `sample`, a share from 0 to 1.

        From time to time it removes the rows that are older than `keep`; None keeps all. `report` is called after each
        step.
        """
        self._store = open_store(app)
        choice = Choice(frozenset(only), sample)
        self._recorder = Recorder(app, self._store, choice, keep, report=report)

    @property
    def where(self) -> str:
        """The URL of the database, without a password."""
        return self._store.where

    @property
    def progress(self) -> HistoryProgress:
        """How far it has come."""
        return self._recorder.progress

    async def run(self) -> None:
        """Record until `stop`. Waits while the database or Redis is away. Raises HistoryRefused when waiting does not
        help."""
        await self._closing(self._recorder.run())

    async def drain(self) -> None:
        """Record what waits to be recorded now, and return. Raises BrokerUnavailable when Redis cannot be asked."""
        await self._closing(self._recorder.drain())

    async def _closing(self, work: Awaitable[None]) -> None:
        try:
            await work
        finally:
            await asyncio.to_thread(self._store.close)

    def stop(self) -> None:
        """End `run` after the current step."""
        self._recorder.stop()
