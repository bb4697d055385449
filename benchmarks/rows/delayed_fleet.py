"""What a single delayed job costs a fleet: the due time must not make every executor look at every queue."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median

from benchmarks.arena import Arena
from benchmarks.contestant import Crew
from benchmarks.fennelq_side import with_app
from benchmarks.figures import AtMost, Line, Sample
from benchmarks.monitor import Monitor
from benchmarks.rows.punctual import late_ms
from benchmarks.rows.row import Row
from benchmarks.worker import Worker
from fennelq import App
from fennelq.broker.keys import queue_keys

_NOOP = "benchmarks.bodies:noop"
_BEFORE, _AFTER = 0.02, 0.05
"""Seconds around the start of a job in which the scripts of all queues are counted."""
_PATIENCE = 60.0


@dataclass(frozen=True)
class DelayedFleet(Row):
    """One delayed job after the other, each in another queue of a fleet that is idle otherwise.

    The idle fleet looks at its queues in pages of a hundred scripts, so the number of all scripts within seconds varies
    by hundreds. So the first line counts the scripts of the job's queue alone, and subtracts those of as long a time
    just before. The line about all queues counts around the start only, in which a page or two may fall. It would be
    1,200 if each executor looked at all queues.
    """

    name = "delayed_fleet"
    lines = (
        Line("one delayed job in a fleet: scripts", "scripts", "", AtMost(20)),
        Line("  scripts of all queues around its start", "around", "", AtMost(400)),
        Line("  ms late", "late_ms", "ms", AtMost(50), AtMost(10), digits=1),
        Line("  scripts of the idle fleet", "idle_per_s", "1/s"),
    )
    with_floor = False
    most_repeats = 1
    executors: int = 6
    queues: int = 200
    jobs: int = 5
    delay: float = 10.0
    settle: float = 30.0

    def measure(self, arena: Arena) -> Sample:
        queues = [f"delayed{number}" for number in range(self.queues)]
        crew = Crew(processes=self.executors, concurrency=1, queues=queues)
        with arena.worker(crew) as worker, Monitor(arena.server.port) as monitor:
            arena.tally.open_gate()
            time.sleep(self.settle)
            seen = [self._job(arena, worker, monitor, queue) for queue in queues[: self.jobs]]
        names = ("scripts", "around", "late_ms", "idle_per_s")
        columns: dict[str, list[float]] = {
            name: list(values) for name, values in zip(names, zip(*seen, strict=True), strict=True)
        }
        return Sample({name: median(values) for name, values in columns.items()}, columns)

    def _job(
        self, arena: Arena, worker: Worker, monitor: Monitor, queue: str
    ) -> tuple[float, float, float, float]:
        time.sleep(self.delay + 1)
        done, sent = arena.tally.done, time.time()
        due = datetime.fromtimestamp(sent + self.delay, UTC)
        with_app(arena.server.url, lambda app: _send(app, queue, due))
        arena.wait(worker, _PATIENCE, "a delayed job", lambda: arena.tally.done > done)
        late = late_ms(due, arena.tally.last_ns)
        started = due.timestamp() + late / 1000
        time.sleep(_AFTER)
        prefix, lasted = queue_keys("bench", queue).prefix, started - sent
        own = monitor.calls(sent, started, prefix) - monitor.calls(sent - lasted, sent, prefix)
        around = monitor.calls(started - _BEFORE, started + _AFTER)
        return own, around, late, monitor.calls(sent - self.delay, sent) / self.delay


async def _send(app: App, queue: str, due: datetime) -> None:
    await app.enqueue([app.describe(_NOOP, 0, queue=queue, at=due)])
