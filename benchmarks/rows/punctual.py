"""How late jobs start that have a time to start at, and how long it takes when very many have the same."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import redis

from benchmarks.arena import Arena, SampleFailed
from benchmarks.contestant import Crew
from benchmarks.fennelq_side import with_app
from benchmarks.figures import AtMost, Line, Sample, percentile
from benchmarks.rows.row import Row
from fennelq import App, AsyncResult

_STAMP, _NOOP = "benchmarks.bodies:stamp", "benchmarks.bodies:noop"
_STUMBLE = "benchmarks.jobs:stumble"
_PATIENCE = 60.0
_SCHEDULED = "fq:{bench/default}:sched"


@dataclass(frozen=True)
class Punctual(Row):
    """On an idle system: jobs sent ahead of their time, jobs that are tried again, and the ticks of a schedule."""

    name = "punctual"
    lines = (
        Line("delayed job, ms late, p50", "delayed_p50_ms", "ms", digits=1),
        Line("  p99", "delayed_p99_ms", "ms", AtMost(50), AtMost(10), digits=1),
        Line("retried job, ms late, p50", "retried_p50_ms", "ms", digits=1),
        Line("  p99", "retried_p99_ms", "ms", AtMost(50), AtMost(10), digits=1),
        Line("recurring job, ms late, p50", "recurring_p50_ms", "ms", digits=1),
        Line("  p99", "recurring_p99_ms", "ms", AtMost(50), AtMost(10), digits=1),
    )
    with_floor = False
    delayed: int = 300
    ticks: int = 100
    seconds: float = 10.0

    def measure(self, arena: Arena) -> Sample:
        with arena.worker() as worker:
            arena.warm(worker)
            delayed = with_app(arena.server.url, self._delayed)
            retried = with_app(arena.server.url, self._retried)
            recurring = with_app(arena.server.url, self._recurring)
        late = {"delayed": delayed, "retried": retried, "recurring": recurring}
        p50 = {f"{kind}_p50_ms": percentile(values, 0.5) for kind, values in late.items()}
        p99 = {f"{kind}_p99_ms": percentile(values, 0.99) for kind, values in late.items()}
        return Sample(p50 | p99, {f"{kind}_ms": values for kind, values in late.items()})

    async def _delayed(self, app: App) -> list[float]:
        dues = [
            datetime.now(UTC) + timedelta(seconds=random.uniform(0.5, self.seconds))
            for _ in range(self.delayed)
        ]
        handles = await app.enqueue([app.describe(_STAMP, 0.0, at=due) for due in dues])
        ended: list[int] = [await handle.get(_PATIENCE) for handle in handles]
        return [late_ms(due, at_ns) for due, at_ns in zip(dues, ended, strict=True)]

    async def _retried(self, app: App) -> list[float]:
        handles: list[AsyncResult[int]] = []
        for _ in range(self.delayed):
            handles += await app.enqueue([app.describe(_STUMBLE, random.uniform(0.5, self.seconds))])
            await asyncio.sleep(0.01)  # one after the other: an idle system, not a burst
        late_ns: list[int] = [await handle.get(_PATIENCE) for handle in handles]
        return [late / 1e6 for late in late_ns]

    async def _recurring(self, app: App) -> list[float]:
        every = self.seconds / self.ticks
        first = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=2)
        dues = [first + timedelta(seconds=every * n) for n in range(self.ticks)]
        await app.schedules.add(
            app.describe(_STAMP, 0.0), name="punctual", every=every, start=dues[0], end=dues[-1]
        )
        await asyncio.sleep((dues[-1] - datetime.now(UTC)).total_seconds() + 1)
        ids = [f"default:cron.punctual.{round(due.timestamp() * 1000)}" for due in dues]
        ended: list[int] = [await app.result(job).get(_PATIENCE) for job in ids]
        return [late_ms(due, at_ns) for due, at_ns in zip(dues, ended, strict=True)]


@dataclass(frozen=True)
class DueAtOnce(Row):
    """Very many jobs due at one moment, and eight executors to move them. None starts: the gate is closed."""

    name = "due_at_once"
    lines = (
        Line("100,000 jobs due at once, moved in", "seconds", "s", AtMost(5), digits=2),
        Line("  PING meanwhile, p99", "ping_p99_ms", "ms", AtMost(20), digits=1),
    )
    with_floor = False
    most_repeats = 1
    jobs: int = 100_000
    processes: int = 8
    ahead: float = 45.0
    """Seconds that sending them may take."""

    def measure(self, arena: Arena) -> Sample:
        with arena.worker(Crew(processes=self.processes)):
            due = time.time() + self.ahead
            with_app(arena.server.url, lambda app: self._fill(app, datetime.fromtimestamp(due, UTC)))
            if time.time() > due:
                raise SampleFailed(f"sending {self.jobs} jobs took longer than {self.ahead:g} s")
            time.sleep(due - time.time())
            pings = _pings_until_empty(arena)
            seconds = time.time() - due
        return Sample({"seconds": seconds, "ping_p99_ms": percentile(pings, 0.99)}, {"ping_ms": pings})

    async def _fill(self, app: App, due: datetime) -> None:
        for first in range(0, self.jobs, 1000):
            await app.enqueue([app.describe(_NOOP, n, at=due) for n in range(first, first + 1000)])


def _pings_until_empty(arena: Arena) -> list[float]:
    """Milliseconds of each PING, until no job waits for its time any more."""
    taken: list[float] = []
    with redis.Redis.from_url(arena.server.url) as client:
        while len(taken) % 20 or client.zcard(_SCHEDULED):
            began = time.perf_counter()
            client.ping()
            taken.append((time.perf_counter() - began) * 1e3)
            time.sleep(0.001)
    return taken or [0.0]


def late_ms(due: datetime, ended_ns: int) -> float:
    """From a moment to another on the monotonic clock of this machine."""
    now_ns, now = time.monotonic_ns(), datetime.now(UTC)
    return (ended_ns - now_ns) / 1e6 - (due - now).total_seconds() * 1e3
