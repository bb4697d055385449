"""Detects the end of a burst: no job is left, and the last jobs have not sent further jobs.

Jobs that are due later do not count, and neither do jobs that the rate of the executor holds back.
"""

from __future__ import annotations

import asyncio

from fennelq import log
from fennelq.broker import verbs
from fennelq.worker.bus import QueuesDiscovered
from fennelq.worker.outage import LogThrottle
from fennelq.worker.running.consumer import Consumer
from fennelq.worker.running.workbench import Workbench
from fennelq.worker.state import State

_logger = log.get("fennelq.worker")

_LOOK_AGAIN = 0.5


class Burst:
    """Watches the work of an executor that should stop when no job is left."""

    def __init__(self, state: State, consumer: Consumer, workbench: Workbench) -> None:
        self._state, self._consumer, self._workbench = state, consumer, workbench

    async def done(self) -> None:
        """Returns when no job is left to run."""
        throttle = LogThrottle("looking whether anything is left", self._state.outage)
        while True:
            try:
                if await self._nothing_is_left():
                    return
            except Exception as error:
                throttle.warn(error)
                await asyncio.sleep(_LOOK_AGAIN)

    async def _nothing_is_left(self) -> bool:
        state, held = self._state, self._state.held
        await self._consumer.drained.wait()
        await self._workbench.settled()
        if running := held.tasks():
            await held.one_ended(running)
            return False
        # The last job may have sent another before it ended, even to a queue that was not known before.
        done = held.done
        known = await state.broker.ask(verbs.queues.known_queues(state.namespace))
        state.bus.publish(QueuesDiscovered(frozenset(known)))
        await self._consumer.look_again()
        nothing = held.done == done and not held.tokens()
        if nothing and state.slots.held_back:
            _logger.info(
                "burst_held_back", why="the rate of this worker allows no further job now; jobs may be left"
            )
        return nothing
