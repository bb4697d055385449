"""How fast jobs are sent while no worker runs."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.arena import Arena
from benchmarks.figures import AtLeast, Line, Sample
from benchmarks.rows.row import Row


@dataclass(frozen=True)
class Enqueue(Row):
    name = "enqueue"
    lines = (
        Line("enqueue, one after the other", "alone_per_s", "jobs/s", AtLeast(8_000), AtLeast(10_000)),
        Line(
            "enqueue, 100 concurrent delay()", "concurrent_per_s", "jobs/s", AtLeast(45_000), AtLeast(80_000)
        ),
        Line("enqueue, bulk of 10,000", "bulk_per_s", "jobs/s", AtLeast(70_000), AtLeast(110_000)),
        Line("  client CPU per job, alone", "alone_us", "us", digits=1),
        Line("  client CPU per job, concurrent", "concurrent_us", "us", digits=1),
        Line("  client CPU per job, bulk", "bulk_us", "us", digits=1),
        Line("  server CPU per job, alone", "alone_server_us", "us", digits=1),
        Line("  server CPU per job, concurrent", "concurrent_server_us", "us", digits=1),
        Line("  server CPU per job, bulk", "bulk_server_us", "us", digits=1),
    )
    with_peers = True
    alone: int = 5_000
    concurrent: int = 30_000
    width: int = 100
    bulk: int = 60_000

    def measure(self, arena: Arena) -> Sample:
        jobs = arena.contestant.jobs
        alone = self._send(arena, "alone", "send_alone", count=jobs(self.alone))
        concurrent = self._send(
            arena, "concurrent", "send_concurrently", count=jobs(self.concurrent), width=self.width
        )
        bulk = self._send(arena, "bulk", "send_in_bulk", count=jobs(self.bulk))
        return Sample({**alone, **concurrent, **bulk})

    def _send(self, arena: Arena, way: str, action: str, *, count: int, **sizes: int) -> dict[str, float]:
        cpu = arena.server.cpu_seconds
        answer = arena.ask(action, count=count, **sizes)
        server_us = (arena.server.cpu_seconds - cpu) / count * 1e6
        return {
            f"{way}_per_s": answer["jobs_per_s"],
            f"{way}_us": answer["client_us"],
            f"{way}_server_us": server_us,
        }
