"""Ends a process together with its parent, even when the parent is killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import cache

_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends; on Linux. Elsewhere, the end of a connection does it."""
    if (prctl := _prctl()) is not None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:  # it had ended before the call
            os._exit(1)


@cache
def _prctl() -> Callable[[int, int], object] | None:
    if sys.platform != "linux":
        return None
    try:
        import ctypes

        return ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return None
