"""Removes old and surplus dead jobs, and the consumers of executors that have ended. Keeps the index of the dead jobs
complete."""

from __future__ import annotations

from fennelq import log
from fennelq.broker import verbs
from fennelq.broker.keys import QueueKeys, queue_keys
from fennelq.broker.verb import Verb
from fennelq.broker.verbs.dead import Indexed
from fennelq.worker.duties.service import Service
from fennelq.worker.outage import LogThrottle
from fennelq.worker.per_queue import run_per_queue
from fennelq.worker.rounds import Rounds, pause_of
from fennelq.worker.state import State

_logger = log.get("fennelq.janitor")
_PAGE = 100
_PAGE_OF_INDEX = 100
"""Dead jobs of an earlier release that one call counts, so that it takes about a millisecond."""
_ROUNDS = 8
"""Intervals of maintenance between two ticks: the work is not urgent."""
_CONSUMER_IDLE_MS = 3_600_000


class Janitor(Service):
    """Cleans all queues of an executor. Every executor processes one page at a time, to keep the load low."""

    name = "janitor"

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._settings = state.settings
        self._rounds = Rounds()
        self._full: list[str] = []
        """The queues in which more dead jobs are left to remove or to count."""
        self._log = LogThrottle("housekeeping")

    async def tick(self) -> float:
        """Clean one page of each queue. While pages are full, the next tick follows soon."""
        queues = self._state.routing.weights
        page = self._full or self._rounds.page(queues)
        keys = [queue_keys(self._state.namespace, queue) for queue in page]
        swept = await run_per_queue(self._state.broker, keys, self._gc, self._log)
        indexed = await run_per_queue(self._state.broker, keys, _index, self._log)
        for one in [one for one, result in indexed if result.anew]:
            _logger.info("dead_jobs_counted_anew", queue=one.queue)
        full = [one.queue for one, (removed, _) in swept if removed >= _PAGE]
        more = [one.queue for one, result in indexed if result.more]
        self._full = [*dict.fromkeys(full + more)]
        return 0.05 if self._full else pause_of(len(queues), self._interval)

    @property
    def _interval(self) -> float:
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


def _index(keys: QueueKeys) -> Verb[Indexed]:
    return verbs.dead.index(keys, _PAGE_OF_INDEX)
