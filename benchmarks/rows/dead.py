"""What the groups of the dead jobs cost: a death, and looking at them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from statistics import median
from typing import Final

from benchmarks.arena import Arena, SampleFailed
from benchmarks.contestant import ROOT
from benchmarks.fennelq_side import with_app
from benchmarks.figures import AtMost, Line, Sample
from benchmarks.rows.row import Row
from benchmarks.scripts import Scripts
from benchmarks.server import Server
from fennelq import App

_QUEUE: Final = "dead"
_PER_CALL: Final = 100
_IN_A_SETTLE: Final = 16
"""Runs that an executor ends in one call, when it is busy."""


@dataclass(frozen=True)
class Dead(Row):
    """Groups are listed by the public API, by a client that has listed them before, and by the command, from its start
    to its end. A death is measured with the step that counts it in its group and without, in turns: the lowest of some
    rounds, because other programs only add to it."""

    name = "dead"
    lines = (
        Line("dlq list --group, as a command", "command_ms", "ms", AtMost(200)),
        Line("  in a client", "groups_ms", "ms", digits=1),
        Line("a death, server CPU", "death", "us", digits=1),
        Line("  for the index of groups", "index", "us", AtMost(2), digits=2),
    )
    with_floor = False
    most_repeats = 1
    jobs: int = 100_000
    """Dead ones, in 30 groups."""
    looks: int = 20
    commands: int = 15
    deaths: int = 1_600
    """In each round."""
    rounds: int = 20

    def measure(self, arena: Arena) -> Sample:
        server = arena.server
        queue = Scripts(server.url, _QUEUE)
        queue.note()
        die_in(queue, self.jobs)
        looks = with_app(server.url, self._looks)
        _command_ms(server)  # compiles what has changed
        commands = [_command_ms(server) for _ in range(self.commands)]
        costs: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(self.rounds):
            for indexed, found in costs.items():
                found.append(_death_us(server, self.deaths, indexed=indexed))
        death = min(costs[True])
        figures = {
            "groups_ms": median(looks),
            "command_ms": median(commands),
            "death": death,
            "index": death - min(costs[False]),
        }
        return Sample(figures, {"groups": looks, "indexed": costs[True], "not_indexed": costs[False]})

    async def _looks(self, app: App) -> list[float]:
        """Milliseconds of each."""
        await self._look(app)
        return [await self._look(app) for _ in range(self.looks)]

    async def _look(self, app: App) -> float:
        began = time.perf_counter()
        found = await app.dlq.groups(queue=_QUEUE)
        took = (time.perf_counter() - began) * 1e3
        if sum(group.jobs for group in found) != self.jobs:
            raise SampleFailed(f"the groups do not have {self.jobs} jobs: {found}")
        return took


def die_in(queue: Scripts, jobs: int) -> None:
    """Let so many jobs die in this queue, which has no other."""
    queue.enqueue(jobs, per_call=_PER_CALL)
    for runs in queue.fetch(jobs, per_call=_PER_CALL):
        queue.die(runs)


def _command_ms(server: Server) -> float:
    command = [
        sys.executable,
        "-m",
        "fennelq",
        "dlq",
        "list",
        "--group",
        "-q",
        _QUEUE,
        "-A",
        "benchmarks.jobs:app",
    ]
    environment = {**os.environ, "FENNELQ_REDIS_URL": server.url}
    environment.pop(
        "PYTHONDONTWRITEBYTECODE", None
    )  # users do not have it: with it, Python compiles every module anew
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT, env=environment)
    return (time.perf_counter() - began) * 1e3


def _death_us(server: Server, deaths: int, *, indexed: bool) -> float:
    """Microseconds of server CPU per death."""
    queue = Scripts(server.url, "deaths")
    queue.enqueue(deaths, per_call=_PER_CALL)
    taken = list(queue.fetch(deaths, per_call=_IN_A_SETTLE))
    began = server.cpu_seconds
    for runs in taken:
        queue.die(runs, indexed=indexed)
    return (server.cpu_seconds - began) / deaths * 1e6
