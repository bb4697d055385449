"""Asks which processes still run."""

from __future__ import annotations

import psutil

from tests.kit.spawn import Process


def is_alive(process: psutil.Process | int) -> bool:
    """Whether the process still executes; one that is dead and not yet collected by its parent does not. It may end
    between any two questions."""
    try:
        process = psutil.Process(process) if isinstance(process, int) else process
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def executors(worker: Process) -> list[psutil.Process]:
    """The executor processes of a worker. One of them may end between any two questions: the others are still there."""
    try:
        return [child for child in psutil.Process(worker.pid).children() if _is_executor(child)]
    except psutil.NoSuchProcess:
        return []


def _is_executor(process: psutil.Process) -> bool:
    try:
        return "fennelq.worker.processes.process" in process.cmdline()
    except psutil.NoSuchProcess:
        return False
