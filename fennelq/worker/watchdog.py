"""Notices when the loop is blocked: says by which task, file and line; and in the end asks to be replaced.

It runs in a thread of its own, because a blocked loop notices nothing.
"""

from __future__ import annotations

import asyncio
import faulthandler
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from fennelq import clock, log

_logger = log.get("fennelq.watchdog")

TICK = 0.25
_WORTH_SAYING = 1.0


class Watchdog:
    """Watches the loop it is started on."""

    def __init__(
        self,
        *,
        stall_timeout: float,
        running: Callable[[asyncio.Task[Any] | None], str | None],
        alive: Callable[[], None],
        stalled: Callable[[], None],
    ) -> None:
        self._stall_timeout = stall_timeout
        self._running, self._alive, self._stalled = running, alive, stalled
        self._ended = threading.Event()
        self._seen = clock.monotonic()
        self._said = False
        self._thread = threading.Thread(target=self._watch, name="fennelq-watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch the running loop."""
        self.loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._tick()
        self._thread.start()

    def end(self) -> None:
        """Watch no more."""
        self._ended.set()

    def lag(self) -> float:
        """Seconds since the loop last moved."""
        return clock.monotonic() - self._seen

    def _tick(self) -> None:
        self._seen = clock.monotonic()
        if not self._ended.is_set():
            self.loop.call_later(TICK, self._tick)

    def _watch(self) -> None:
        while not self._ended.wait(TICK):
            if not self.look():
                return

    def look(self) -> bool:
        """Look once; False when the loop is given up."""
        lag = self.lag()
        if lag > self._stall_timeout:
            self._give_up(lag)
            return False
        if lag < _WORTH_SAYING:
            self._alive()
        elif not self._said:
            self._said = True
            self._say(lag)
        if lag < TICK * 2:
            self._said = False
        return True

    def _say(self, lag: float) -> None:
        _logger.warning("loop_blocked", seconds=round(lag, 1), **self._where())

    def _where(self) -> dict[str, object]:
        # Documented, in spite of its name: the only way to see another thread's stack.
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
        frame = frames.get(self._loop_thread)
        job = self._running(asyncio.current_task(self.loop))
        return {"at": _place(frame), "job": job or "no job"}

    def _give_up(self, lag: float) -> None:
        _logger.critical("loop_stalled", seconds=round(lag, 1), **self._where())
        faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        self._stalled()


def _place(frame: FrameType | None) -> str:
    return (
        "unknown"
        if frame is None
        else f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
    )
