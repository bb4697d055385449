"""What a job costs that wakes one of very many executors."""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.arena import Arena
from benchmarks.contestant import Fleet
from benchmarks.figures import AtMost, Line, Sample, percentile
from benchmarks.rows.fleets import asleep, server_share
from benchmarks.rows.row import Row


@dataclass(frozen=True)
class Woken:
    """What the jobs of one fleet took."""

    server_us: float
    """CPU of the server per job, without the CPU that the idle fleet costs in the same time."""
    lags_ms: list[float]

    @property
    def p50_ms(self) -> float:
        return percentile(self.lags_ms, 0.5)


@dataclass(frozen=True)
class Sleepers(Row):
    """Jobs one after the other, for a fleet that sleeps on one queue; and the same for one executor."""

    name = "sleepers"
    lines = (
        Line("many executors asleep: server CPU per job", "server_us", "us", digits=1),
        Line("  with one executor", "one_server_us", "us", digits=1),
        Line("  many / one", "of_one", "x", AtMost(1.3), digits=2),
        Line("  enqueue -> start, p50", "p50_ms", "ms", digits=2),
        Line("  more than with one executor", "later_ms", "ms", AtMost(0.15), digits=2),
        Line("  server, while the fleet is idle", "idle_percent", "% of a core", digits=1),
    )
    with_floor = False
    most_repeats = 2
    executors: int = 1_024
    jobs: int = 2_000
    settle: float = 30.0
    idle: float = 15.0
    pause: float = 0.002
    """Seconds between the end of a job and the next one: time to write the end and to fall asleep again."""

    def measure(self, arena: Arena) -> Sample:
        one, _ = self._wake(arena, Fleet(1), settle=2.0)
        many, idle = self._wake(arena, Fleet(self.executors), self.settle)
        figures = {
            "server_us": many.server_us,
            "one_server_us": one.server_us,
            "of_one": many.server_us / one.server_us,
            "p50_ms": many.p50_ms,
            "later_ms": many.p50_ms - one.p50_ms,
            "idle_percent": idle * 100,
        }
        return Sample(figures, {"ms": many.lags_ms, "one_ms": one.lags_ms})

    def _wake(self, arena: Arena, fleet: Fleet, settle: float) -> tuple[Woken, float]:
        with asleep(arena, fleet, settle):
            arena.tally.open_gate()
            self._send(arena, self.jobs // 10)
            idle = server_share(arena, self.idle)
            cpu, began = arena.server.cpu_seconds, time.monotonic()
            lags = self._send(arena, self.jobs)
            seconds = time.monotonic() - began
            cpu = arena.server.cpu_seconds - cpu - idle * seconds
        return Woken(cpu / self.jobs * 1e6, lags), idle

    def _send(self, arena: Arena, jobs: int) -> list[float]:
        answer = arena.ask("lone_jobs", count=jobs, tally=str(arena.tally.path), pause=self.pause)
        lags: list[float] = answer["ms"]
        return lags
