"""What it costs that the executors of a large fleet report their presence."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.arena import Arena, SampleFailed
from benchmarks.figures import AtMost, Line, Sample
from benchmarks.rows.fleets import server_share
from benchmarks.rows.row import Row
from benchmarks.worker import Worker
from fennelq.broker.keys import AppKeys

_START_SECONDS = 120.0
_BEAT, _LEASE = 3.75, 15.0
_SLOWEST = 1.2


@dataclass(frozen=True)
class Presence(Row):
    """Only the presence of executors, by the duty itself at its real rate; without the executors, of which so many do
    not fit a small machine. The traffic includes the executors that read the facts of all others from time to time."""

    name = "presence"
    lines = (
        Line("presence of executors: traffic", "bytes_per_s", "B/s", AtMost(1_000_000)),
        Line("  calls per executor", "calls_per_s", "1/s", digits=2),
        Line("  of five times as many: traffic", "more_bytes_per_s", "B/s"),
        Line("  of five times as many: server", "more_percent", "% of a core", AtMost(5), digits=1),
    )
    with_floor = False
    most_repeats = 1
    executors: int = 2_000
    more: int = 10_000
    """Five times as many."""
    settle: float = 15.0
    seconds: float = 30.0

    def measure(self, arena: Arena) -> Sample:
        with self._present(arena, self.executors):
            some_bytes, calls, _ = self._rates(arena)
        with self._present(arena, self.more):
            more_bytes, more_calls, share = self._rates(arena)
        self._check(calls, self.executors)
        self._check(more_calls, self.more)
        return Sample(
            {
                "bytes_per_s": some_bytes,
                "calls_per_s": calls / self.executors,
                "more_bytes_per_s": more_bytes,
                "more_percent": share * 100,
            }
        )

    @contextmanager
    def _present(self, arena: Arena, executors: int) -> Generator[Worker]:
        arena.server.ask("FLUSHALL")
        alive = AppKeys("bench")["alive"]
        with arena.presences(executors) as worker:
            arena.wait(
                worker, _START_SECONDS, "presence", lambda: arena.server.ask("ZCARD", alive) >= executors
            )
            time.sleep(self.settle)
            yield worker

    def _check(self, calls: float, executors: int) -> None:
        """Raises SampleFailed when the executors report more rarely than they mean to: then the machine is too slow. An
        executor reports with every beat. From a thousand executors on, the interval grows with their number, up to two
        leases."""
        interval = min(_BEAT * max(1.0, executors / 1000), 2 * _LEASE)
        if calls / executors * interval * _SLOWEST < 1:
            raise SampleFailed(
                f"{calls / executors:.3f} reports/s per executor, and not {1 / interval:.3f}: "
                f"the machine is too slow for {executors}"
            )

    def _rates(self, arena: Arena) -> tuple[float, float, float]:
        """Bytes and scripts per second, and the share of a core."""
        server = arena.server
        traffic, scripts = server.net_bytes, server.scripts
        share = server_share(arena, self.seconds)
        return (server.net_bytes - traffic) / self.seconds, (server.scripts - scripts) / self.seconds, share
