"""Checks that blocking calls do not stop an event loop. Their errors and warnings name the call to await instead."""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from fennelq.errors import ConfigurationError

running_loop = asyncio._get_running_loop
"""The loop that runs on this thread, or None. Without a loop it is cheaper than `asyncio.get_running_loop`."""
executing: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()
"""The loops on which executors of this process run jobs, and how many do."""


@contextmanager
def executes() -> Generator[None]:
    """In this block, the running loop runs jobs. Blocks of several executors may overlap, in tests for example."""
    loop = asyncio.get_running_loop()
    executing[loop] = executing.get(loop, 0) + 1
    try:
        yield
    finally:
        executing[loop] -= 1
        if not executing[loop]:
            del executing[loop]


def check_loop(call: str, instead: str) -> None:
    """Call this before blocking. It warns on a running event loop, and raises ConfigurationError on an executor's loop.

    Elsewhere it only warns, because a notebook or a shell runs a loop that no other code needs. On an executor's loop,
    a blocked call stops every other job, and also the messages that the call waits for.
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
    """For `warnings.warn` in `check_loop`: the stack level of the code that called fennelq."""
    depth, frame = 1, sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        depth, frame = depth + 1, frame.f_back
    return depth


def _is_ours(module: str) -> bool:
    return module == "fennelq" or module.startswith("fennelq.")
