"""A thousand coroutines of one process waiting for a result each."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass

import psutil

from benchmarks.arena import Arena
from benchmarks.figures import AtMost, Line, Sample, percentile
from benchmarks.rows.row import Row

_POLL_SECONDS = 0.05


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
            client = arena.start_client(
                "concurrent_waits", waits=self.waits, seconds=self.seconds, tally=str(arena.tally.path)
            )
            connections = _most_connections(client, arena.server.port)
            answer = arena.answer_of(client, "concurrent_waits")
        lags: list[float] = answer["lag_ms"]
        figures = {
            "connections": connections,
            "p50_ms": percentile(lags, 0.5),
            "p99_ms": percentile(lags, 0.99),
        }
        return Sample({**figures, "cpu_us": answer["cpu_us"]}, {"lag_ms": lags})


def _most_connections(client: subprocess.Popen[str], port: int) -> int:
    """The most connections to the server that the client held at once, seen from outside while it runs."""
    most = 0
    process = psutil.Process(client.pid)
    while client.poll() is None:
        try:
            held = process.net_connections("tcp")
        except psutil.Error:
            break
        most = max(most, sum(1 for one in held if one.raddr and one.raddr.port == port))
        time.sleep(_POLL_SECONDS)
    return most
