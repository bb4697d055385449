"""Ends an executor that has started enough jobs, has too many stuck slots, or grown too large.

It drains first; a fresh one takes its place.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from fennelq import log
from fennelq.worker.running.slots import Slots

_logger = log.get("fennelq.worker")
_LOOK_EVERY = 1.0


class Recycler:
    """Looks at the work, the stuck slots and the size of its own process."""

    name = "recycler"

    def __init__(
        self,
        slots: Slots,
        *,
        max_stuck: int | None,
        max_rss: int | None,
        recycle: Callable[[], None],
        rss: Callable[[], int] | None = None,
    ) -> None:
        """`max_stuck` None is half of the slots."""
        self._slots, self._max_rss, self._recycle = slots, max_rss, recycle
        # `-c` may be lower than the setting that max_stuck was checked against.
        self._max_stuck = slots.count // 2 if max_stuck is None else min(max_stuck, slots.count - 1)
        self._rss = rss or resident_bytes
        self._recycled = False
        self.woken = slots.spent

    async def tick(self) -> float:
        """Stop the executor when it is time."""
        reason = {} if self._recycled else self._reason()
        if reason:
            self._recycled = True
            _logger.warning("executor_recycled", **reason)
            self._recycle()
        return _LOOK_EVERY

    def _reason(self) -> dict[str, int]:
        if self._slots.left <= 0:
            return {"jobs": self._slots.started}
        if self._slots.stuck > self._max_stuck:
            return {"stuck": self._slots.stuck, "of": self._slots.count}
        # One that is too large from the beginning does something all the same, or nothing would ever be done.
        if self._max_rss is not None and self._slots.started and (rss := self._rss()) > self._max_rss:
            return {"rss": rss}
        return {}


def resident_bytes() -> int:
    """Memory this process occupies now."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import resource
    import sys

    # Elsewhere only the peak is known: in bytes on macOS, in kilobytes on the BSDs.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
