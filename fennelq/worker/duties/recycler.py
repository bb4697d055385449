"""Stops an executor that has started enough jobs, has too many stuck slots, or uses too much memory.

The executor finishes its running jobs first. The supervisor then starts a new one in its place.
"""

from __future__ import annotations

from fennelq import log
from fennelq.worker.bus import StopAsked
from fennelq.worker.duties.service import Service
from fennelq.worker.memory import resident_bytes
from fennelq.worker.state import State

_logger = log.get("fennelq.worker")
_LOOK_EVERY = 1.0


class Recycler(Service):
    """Checks the started jobs, the stuck slots and the memory of its own process."""

    name = "recycler"

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._slots, self._max_rss = state.slots, state.config.max_rss
        most, slots = state.settings.max_stuck, state.slots.count
        # `-c` may be lower than the setting that max_stuck was checked against.
        self._max_stuck = slots // 2 if most is None else min(most, slots - 1)
        self._recycled = False
        self.woken = state.slots.spent

    async def tick(self) -> float:
        """Stop the executor when one of its limits is reached."""
        reason = {} if self._recycled else self._reason()
        if reason:
            self._recycled = True
            _logger.warning("executor_recycled", **reason)
            self._state.bus.publish(StopAsked())
        return _LOOK_EVERY

    def _reason(self) -> dict[str, int]:
        if self._slots.left <= 0:
            return {"jobs": self._slots.started}
        if self._slots.stuck > self._max_stuck:
            return {"stuck": self._slots.stuck, "of": self._slots.count}
        # Check this only after it has started a job: an executor that is too large from the beginning would never run
        # one.
        if self._max_rss is not None and self._slots.started and (rss := resident_bytes()) > self._max_rss:
            return {"rss": rss}
        return {}
