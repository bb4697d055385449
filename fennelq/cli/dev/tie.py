"""Ties a process to the parent that has started it, on every platform and however the parent ends."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from typing import Final

READY: Final = b"+"
_PATIENCE: Final = 15.0
"""Seconds to end after the parent. A worker kills an executor that is stuck earlier."""


def tie(parent: int) -> None:
    """End this process when the parent has ended. `parent` is a socket whose other end only the parent holds: the
    kernel closes it, even if the parent was killed."""
    threading.Thread(target=_watch, args=(parent,), name="fennelq-tie", daemon=True).start()


def report_ready(parent: int) -> None:
    """Tell the parent that this process does its work."""
    with suppress(OSError):
        os.write(parent, READY)


def _watch(parent: int) -> None:
    try:
        with suppress(OSError):
            os.read(parent, 1)
        # In order, if this process has a handler by now.
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(_PATIENCE)
    finally:
        os._exit(1)
