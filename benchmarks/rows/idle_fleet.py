"""What a large fleet costs the server while there is nothing to do."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.arena import Arena, SampleFailed
from benchmarks.contestant import Fleet
from benchmarks.figures import AtMost, Line, Sample
from benchmarks.rows.fleets import all_sleep, server_share
from benchmarks.rows.row import Row
from benchmarks.worker import Worker
from fennelq.broker.keys import AppKeys
from fennelq.worker.running.consumer import ROUND

_START_SECONDS = 180.0
_BEAT, _SWEEP = 3.75, 7.5
"""The longest seconds between two beats, two reports, and two sweeps of a queue, with the default settings."""
_NEAR = 0.8
"""A machine that is too slow for the fleet makes fewer rounds than this share of those that the intervals demand."""


class _Rates(NamedTuple):
    """What the server does per second."""

    share: float
    """Of one core: 0 to 1."""
    trips: float
    scripts: float

    def beyond(self, other: _Rates, executors: int) -> _Rates:
        """What is more than in the other, per executor."""
        return _Rates(*((a - b) / executors for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True)
class IdleFleet(Row):
    """Executors that serve the same empty queues.

    A tenth of the fleet is only present: `Presence`, the duty itself, reports them, and their names are among those
    sleep at each queue. The others are real, but for their watchdogs, for which two cores are too few. The server is
    measured first with those that are only present, and then with the real ones as well: the difference, per real
    executor, times the size of the fleet, is what a fleet of real ones costs. A server that does next to nothing runs a
    script with cold caches, several times as slowly as a busy one: so most executors must be real.
    """

    name = "idle_fleet"
    lines = (
        Line(
            "1,000 idle executors x 20 queues: server", "server_percent", "% of a core", AtMost(15), digits=1
        ),
        Line("  of it their presence", "presence_percent", "% of a core", digits=1),
        Line("  connections per executor", "connections", "", AtMost(3), digits=2),
        Line("  round trips per executor", "trips_per_s", "1/s", digits=2),
        Line("  scripts per executor", "scripts_per_s", "1/s", digits=2),
        Line("  memory of the server per executor", "bytes", "B"),
    )
    with_floor = False
    most_repeats = 1
    executors: int = 1_000
    """The size of the fleet."""
    real: int = 900
    queues: int = 20
    slots: int = 32
    """The default of a worker. An executor looks at as many queues in one round trip as it has free slots."""
    settle: float = 30.0
    seconds: float = 60.0
    """Four rounds of the duties that all share: the times are jittered."""

    def measure(self, arena: Arena) -> Sample:
        queues = [f"idle{number}" for number in range(self.queues)]
        present = self.executors - self.real
        with self._present(arena, present, queues):
            before, memory, connections = self._rates(arena), *_held(arena)
            fleet = Fleet(self.real, queues, slots=self.slots, watched=False)
            with arena.fleet(fleet) as worker:
                arena.wait(worker, _START_SECONDS, "sleep", lambda: all_sleep(arena, queues, self.executors))
                time.sleep(self.settle)
                both = self._rates(arena)
                memory, connections = (
                    (a - b) / self.real for a, b in zip(_held(arena), (memory, connections), strict=True)
                )
        one = both.beyond(before, self.real)
        self._check(one)
        return Sample(
            {
                "server_percent": one.share * self.executors * 100,
                "presence_percent": before.share / present * self.executors * 100,
                "connections": connections,
                "trips_per_s": one.trips,
                "scripts_per_s": one.scripts,
                "bytes": memory,
            }
        )

    @contextmanager
    def _present(self, arena: Arena, executors: int, queues: Sequence[str]) -> Generator[Worker]:
        """Executors of which there is nothing but their presence, and their names at the queues."""
        alive = AppKeys("bench")["alive"]
        with arena.presences(executors, queues) as worker:
            arena.wait(
                worker, _START_SECONDS, "presence", lambda: arena.server.ask("ZCARD", alive) >= executors
            )
            time.sleep(self.settle)
            yield worker

    def _rates(self, arena: Arena) -> _Rates:
        server = arena.server
        trips, scripts = server.reads, server.scripts
        share = server_share(arena, self.seconds)
        return _Rates(share, (server.reads - trips) / self.seconds, (server.scripts - scripts) / self.seconds)

    def _check(self, one: _Rates) -> None:
        """Raises SampleFailed when an executor looks at its queues, sweeps them, renews its leases or reports more
        rarely than it means to: then the machine is too slow. A round through the queues is one round trip."""
        rounds, beats = 1 / ROUND + 1 / _SWEEP, 2 / _BEAT
        scripts, trips = self.queues * rounds + beats, rounds + beats
        if one.scripts < _NEAR * scripts or one.trips < _NEAR * trips:
            raise SampleFailed(
                f"{one.scripts:.2f} scripts/s and {one.trips:.2f} round trips/s per executor, and not at least "
                f"{scripts:.2f} and {trips:.2f}: the machine is too slow for {self.real} executors"
            )


def _held(arena: Arena) -> tuple[float, float]:
    """Bytes and connections of the server."""
    return arena.server.used_memory, arena.server.connections
