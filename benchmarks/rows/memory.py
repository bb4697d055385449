"""What a job weighs in Redis."""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.arena import Arena
from benchmarks.contestant import Crew
from benchmarks.fennelq_side import with_app
from benchmarks.figures import AtMost, ByServer, Line, Sample
from benchmarks.rows.row import Row
from fennelq import App

_NOOP = "benchmarks.bodies:noop"
_FINISHED = ByServer(valkey=AtMost(400), redis=AtMost(590))
_QUIET_SECONDS = 0.5
"""Time for the server to free closed clients' buffers and to finish rehashing."""


@dataclass(frozen=True)
class Memory(Row):
    """Growth of used_memory per job, with no client or worker connected.

    A first few jobs are worked off and not counted: they bring the scripts and the permanent keys. An idle queue is one
    that has run one job of normal priority. A second job in each queue shows what a finished job weighs there, so that
    the rest of the growth by the first one is the queue.
    """

    name = "memory"
    lines = (
        Line("memory per queued small job", "queued_bytes", "B", AtMost(270), AtMost(220)),
        Line("memory per finished small job", "finished_bytes", "B", _FINISHED, AtMost(350)),
        Line("memory per idle queue", "queue_bytes", "B", AtMost(700)),
    )
    most_repeats = 1
    jobs: int = 25_000
    first: int = 100
    queues: int = 1_000

    def measure(self, arena: Arena) -> Sample:
        self._work_off(arena, self.first)
        before = self._used(arena)
        arena.fill(self.jobs)
        queued = self._used(arena)
        with arena.worker() as worker:
            arena.drain(worker, self.jobs)
        finished = self._used(arena)
        jobs = {
            "queued_bytes": (queued - before) / self.jobs,
            "finished_bytes": (finished - before) / self.jobs,
        }
        return Sample(
            {**jobs, "queue_bytes": self._queue_bytes(arena)} if arena.contestant.has_queues else jobs
        )

    def _queue_bytes(self, arena: Arena) -> float:
        before, *after = self._used(arena), *(self._one_job_in_each_queue(arena) for _ in range(2))
        queues_and_jobs, jobs = after[0] - before, after[1] - after[0]
        return (queues_and_jobs - jobs) / self.queues

    def _one_job_in_each_queue(self, arena: Arena) -> int:
        with_app(arena.server.url, self._send)
        with arena.worker(Crew(queues=["idle.*"])) as worker:
            arena.work_off(worker, self.queues)
        return self._used(arena)

    async def _send(self, app: App) -> None:
        await app.enqueue([app.describe(_NOOP, 0, queue=f"idle.{number}") for number in range(self.queues)])

    def _work_off(self, arena: Arena, jobs: int) -> None:
        arena.fill(jobs)
        with arena.worker() as worker:
            arena.drain(worker, jobs)

    def _used(self, arena: Arena) -> int:
        time.sleep(_QUIET_SECONDS)
        return arena.server.used_memory
