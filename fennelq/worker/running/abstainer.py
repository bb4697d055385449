"""In place of the reader, in an executor that takes no jobs."""

from __future__ import annotations

from fennelq.broker import verbs
from fennelq.worker.running.consumer import ROUND, Consumer


class Abstainer(Consumer):
    """Keeps the list of queues up to date, for the duties, and finds out whether Redis replies. It never fetches, so
    the executor is on no list of those that a new job wakes."""

    async def _turn(self) -> None:
        await self._broker.ask(verbs.server.now())
        self._note_connected()
        await self._sleep(ROUND)
