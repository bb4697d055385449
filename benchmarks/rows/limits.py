"""What limits cost the server: scripts only, 100 jobs per enqueue and 32 per fetch, beside jobs without limits."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.arena import Arena
from benchmarks.figures import AtMost, Line, Sample
from benchmarks.rows.row import Row
from benchmarks.scripts import Gates, Scripts

_AT_ONCE, _PER_FETCH = 100, 32


@dataclass(frozen=True)
class Limits(Row):
    """Server CPU per job, enqueue to end.

    The bars are shares of a job without limits, which took 16.9 us where they were set as 14, 20 and 35 us."""

    name = "limits"
    lines = (
        Line("limits: a job without any, server CPU", "plain", "us", digits=1),
        Line("  never full: more / that", "roomy", "x", AtMost(0.83), digits=2),
        Line("  one line of all jobs: more / that", "one_line", "x", AtMost(1.18), digits=2),
        Line(
            "  a line per key, many keys: more / that", "many_keys", "x", AtMost(2.07), AtMost(1.18), digits=2
        ),
        Line("  turns of as many tenants: more / that", "tenants", "x", digits=2),
        Line("  ten times as many waiting / that", "ten_times", "x", AtMost(1.45), AtMost(1.2), digits=2),
        Line("  memory of a job that waits in a line of ten", "bytes", "B", AtMost(270)),
    )
    with_floor = False
    most_repeats = 3
    jobs: int = 30_000
    keys: int = 10_000
    waiting: int = 100_000

    def measure(self, arena: Arena) -> Sample:
        with_ = _Limited(arena, self.keys)
        plain, _ = with_.run(self.jobs, None)
        roomy, _ = with_.run(self.jobs, lambda number: "c1000000:roomy")
        one_line, _ = with_.run(self.jobs, lambda number: "c32:line")
        many, size = with_.run(
            self.jobs, lambda number: f"c1:account/{number % self.keys}", before=self.waiting
        )
        tenants, _ = with_.run(
            self.jobs, lambda number: f"t1:tenant/{number % self.keys}", before=self.waiting
        )
        ten_times, _ = with_.run(
            self.jobs, lambda number: f"t1:tenant/{number % self.keys}", before=10 * self.waiting
        )
        return Sample(
            {
                "plain": plain,
                "roomy": roomy / plain - 1,
                "one_line": one_line / plain - 1,
                "many_keys": many / plain - 1,
                "tenants": tenants / plain - 1,
                "ten_times": ten_times / tenants,
                "bytes": size,
            }
        )


class _Limited:
    """Runs jobs through the scripts, from enqueue to end."""

    def __init__(self, arena: Arena, keys: int) -> None:
        self._server, self._scripts, self._keys = arena.server, Scripts(arena.server.url), keys

    def run(self, jobs: int, gates: Gates | None, before: int = 0) -> tuple[float, float]:
        """Microseconds of the server per job, and bytes per job that waits; `before` jobs wait already. With these, the
        first job of each key is in the lane: it does not wait in a line, and its memory is not counted."""
        self._server.ask("FLUSHALL")
        self._enqueue(200, gates)
        self._drain(200)
        self._enqueue(self._keys if before else 0, gates)
        memory = self._server.used_memory
        self._enqueue(before, gates)
        size = (self._server.used_memory - memory) / before if before else 0.0
        began = self._server.cpu_seconds
        self._enqueue(jobs, gates)
        self._drain(jobs)
        return (self._server.cpu_seconds - began) / jobs * 1e6, size

    def _enqueue(self, number: int, gates: Gates | None) -> None:
        self._scripts.enqueue(number, per_call=_AT_ONCE, gates=gates)

    def _drain(self, number: int) -> None:
        for runs in self._scripts.fetch(number, per_call=_PER_FETCH):
            self._scripts.finish(runs)
