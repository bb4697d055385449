"""Does the work of an init process, for a worker that is PID 1 of a container."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Collection
from contextlib import suppress
from types import FrameType

_PR_GET_CHILD_SUBREAPER = 37


def end_on_sigterm() -> None:
    """As PID 1, end on SIGTERM until the supervisor handles it.

    The kernel delivers a signal to PID 1 only if PID 1 has a handler for it. So a SIGTERM during a long import would be
    lost, and the worker would start and later be killed while it runs jobs. Other processes do not need a handler.
    """
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, _end)


def adopts_orphans() -> bool:
    """Whether the kernel makes orphaned descendants children of this process: it does for PID 1 and a subreaper."""
    return os.getpid() == 1 or (sys.platform == "linux" and _is_subreaper())


def reap(own: Collection[int]) -> int:
    """Collect the exit statuses of all children that have ended, except those in `own`, whose starter collects them.
    Returns how many there were. Without this, each orphan that ends stays in the process table as a zombie."""
    reaped = 0
    with suppress(ChildProcessError):  # this process has no children
        while (pid := _ended_child()) and pid not in own:
            os.waitpid(pid, os.WNOHANG)
            reaped += 1
    return reaped


def _end(number: int, _: FrameType | None) -> None:
    # An exception would be reported as an error of the app, which is being imported.
    os._exit(128 + number)


def _is_subreaper() -> bool:
    import ctypes

    answer = ctypes.c_int(0)
    ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0)
    return bool(answer.value)


def _ended_child() -> int:
    """The pid of a child that has ended, without collecting its status; 0 when no child has ended."""
    ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return ended.si_pid if ended is not None else 0
