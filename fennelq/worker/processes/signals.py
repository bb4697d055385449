"""The signals that an executor sends to its supervisor through a pipe, one byte each."""

from __future__ import annotations

import os
from contextlib import suppress
from enum import Enum


class Signal(bytes, Enum):
    """The reports of an executor."""

    IMPORTED = b"i"
    """The app is imported, and its lifespan is entered. Before this signal, the supervisor does not kill a silent
    executor: both may take long."""
    ALIVE = b"."
    """The loop is not blocked."""
    READY = b"+"
    """Redis replies, and jobs are read."""
    NOT_READY = b"-"
    """Redis does not reply."""
    STALLED = b"!"
    """The loop has been blocked for too long: replace this executor."""
    HEARTLESS = b"h"
    """The thread that renews the leases has died, or the one that watches it: replace this executor."""
    QUARANTINE = b"q"
    """Jobs wait in quarantine."""


class SignalPipe:
    """The executor's end of the pipe; with -1 signals are discarded. Any thread may send."""

    def __init__(self, pipe: int = -1) -> None:
        self._pipe = pipe
        if pipe >= 0:
            # A supervisor that is suspended must not block the threads that send.
            os.set_blocking(pipe, False)

    def send(self, *signals: Signal) -> None:
        """Send these in one write. Errors are ignored: the lifeline reports the end of the supervisor."""
        if self._pipe >= 0:
            with suppress(OSError):
                os.write(self._pipe, b"".join(signals))
