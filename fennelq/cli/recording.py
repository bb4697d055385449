"""Runs the recorder of the history until a signal ends it, and shows how far it has come: in one line on a terminal,
otherwise in a log line each minute."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from fennelq import clock, log
from fennelq.cli import output
from fennelq.manage.history.documents import of_recorder
from fennelq.manage.history.recording import HistoryRecorder
from fennelq.manage.history.store import HistoryProgress
from fennelq.streams import is_terminal

if TYPE_CHECKING:
    from fennelq.app import App

_TERMINAL_EVERY: Final = 0.5
_LOG_EVERY: Final = 60.0
_ERASE: Final = "\r\x1b[K"

_logger = log.get("fennelq.history")


class Shown:
    """Shows the progress of a recorder, but not too often."""

    def __init__(self, *, quiet: bool) -> None:
        self._in_place = is_terminal(sys.stderr) and os.environ.get("TERM") != "dumb"
        self._quiet = quiet
        self._every = _TERMINAL_EVERY if self._in_place else _LOG_EVERY
        self._next = clock.monotonic() + self._every
        self._at, self._read = clock.monotonic(), 0

    def __call__(self, progress: HistoryProgress) -> None:
        """Called after each step of the recorder."""
        now = clock.monotonic()
        if self._quiet or now < self._next:
            return
        rate = round((progress.read - self._read) / max(0.001, now - self._at))
        self._at, self._read, self._next = now, progress.read, now + self._every
        if self._in_place:
            with suppress(OSError, ValueError):
                print(f"{_ERASE}{_words(progress)}, {rate:,} per second", end="", file=sys.stderr, flush=True)
        else:
            _logger.info("history_recorded", rate=rate, **of_recorder(progress))

    def close(self) -> None:
        """End the line."""
        if self._in_place and not self._quiet and self._read:
            with suppress(OSError, ValueError):
                print(_ERASE, end="", file=sys.stderr, flush=True)


def _words(progress: HistoryProgress) -> str:
    removed = f", {output.counted(progress.pruned, 'old row')} removed" if progress.pruned else ""
    missed = f", {progress.missed:,} missed" if progress.missed else ""
    return f"{output.counted(progress.recorded, 'job')} recorded{missed}{removed}"


async def record(app: App, recorder: HistoryRecorder, *, once: bool) -> HistoryProgress:
    """Record until SIGTERM or Ctrl-C, or with `once` until everything that waits is recorded."""
    _logger.info("history_started", app=app.name, history=recorder.where, redis=app.address.shown)
    with _ended_by_signals(recorder):
        await (recorder.drain() if once else recorder.run())
    _logger.info("history_stopped", **of_recorder(recorder.progress))
    return recorder.progress


@contextmanager
def _ended_by_signals(recorder: HistoryRecorder) -> Generator[None]:
    loop, signals = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)

    def stop() -> None:
        # A second signal ends the process at once: entries that were not acknowledged are read again.
        for one in signals:
            loop.remove_signal_handler(one)
        recorder.stop()

    for one in signals:
        loop.add_signal_handler(one, stop)
    try:
        yield
    finally:
        for one in signals:
            loop.remove_signal_handler(one)
