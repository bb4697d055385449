"""Removes old and surplus dead jobs, and the consumers of executors that have ended."""

from __future__ import annotations

from fennelq.broker import verbs
from fennelq.broker.keys import QueueKeys
from fennelq.broker.verb import Verb
from fennelq.worker.duties.service import Service
from fennelq.worker.outage import LogThrottle
from fennelq.worker.per_queue import run_per_queue
from fennelq.worker.state import State

_PAGE = 100
_ROUNDS = 8
"""Intervals of maintenance between two ticks: the work is not urgent."""
_CONSUMER_IDLE_MS = 3_600_000


class Janitor(Service):
    """Cleans all queues of an executor. Every executor processes one page at a time, to keep the load low."""

    name = "janitor"

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._settings = state.settings
        self._log = LogThrottle("housekeeping")

    async def tick(self) -> float:
        """Clean one page of each queue. While pages are full, the next tick follows soon."""
        swept = await run_per_queue(self._state.broker, self._state.queues, self._gc, self._log)
        full = any(removed >= _PAGE for _, (removed, _) in swept)
        return 0.05 if full else self._pause

    @property
    def _pause(self) -> float:
        """Not urgent, so it is stretched beyond a lease as well."""
        return max(self._settings.maintenance * _ROUNDS, 1.0) * max(1.0, self._state.colleagues / 3)

    def _gc(self, keys: QueueKeys) -> Verb[tuple[int, int]]:
        return verbs.queues.gc(
            keys,
            max_age_ms=round(self._settings.dlq_max_age * 1000),
            max_len=self._settings.dlq_max_len,
            idle_ms=_CONSUMER_IDLE_MS,
            limit=_PAGE,
        )
