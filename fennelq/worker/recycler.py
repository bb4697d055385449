"""Ends an executor that has done enough jobs, or grown too large. It drains first; a fresh one takes its place."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from fennelq import log

_logger = log.get("fennelq.worker")
_LOOK_EVERY = 1.0


class Recycler:
    """Looks at the size and the work of its own process."""

    name = "recycler"

    def __init__(
        self,
        *,
        max_jobs: int | None,
        max_rss: int | None,
        done: Callable[[], int],
        stop: Callable[[], None],
        rss: Callable[[], int] | None = None,
    ) -> None:
        self._max_jobs, self._max_rss, self._done, self._stop = max_jobs, max_rss, done, stop
        self._rss = rss or resident_bytes

    async def tick(self) -> float:
        """Stop the executor when it is time."""
        done = self._done()
        if self._max_jobs is not None and done >= self._max_jobs:
            self._recycle(jobs=done)
        elif self._max_rss is not None and (rss := self._rss()) > self._max_rss:
            self._recycle(rss=rss)
        return _LOOK_EVERY

    def _recycle(self, **why: int) -> None:
        _logger.info("executor_recycled", **why)
        self._stop()


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
