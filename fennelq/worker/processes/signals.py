"""The signals an executor sends to its supervisor, one byte each, through a pipe."""

from __future__ import annotations

import os
from contextlib import suppress
from enum import Enum


class Signal(bytes, Enum):
    """What an executor reports."""

    IMPORTED = b"i"
    """The app is imported. Before this signal silence means nothing: an import may take any time."""
    ALIVE = b"."
    """The loop moves."""
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
    """The executor's end of the pipe; -1 is none. Any thread may send."""

    def __init__(self, pipe: int = -1) -> None:
        self._pipe = pipe
        if pipe >= 0:
            # A supervisor that is suspended must not block the threads that send.
            os.set_blocking(pipe, False)

    def send(self, *signals: Signal) -> None:
        """Send these together. A supervisor that is gone receives nothing; the lifeline reports its end."""
        if self._pipe >= 0:
            with suppress(OSError):
                os.write(self._pipe, b"".join(signals))
