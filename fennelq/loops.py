"""Calls that block must not stop an event loop: in one they raise an error, which names the form to await."""

from __future__ import annotations

import asyncio
import sys
import warnings
from weakref import WeakSet

from fennelq.errors import ConfigurationError

running_loop = asyncio._get_running_loop
"""The loop that runs on this thread, or None; unlike `asyncio.get_running_loop` it is cheap where there is none."""
executing: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
"""The loops on which executors of this process run jobs."""


def check_loop(call: str, instead: str) -> None:
    """Call this before blocking: it warns on a running event loop, and raises ConfigurationError on an executor's.

    A warning, because a notebook or a shell has a loop that nothing else needs. On an executor's loop a blocked call
    stops every other job and the messages that would end it.
    """
    loop = running_loop()
    if loop is None:
        return
    if loop in executing:
        raise ConfigurationError(
            f"{call}(…) would block the event loop of this worker, and every job that runs on it: use `{instead}`, "
            "or make the task a plain `def`, which runs in a thread"
        )
    warnings.warn(
        f"{call}(…) blocks the event loop: use `{instead}`", RuntimeWarning, stacklevel=_depth_of_caller()
    )


def _depth_of_caller() -> int:
    """The stack level, for `warnings.warn` in `check_loop`, of the code that called into fennelq."""
    depth, frame = 1, sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        depth, frame = depth + 1, frame.f_back
    return depth


def _is_ours(module: str) -> bool:
    return module == "fennelq" or module.startswith("fennelq.")
