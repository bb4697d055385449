"""The shop, with exit hooks that write to the file `HOOKED_FILE`. With `HOOKED_HANGS`, one hangs in executors."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from pathlib import Path

from tests.worker import shop

VARIABLE, HANGS = "HOOKED_FILE", "HOOKED_HANGS"


def note(text: str) -> None:
    """One line, with the process that writes it."""
    with Path(os.environ[VARIABLE]).open("a") as file:
        file.write(f"{os.getpid()} {text}\n")


def first() -> None:
    """Runs last."""
    note("first")


def failing() -> None:
    """Fails, as the hook of a library does whose server is gone."""
    note("failing")
    raise ConnectionError("gone")


def main_thread() -> None:
    """Notes where it runs, and hangs if asked to. It runs before the others."""
    note("main thread" if threading.current_thread() is threading.main_thread() else "another thread")
    if HANGS in os.environ and "fennelq.worker.processes.supervisor" not in sys.modules:
        threading.Event().wait()


if VARIABLE in os.environ:
    atexit.register(first)
    atexit.register(failing)
    atexit.register(main_thread)

app = shop.app_of()
