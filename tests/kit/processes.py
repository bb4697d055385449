"""Asks whether a process still runs."""

from __future__ import annotations

import psutil


def is_alive(process: psutil.Process | int) -> bool:
    """Whether the process still executes; one that is dead and not yet collected by its parent does not. It may end
    between any two questions."""
    try:
        process = psutil.Process(process) if isinstance(process, int) else process
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
