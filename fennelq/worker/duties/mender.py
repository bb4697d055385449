"""Puts limits right: slots that no job holds, and lines that no script would call."""

from __future__ import annotations

from collections.abc import Sequence

from fennelq import log
from fennelq.broker import verbs
from fennelq.broker.keys import QueueKeys, queue_keys
from fennelq.broker.verb import Verb
from fennelq.broker.verbs.queues import Mended
from fennelq.worker.bus import JobsWaitInLines
from fennelq.worker.duties.service import Service
from fennelq.worker.outage import LogThrottle
from fennelq.worker.per_queue import run_per_queue
from fennelq.worker.state import State

_logger = log.get("fennelq.mender")
_PAGE = 100
_LONGEST = 60.0


class Mender(Service):
    """Mends the limits of a queue when this executor has swept it and found jobs in lines, a page per tick.

    So it is one executor of the fleet in each interval of maintenance, and none where no job waits for a limit."""

    name = "mender"

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._queues: set[str] = set()
        """The queues to mend, in which pages are left."""
        self._log = LogThrottle("mending")
        state.bus.subscribe(JobsWaitInLines, self._found)

    def _found(self, fact: JobsWaitInLines) -> None:
        self._queues.add(fact.queue)
        self.woken.set()

    async def tick(self) -> float:
        """Mend a page of each queue. While pages are left, the next tick follows soon."""
        queues, self._queues = sorted(self._queues), set()
        await self._mend([queue_keys(self._state.namespace, queue) for queue in queues])
        return 0.05 if self._queues else _LONGEST

    async def _mend(self, queues: Sequence[QueueKeys]) -> None:
        if not queues:
            return
        for keys, page in await run_per_queue(self._state.broker, queues, _page, self._log):
            if page.slots:
                _logger.warning("slots_mended", queue=keys.queue, slots=page.slots, gates=page.gates)
            if page.more:
                self._queues.add(keys.queue)


def _page(keys: QueueKeys) -> Verb[Mended]:
    return verbs.queues.mend(keys, _PAGE)
