"""Takes jobs from executors that have fallen silent."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fennelq import log
from fennelq.broker import verbs
from fennelq.broker.keys import QueueKeys, queue_keys
from fennelq.broker.verb import Verb
from fennelq.broker.verbs.runs import Sweep
from fennelq.worker.duties.service import Service
from fennelq.worker.outage import LogThrottle
from fennelq.worker.per_queue import run_per_queue
from fennelq.worker.processes.signals import Signal
from fennelq.worker.rounds import Rounds, pause_of
from fennelq.worker.state import State

_logger = log.get("fennelq.recovery")
_PAGES = 20


class Recovery(Service):
    """Sweeps the queues of an executor, unless another executor has done so within this interval."""

    name = "recovery"

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._settings, self._lifetimes = state.settings, state.lifetimes
        self._rounds = Rounds()
        self._log = LogThrottle("recovery")

    async def tick(self) -> float:
        """Sweep every queue once per round, as long as this executor's own lease is steady (`Lease.steady`)."""
        queues = self._state.routing.weights
        await self._sweep([queue_keys(self._state.namespace, queue) for queue in self._rounds.page(queues)])
        return pause_of(len(queues), self._interval)

    @property
    def _interval(self) -> float:
        """Seconds between two sweeps of a queue by this executor. At most half a lease: jobs of a dead executor start
        again within one and a half leases, however many executors share the sweeps."""
        longest = max(self._settings.maintenance, self._settings.lease / 2)
        return min(self._state.stretched(self._settings.maintenance), longest)

    async def _sweep(self, queues: Sequence[QueueKeys]) -> None:
        """Sweep a page of each queue in one round trip, and then further pages of the queues that have more."""
        for number in range(_PAGES):
            # Test this before each page: a beat in between may have found that the server's clock was set.
            beaten = self._state.lease.beaten()
            if not self._state.lease.steady:
                return
            page_of = partial(self._page, beaten=beaten, more=number > 0)
            pages = await run_per_queue(self._state.broker, queues, page_of, self._log)
            for keys, page in pages:
                if page.requeued or page.dead:
                    _logger.warning(
                        "jobs_recovered", queue=keys.queue, requeued=page.requeued, dead=page.dead
                    )
                if page.quarantined:
                    self._state.signals.send(Signal.QUARANTINE)
            queues = [keys for keys, page in pages if page.more]
            if not queues:
                return

    def _page(self, keys: QueueKeys, beaten: tuple[int, int], *, more: bool) -> Verb[Sweep]:
        return verbs.runs.recover(
            keys,
            self._lifetimes,
            lease_ms=round(self._settings.lease * 1000),
            interval_ms=max(1, round(self._settings.maintenance * 900)),
            max_deliveries=self._settings.max_deliveries,
            beaten_ms=beaten[0],
            ago_ms=beaten[1],
            more=more,
            deaths=self._state.deaths,
        )
