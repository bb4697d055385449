"""Notices when the loop is blocked, and logs by which task, file and line; in the end it asks for a successor.

It runs in a thread of its own, because a blocked loop notices nothing. It also notices when the thread that renews the
leases has died, and a watchdog that dies itself asks for a successor as well.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from fennelq import clock, log
from fennelq.worker.processes import signs

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
        stalled: Callable[[bytes], None],
        heartless: Callable[[], bool] = lambda: False,
    ) -> None:
        """`heartless` tells whether the heartbeat's thread has died."""
        self._stall_timeout = stall_timeout
        self._running, self._alive, self._stalled = running, alive, stalled
        self._heartless = heartless
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
        try:
            while not self._ended.wait(TICK):
                if not self.look():
                    return
        except BaseException:
            self._stalled(signs.HEARTLESS)
            raise

    def look(self) -> bool:
        """Look once; False when the executor is given up."""
        lag = self.lag()
        if lag > self._stall_timeout:
            self._give_up(signs.STALLED, "loop_stalled", seconds=round(lag, 1))
            return False
        if self._heartless():
            self._give_up(signs.HEARTLESS, "heartbeat_died")
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

    def _give_up(self, sign: bytes, event: str, **facts: object) -> None:
        try:
            # Logged first, because the supervisor kills this process as soon as it hears of it. It cannot take long.
            _logger.critical(event, **facts, **self._where())
            _logger.critical("stacks", stack="".join(_stacks()))
        finally:
            self._stalled(sign)


def _stacks() -> Iterator[str]:
    """The stacks of all threads, innermost calls first. Source lines are not shown: reading files may block. And
    faulthandler, which could do this, writes to stderr by itself, which may block for ever."""
    frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
    for ident, innermost in frames.items():
        yield f"Thread {ident:#x} (most recent call first):\n"
        frame: FrameType | None = innermost
        while frame is not None:
            yield f'  File "{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_name}\n'
            frame = frame.f_back
        yield "\n"


def _place(frame: FrameType | None) -> str:
    return (
        "unknown"
        if frame is None
        else f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
    )
