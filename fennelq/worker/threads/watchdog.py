"""Detects a blocked loop, and logs the task, file and line that block it; after `stall_timeout` asks for a successor.

It runs in a thread, because a blocked loop cannot detect this itself. It also detects that the thread that renews the
leases has died, and when the watchdog itself fails, it asks for a successor as well.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType

from fennelq import clock, log
from fennelq.worker.bus import ExecutorGivenUp
from fennelq.worker.processes.signals import Signal
from fennelq.worker.stacks import frames_of_threads, outwards, package_of, place_of, users_place
from fennelq.worker.state import State
from fennelq.worker.vitals import Blockage

_logger = log.get("fennelq.watchdog")

TICK = 0.25
_WORTH_A_FACT = 0.5
"""Seconds after the last turn of the loop. Half of them may be the pause between two turns."""
_WORTH_A_WARNING = 1.0


class Watchdog:
    """Watches the loop on which it was started."""

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
        self._seen = clock.monotonic() - TICK  # the time since its construction does not count as lag
        self._tick()
        self._thread.start()

    def end(self) -> None:
        """Stop watching."""
        self._ended.set()

    def lag(self) -> float:
        """Seconds since the loop last ran a callback of this watchdog."""
        return clock.monotonic() - self._seen

    def _tick(self) -> None:
        before, self._seen = self._seen, clock.monotonic()
        self._state.vitals.note_lag(max(0.0, self._seen - before - TICK))
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
        """Look once; False when it has asked for a successor."""
        lag = self.lag()
        if lag > self._stall_timeout:
            self._give_up(Signal.STALLED, "loop_stalled", seconds=round(lag, 1))
            return False
        if self._state.lease.dead:
            self._give_up(Signal.HEARTLESS, "heartbeat_died")
            return False
        with suppress(Exception):  # a fact for people is not worth an executor
            self._note(lag)
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

    def _note(self, lag: float) -> None:
        """Record what blocks the loop. Every look does this anew, because a job may block it at several places."""
        vitals = self._state.vitals
        if lag < _WORTH_A_FACT:
            vitals.note_works()
            return
        task = asyncio.current_task(self._loop)
        held = self._state.held.of_task(task)
        at = users_place(frames_of_threads().get(self._loop_thread), package_of(self._state.app, held))
        job = self._state.held.job_of(task) or (task.get_name() if task is not None else "no job")
        vitals.note_blocked(Blockage(at, job, lag), stand_in=lag >= _WORTH_A_WARNING)

    def _where(self) -> dict[str, object]:
        frame = frames_of_threads().get(self._loop_thread)
        task = asyncio.current_task(self._loop)
        facts: dict[str, object] = {
            "at": _place(frame),
            "job": self._state.held.job_of(task) or "no job",
        }
        if task is not None and facts["job"] == "no job":
            # Parts of the executor, services of plugins and async subscribers have named their tasks.
            facts["part"] = task.get_name()
        return facts

    def _give_up(self, signal: Signal, event: str, **facts: object) -> None:
        try:
            # Log first, because the supervisor kills this process as soon as it receives the signal. Logging cannot
            # take long, even when stderr blocks.
            _logger.critical(event, **facts, **self._where())
            _logger.critical("stacks", stack="".join(_stacks()))
        finally:
            self._ask_for_successor(signal)

    def _ask_for_successor(self, signal: Signal) -> None:
        """Let the leases run out, and ask the supervisor for a successor. The supervisor might not receive the signal,
        so the executor also ends itself if its loop still runs."""
        self._state.lease.end()
        try:
            # Send the signal first, because the process may end as soon as its loop receives the fact.
            self._state.signals.send(signal)
        finally:
            with suppress(RuntimeError):
                self._state.bus.publish_from_thread(ExecutorGivenUp())


def _stacks() -> Iterator[str]:
    """The stacks of all threads, innermost calls first. They have no source lines, because reading files may block.
    faulthandler is not used, because it writes to stderr itself, which may block for ever."""
    for ident, innermost in frames_of_threads().items():
        yield f"Thread {ident:#x} (most recent call first):\n"
        for frame in outwards(innermost):
            yield f'  File "{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_name}\n'
        yield "\n"


def _place(frame: FrameType | None) -> str:
    return "unknown" if frame is None else place_of(frame)
