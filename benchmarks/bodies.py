"""The task bodies all contestants run: the same functions, registered with each library in its own way.

Every body is annotated, returns a value (so that results are really stored) and counts itself in the tally as
its last act. In a process without a tally, the client's, the bodies are only names.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from functools import cache
from pathlib import Path

from benchmarks.tally import TALLY_VARIABLE, Counter

_threads = threading.Lock()


@cache
def _shared_counter() -> Counter:
    return Counter(Path(os.environ[TALLY_VARIABLE]))


counter = _shared_counter() if TALLY_VARIABLE in os.environ else None


async def noop(number: int) -> int:
    """The smallest job there is."""
    assert counter is not None
    if counter.waiting:
        await counter.admitted()
    counter.count()
    return number


async def nap(seconds: float) -> int:
    """A job that waits for something else."""
    assert counter is not None
    if counter.waiting:
        await counter.admitted()
    await asyncio.sleep(seconds)
    counter.count()
    return 1


async def swallow(blob: str) -> int:
    """A job with a large argument."""
    assert counter is not None
    if counter.waiting:
        await counter.admitted()
    counter.count()
    return len(blob)


async def stamp(seconds: float) -> int:
    """A job that records when it ended, by the monotonic clock; lasts ``seconds``, give or take half."""
    assert counter is not None
    if counter.waiting:
        await counter.admitted()
    await asyncio.sleep(random.uniform(0.5, 1.5) * seconds)
    counter.count()
    return time.monotonic_ns()


def noop_blocking(number: int) -> int:
    """``noop`` for libraries whose tasks are plain functions in threads."""
    assert counter is not None
    if counter.waiting:
        counter.admitted_blocking()
    with _threads:
        counter.count()
    return number
