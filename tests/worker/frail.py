"""The shop, with a thread that dies when a test asks for it: in the process that finds the file `FRAIL_FILE` first."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fennelq.worker.threads.heartbeat import Heartbeat
from fennelq.worker.threads.watchdog import Watchdog
from tests.worker import shop

VARIABLE = "FRAIL_FILE"
"""The file; its content is the name of the thread."""


def die_if_asked(thread: str) -> None:
    """Ends the calling thread, silently."""
    file = Path(os.environ[VARIABLE])
    if file.exists() and file.read_text() == thread:
        file.unlink()
        raise SystemExit


def frail(kind: Any, method: str, thread: str) -> None:
    """Let a method ask first."""
    whole = getattr(kind, method)

    def asking(self: Any) -> Any:
        die_if_asked(thread)
        return whole(self)

    setattr(kind, method, asking)


if VARIABLE in os.environ:
    frail(Heartbeat, "beat", "heartbeat")
    frail(Watchdog, "look", "watchdog")

app = shop.app_of()
