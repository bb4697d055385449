"""Takes jobs from executors that have fallen silent."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fennelq import log
from fennelq.broker import verbs
from fennelq.broker.keys import QueueKeys, queue_keys
from fennelq.broker.verb import Verb
from fennelq.broker.verbs.runs import Sweep
from fennelq.worker.bus import JobsWaitInLines
from fennelq.worker.duties.service import Service
from fennelq.worker.outage import LogThrottle
from fennelq.worker.per_queue import run_per_queue
from fennelq.worker.processes.signals import Signal
from fennelq.worker.rounds import Rounds, pause_of
from fennelq.worker.state import State

_logger = log.get("fennelq.recovery")
_PAGES = 20
_FLEET = 4
"""From so many executors on, most sweeps find that another executor was first."""


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
        if self._state.colleagues >= _FLEET:
            queues = await self._unswept(queues)
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
                if page.lines and not page.more:
                    self._state.bus.publish(JobsWaitInLines(keys.queue))
                if page.quarantined:
                    self._state.signals.send(Signal.QUARANTINE)
            queues = [keys for keys, page in pages if page.more]
            if not queues:
                return

    async def _unswept(self, queues: Sequence[QueueKeys]) -> list[QueueKeys]:
        """These queues without those that another executor has swept in this interval. Where this cannot be read,
        `recover` reports why."""
        calls = [verbs.runs.swept(keys, self._longest_ms) for keys in queues]
        found = await self._state.broker.run_each(calls)
        return [keys for keys, swept in zip(queues, found, strict=True) if swept is not True]

    @property
    def _between_ms(self) -> int:
        """Milliseconds between two sweeps of a queue by the fleet, at least."""
        return max(1, round(self._settings.maintenance * 900))

    @property
    def _longest_ms(self) -> int:
        return max(round(self._settings.lease * 1000), self._between_ms)

    def _page(self, keys: QueueKeys, beaten: tuple[int, int], *, more: bool) -> Verb[Sweep]:
        return verbs.runs.recover(
            keys,
            self._lifetimes,
            lease_ms=round(self._settings.lease * 1000),
            interval_ms=self._between_ms,
            max_deliveries=self._settings.max_deliveries,
            beaten_ms=beaten[0],
            ago_ms=beaten[1],
            more=more,
            deaths=self._state.deaths,
        )
