"""Keeps the house in bounds: dead jobs by age and count, consumers of executors that are gone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fennelq.broker.broker import Broker
from fennelq.broker.keys import QueueKeys
from fennelq.broker.verbs import admin
from fennelq.settings import Settings

_PAGE = 100
_ROUNDS = 8
"""Nothing here is urgent: it is done once in so many rounds of maintenance."""
_CONSUMER_IDLE_MS = 3_600_000


class Janitor:
    """Housekeeping for all queues of an executor. Each one does it, a page at a time: nobody notices."""

    name = "janitor"

    def __init__(self, broker: Broker, queues: Callable[[], Sequence[QueueKeys]], settings: Settings) -> None:
        self._broker, self._queues, self._settings = broker, queues, settings

    async def tick(self) -> float:
        """One page of each queue; comes again at once while pages are full."""
        settings = self._settings
        answers = await self._broker.run_all(
            [
                admin.gc(
                    keys,
                    max_age_ms=round(settings.dlq_max_age * 1000),
                    max_len=settings.dlq_max_len,
                    idle_ms=_CONSUMER_IDLE_MS,
                    limit=_PAGE,
                )
                for keys in self._queues()
            ]
        )
        full = any(removed >= _PAGE for removed, _ in answers)
        return 0.05 if full else max(settings.maintenance * _ROUNDS, 1.0)
