"""A thousand coroutines of one process waiting for a result each."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.arena import Arena
from benchmarks.figures import AtMost, Line, Sample, percentile
from benchmarks.rows.row import Row


@dataclass(frozen=True)
class Waits(Row):
    """The jobs start when all waiters wait, and end over some two seconds; each returns when it ended."""

    name = "waits"
    lines = (
        Line("1,000 concurrent get(): connections", "connections", "", AtMost(20), AtMost(4)),
        Line("  p99 after the job's end", "p99_ms", "ms", AtMost(2), AtMost(1), digits=2),
        Line("  client CPU per wait", "cpu_us", "us", AtMost(80), AtMost(40), digits=1),
    )
    waits: int = 1_000
    seconds: float = 0.064
    """One job's mean duration: 32 at a time, 1,000 of them, two seconds."""

    def measure(self, arena: Arena) -> Sample:
        with arena.worker() as worker:
            arena.warm(worker)
            arena.tally.close_gate()
            before = arena.server.connections_so_far
            answer = arena.ask(
                "concurrent_waits", waits=self.waits, seconds=self.seconds, tally=str(arena.tally.path)
            )
            connections = arena.server.connections_so_far - before
        lags: list[float] = answer["lag_ms"]
        figures = {
            "connections": connections,
            "p50_ms": percentile(lags, 0.5),
            "p99_ms": percentile(lags, 0.99),
        }
        return Sample({**figures, "cpu_us": answer["cpu_us"]}, {"lag_ms": lags})
