"""Sends what the executor has counted to its supervisor, once a second and at its end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from fennelq.broker.dispatch import pages
from fennelq.counting import Counting
from fennelq.model.totals import Message, to_line
from fennelq.worker.bus import JobLost, RunsDoubled
from fennelq.worker.duties.service import Service
from fennelq.worker.memory import resident_bytes
from fennelq.worker.processes.totals_pipe import TotalsPipe
from fennelq.worker.state import State

INTERVAL: Final = 1.0
LAST_MESSAGE: Final = 1.0
"""Seconds for the last message of an executor that ends."""
ROWS_AT_ONCE: Final = 200
_NEVER: Final = 3600.0


class Metrics(Service):
    """Sends the totals of one executor."""

    name = "metrics"

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._counting, self._pipe = state.app.counting, TotalsPipe(state.config.totals)
        self._waiting: deque[bytes] = deque()
        self._counters = dict.fromkeys(("leases_lost", *_COPIES), 0)
        self._speculating = frozenset(state.app.speculating)
        if self._counting.on:
            self._counting.attach(state.tally)
            state.bus.subscribe(JobLost, self._note_lost)
            state.bus.subscribe(RunsDoubled, self._note_doubled)

    async def tick(self) -> float:
        """Send what has changed."""
        if not self._counting.on or self._state.config.totals < 0:
            return _NEVER
        # Kept until they are sent: what has been taken as a change is not taken again.
        self._waiting += map(to_line, self._messages(self._counting))
        while self._waiting:
            await self._pipe.send(self._waiting.popleft())
        return INTERVAL

    async def end(self) -> None:
        """Send the rest: the duty `meter` may have ended before or after this one."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_MESSAGE):
                await self.tick()

    def _messages(self, counting: Counting) -> Iterable[Message]:
        with counting.runs.lock:
            changed = counting.runs.changes(self._state.tally.counting())
        runs = pages([*changed.items()], ROWS_AT_ONCE)
        sent = pages([*counting.sent_changes().items()], ROWS_AT_ONCE)
        yield Message({}, {}, self._all_counters(), self._gauges())
        yield from (Message(dict(page), {}, {}, {}) for page in runs)
        yield from (Message({}, dict(page), {}, {}) for page in sent)

    def _all_counters(self) -> dict[str, float]:
        errors = self._state.outage.errors
        return {**self._counters, **{f"redis_errors/{kind}": number for kind, number in errors.items()}}

    def _gauges(self) -> dict[str, float]:
        state = self._state
        return {
            "slots": state.slots.count if state.config.consumes else 0,
            "slots_busy": state.slots.taken,
            "unsettled": sum(held.outcome is not None for held in state.held.by_token.values()),
            "loop_lag": round(state.vitals.take_lag_of_second(), 6),
            "resident_memory": resident_bytes(),
        }

    def _note_lost(self, lost: JobLost) -> None:
        # Of a task that speculates, the other copy has most likely ended the job: no lease was lost.
        outrun = lost.delivery.task in self._speculating
        self._counters["speculations/outrun" if outrun else "leases_lost"] += 1

    def _note_doubled(self, doubled: RunsDoubled) -> None:
        self._counters["speculations/made"] += doubled.made
        self._counters["speculations/refused"] += doubled.refused


_COPIES: Final = ("speculations/made", "speculations/refused", "speculations/outrun")
