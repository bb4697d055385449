"""How fast a backlog of no-op jobs is worked off, and what one job costs."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.arena import Arena, Drained
from benchmarks.contestant import Crew
from benchmarks.figures import AtLeast, AtLeastOfFloor, AtMost, Line, Sample
from benchmarks.machine import apart
from benchmarks.rows.row import Row


def figures_of(drained: Drained) -> dict[str, float]:
    return {
        "jobs_per_s": drained.jobs_per_s,
        "worker_us": drained.worker_us,
        "server_us": drained.server_us,
    }


@dataclass(frozen=True)
class Drain(Row):
    name = "drain"
    lines = (
        Line("drain, 1 process, c=32", "jobs_per_s", "jobs/s", AtLeastOfFloor(0.5), AtLeastOfFloor(0.55)),
        Line("  worker CPU per job", "worker_us", "us", AtMost(22), AtMost(14), digits=1),
        Line("  server CPU per job", "server_us", "us", AtMost(15), AtMost(12), digits=1),
    )
    with_peers = True
    jobs: int = 60_000

    def measure(self, arena: Arena) -> Sample:
        jobs = arena.contestant.jobs(self.jobs)
        arena.fill(jobs)
        with arena.worker() as worker:
            return Sample(figures_of(arena.drain(worker, jobs)))


@dataclass(frozen=True)
class TwoProcesses(Row):
    """Two workers and the server share two cores, so 2 / (worker + server CPU per job) is the limit.

    The gain compares them with one process in the same sample. How much two cores have left for a second process
    depends on the machine, so the floor's gain stands beside ours.

    Where the kernel puts three processes on two cores decides up to a fifth of it, for the floor as well, so
    the bar is held with the server on a core of its own (docs/adr/0007)."""

    name = "two"
    lines = (
        Line("drain, 2 processes, c=32 each", "jobs_per_s", "jobs/s"),
        Line("  two processes / one", "gain", "x", digits=2),
        Line("  the same gain / the floor's", "gain", "x", AtLeastOfFloor(0.9), digits=2),
        Line("  share of what two cores allow", "of_two_cores", "%"),
        Line("  the same, server on its own core", "of_two_cores_apart", "%", AtLeast(85), AtLeast(95)),
        Line("  worker CPU per job", "worker_us", "us", digits=1),
        Line("  server CPU per job", "server_us", "us", digits=1),
    )
    jobs: int = 90_000

    def measure(self, arena: Arena) -> Sample:
        alone = self._drain(arena, processes=1)
        drained = self._drain(arena, processes=2)
        with apart(arena.server.pid):
            apart_drained = self._drain(arena, processes=2)
        shares = {"of_two_cores": _share(drained), "of_two_cores_apart": _share(apart_drained)}
        gain = {"gain": drained.jobs_per_s / alone.jobs_per_s, "one_jobs_per_s": alone.jobs_per_s}
        return Sample({**figures_of(drained), **shares, **gain})

    def _drain(self, arena: Arena, processes: int) -> Drained:
        arena.fill(self.jobs)
        with arena.worker(Crew(processes=processes)) as worker:
            return arena.drain(worker, self.jobs, processes)


def _share(drained: Drained) -> float:
    """Of what two cores allow, in percent."""
    return drained.jobs_per_s * (drained.worker_us + drained.server_us) / 2e6 * 100
