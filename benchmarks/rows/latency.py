"""From ``delay()`` to the result in hand, on an idle system."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.arena import Arena
from benchmarks.figures import AtMost, Line, Sample, percentile
from benchmarks.rows.row import Row


@dataclass(frozen=True)
class Latency(Row):
    """A closed loop: the next job is sent when the last one's result has arrived."""

    name = "latency"
    lines = (
        Line("idle latency enqueue -> result, p50", "p50_ms", "ms", AtMost(0.7), AtMost(0.5), digits=2),
        Line("  p99", "p99_ms", "ms", AtMost(1.4), AtMost(0.8), digits=2),
    )
    with_peers = True
    samples: int = 500
    budget: float = 10.0
    """Seconds after which a slow contestant has shown enough."""

    def measure(self, arena: Arena) -> Sample:
        with arena.worker() as worker:
            arena.warm(worker)
            taken = arena.ask("round_trips", samples=self.samples, budget=self.budget)["ms"]
        return Sample({"p50_ms": percentile(taken, 0.5), "p99_ms": percentile(taken, 0.99)}, {"ms": taken})
