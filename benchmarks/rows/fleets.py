"""What several rows about fleets of executors need."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from benchmarks.arena import Arena
from benchmarks.contestant import Fleet
from benchmarks.worker import Worker
from fennelq.broker.keys import queue_keys

ROUND_SECONDS = 15.0
"""The longest interval of the duties that executors share: a lease. An executor that has started counts the others with
its next beat, and then its intervals grow, so after two rounds all of them have settled."""
_START_SECONDS = 120.0


@contextmanager
def asleep(arena: Arena, fleet: Fleet, settle: float) -> Generator[Worker]:
    """A fleet whose executors all sleep at all their queues, for this many seconds by now."""
    with arena.fleet(fleet) as worker:
        arena.wait(worker, _START_SECONDS, "sleep", lambda: all_sleep(arena, fleet.queues, fleet.executors))
        time.sleep(settle)
        yield worker


def all_sleep(arena: Arena, queues: Sequence[str], executors: int) -> bool:
    """Whether so many executors sleep at each of these queues."""
    return all(arena.server.ask("SCARD", queue_keys("bench", queue)["idle"]) >= executors for queue in queues)


def server_share(arena: Arena, seconds: float) -> float:
    """Of one core, while nothing is sent: 0 to 1."""
    cpu, began = arena.server.cpu_seconds, time.monotonic()
    time.sleep(seconds)
    return (arena.server.cpu_seconds - cpu) / (time.monotonic() - began)
