"""Notices when the loop is blocked, and logs by which task, file and line; in the end it asks for a successor.

It runs in a thread of its own, because a blocked loop notices nothing. It also notices when the thread that renews the
leases has died, and a watchdog that dies itself asks for a successor as well.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType

from fennelq import clock, log
from fennelq.worker.bus import ExecutorGivenUp
from fennelq.worker.processes.signals import Signal
from fennelq.worker.state import State

_logger = log.get("fennelq.watchdog")

TICK = 0.25
_WORTH_A_WARNING = 1.0


class Watchdog:
    """Watches the loop it is started on."""

    def __init__(self, state: State) -> None:
        self._state, self._stall_timeout = state, state.settings.stall_timeout
        self._ended = threading.Event()
        self._seen = clock.monotonic()
        self._warned = False
        self._thread = threading.Thread(target=self._watch, name="fennelq-watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch the running loop."""
        self._loop = asyncio.get_running_loop()
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
            self._loop.call_later(TICK, self._tick)

    def _watch(self) -> None:
        try:
            while not self._ended.wait(TICK):
                if not self.look():
                    return
        except BaseException:
            self._ask_for_successor(Signal.HEARTLESS)
            raise

    def look(self) -> bool:
        """Look once; False when the executor is given up."""
        lag = self.lag()
        if lag > self._stall_timeout:
            self._give_up(Signal.STALLED, "loop_stalled", seconds=round(lag, 1))
            return False
        if self._state.lease.dead:
            self._give_up(Signal.HEARTLESS, "heartbeat_died")
            return False
        if lag < _WORTH_A_WARNING:
            self._report_alive()
        elif not self._warned:
            self._warned = True
            self._warn(lag)
        if lag < TICK * 2:
            self._warned = False
        return True

    def _report_alive(self) -> None:
        ready = self._state.connected and self._state.lease.answered
        self._state.signals.send(Signal.ALIVE, Signal.READY if ready else Signal.NOT_READY)

    def _warn(self, lag: float) -> None:
        _logger.warning("loop_blocked", seconds=round(lag, 1), **self._where())

    def _where(self) -> dict[str, object]:
        # Documented, in spite of its name: the only way to see another thread's stack.
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
        frame = frames.get(self._loop_thread)
        job = self._state.held.job_of(asyncio.current_task(self._loop))
        return {"at": _place(frame), "job": job or "no job"}

    def _give_up(self, signal: Signal, event: str, **facts: object) -> None:
        try:
            # Logged first, because the supervisor kills this process as soon as it receives
            # the signal. Logging cannot take long.
            _logger.critical(event, **facts, **self._where())
            _logger.critical("stacks", stack="".join(_stacks()))
        finally:
            self._ask_for_successor(signal)

    def _ask_for_successor(self, signal: Signal) -> None:
        """The executor is given up: let the leases run out, and ask for a successor. Should the loop still move, the
        executor falls over by itself, because a supervisor may not have received the signal."""
        self._state.lease.ended.set()
        with suppress(RuntimeError):
            self._state.bus.publish_from_thread(ExecutorGivenUp())
        self._state.signals.send(signal)


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
