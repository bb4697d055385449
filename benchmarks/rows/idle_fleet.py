"""What a large fleet costs the server while there is nothing to do."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.arena import Arena
from benchmarks.contestant import Fleet
from benchmarks.figures import AtMost, Line, Sample
from benchmarks.rows.fleets import asleep, server_share
from benchmarks.rows.row import Row


@dataclass(frozen=True)
class IdleFleet(Row):
    """Executors that serve the same empty queues. Measured when they have counted each other, over a round of all
    duties but the slowest ones."""

    name = "idle_fleet"
    lines = (
        Line("idle executors x queues: server", "server_percent", "% of a core", AtMost(15), digits=1),
        Line("  connections per executor", "connections", "", AtMost(3), digits=2),
        Line("  round trips per executor", "trips_per_s", "1/s", digits=2),
        Line("  scripts per executor", "scripts_per_s", "1/s", digits=2),
        Line("  memory of the server per executor", "bytes", "B"),
    )
    with_floor = False
    most_repeats = 1
    executors: int = 1_000
    queues: int = 20
    settle: float = 30.0
    seconds: float = 30.0

    def measure(self, arena: Arena) -> Sample:
        server, before = arena.server, arena.server.used_memory
        fleet = Fleet(self.executors, [f"idle{number}" for number in range(self.queues)])
        with asleep(arena, fleet, self.settle):
            reads, scripts = server.reads, server.scripts
            share = server_share(arena, self.seconds)
            reads, scripts = server.reads - reads, server.scripts - scripts
            memory, connections = server.used_memory - before, server.connections
        return Sample(
            {
                "server_percent": share * 100,
                "connections": connections / self.executors,
                "trips_per_s": reads / self.seconds / self.executors,
                "scripts_per_s": scripts / self.seconds / self.executors,
                "bytes": memory / self.executors,
            }
        )
