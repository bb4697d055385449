"""Takes jobs from executors that have fallen silent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fennelq import log
from fennelq.broker.broker import Broker
from fennelq.broker.keys import QueueKeys
from fennelq.broker.verbs import lifecycle
from fennelq.broker.verbs.lifecycle import Lifetimes
from fennelq.settings import Settings

_logger = log.get("fennelq.recovery")
_PAGES = 20


class Recovery:
    """Sweeps the queues of an executor, unless a colleague has done so within this interval."""

    name = "recovery"

    def __init__(
        self,
        broker: Broker,
        queues: Callable[[], Sequence[QueueKeys]],
        *,
        settings: Settings,
        lifetimes: Lifetimes,
        steady: Callable[[], bool],
        beaten_ms: Callable[[], int],
        deaths: Callable[[], Mapping[str, str]],
    ) -> None:
        self._broker, self._queues, self._settings, self._lifetimes = broker, queues, settings, lifetimes
        self._steady, self._beaten_ms, self._deaths = steady, beaten_ms, deaths

    async def tick(self) -> float:
        """Sweep every queue once, if this executor may judge others at all."""
        if not self._steady():
            return self._settings.maintenance
        for keys in self._queues():
            await self._sweep(keys)
        return self._settings.maintenance

    async def _sweep(self, keys: QueueKeys) -> None:
        more = False
        for _ in range(_PAGES):
            page = await self._broker.run(
                lifecycle.recover(
                    keys,
                    self._lifetimes,
                    lease_ms=round(self._settings.lease * 1000),
                    interval_ms=max(1, round(self._settings.maintenance * 900)),
                    max_deliveries=self._settings.max_deliveries,
                    beaten_ms=self._beaten_ms(),
                    more=more,
                    deaths=self._deaths(),
                )
            )
            if page.requeued or page.dead:
                _logger.warning("jobs_recovered", queue=keys.queue, requeued=page.requeued, dead=page.dead)
            if not page.more:
                return
            more = True
