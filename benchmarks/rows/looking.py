"""What looking at queues costs the server, whether that depends on the number of jobs, and what others notice of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import Final

from benchmarks.arena import Arena
from benchmarks.figures import AtMost, Line, Sample
from benchmarks.rows.dead import die_in
from benchmarks.rows.row import Row
from benchmarks.rows.searching import (
    BY_TASK,
    BY_TEXT,
    CALLERS,
    arguments,
    beside_a_search,
    cost_of_find,
    share_of_a_search,
)
from benchmarks.scripts import Scripts
from benchmarks.server import Server

_PER_CALL: Final = 50
"""Surveys per round trip, as the list of queues sends them."""
_RUNNING: Final = 500
"""Jobs on a page of those that run."""
_PAGE: Final = 1_000


@dataclass(frozen=True)
class Looking(Row):
    """Server CPU of the read-only scripts: the lowest of some rounds, because other programs only add to it. A small
    and a large queue are surveyed in turns. Beside the jobs that wait, each has a tenth as many dead ones, and as many
    that are scheduled; some of its jobs run. The large one is searched as well."""

    name = "looking"
    lines = (
        Line("survey of a queue, server CPU", "survey", "us", AtMost(25), digits=1),
        Line("  many jobs / few", "flat", "x", AtMost(1.15), digits=2),
        Line("  500 jobs that run: a page, server CPU", "running", "ms", AtMost(5), digits=2),
        Line("search by task, server CPU per record", "by_task", "us", AtMost(3), digits=2),
        Line("search by text, server CPU per record", "by_text", "us", AtMost(3), digits=2),
        Line("  its longest step", "step", "ms", AtMost(5), digits=2),
        Line("  at its own pace: server", "share", "% of a core", AtMost(20), digits=1),
        Line("  100 concurrent delay() beside it / alone, p99", "beside", "x", AtMost(1.5), digits=2),
        Line("  100 concurrent delay(), p99", "alone_ms", "ms", digits=2),
        Line("  a lone delay() beside it / alone, p99", "lone_beside", "x", digits=2),
        Line("  a lone delay(), p99", "lone_ms", "ms", digits=2),
    )
    with_floor = False
    most_repeats = 1
    few: int = 1_000
    many: int = 1_000_000
    rounds: int = 15
    surveys: int = 1_000

    def measure(self, arena: Arena) -> Sample:
        server = arena.server
        small, large = (
            _filled(server, queue, jobs) for queue, jobs in (("few", self.few), ("many", self.many))
        )
        costs: dict[str, list[float]] = {"few": [], "many": [], "running": []}
        for _ in range(self.rounds):
            costs["few"].append(_cpu(server, lambda: self._survey(small)) / self.surveys)
            costs["many"].append(_cpu(server, lambda: self._survey(large)) / self.surveys)
            costs["running"].append(_cpu(server, lambda: _running(large)))
        few, many, running = map(min, costs.values())
        by_task, _ = cost_of_find(server, large, BY_TASK)
        by_text, step = cost_of_find(server, large, BY_TEXT)
        share = share_of_a_search(arena, large.keys.queue)
        alone, beside = beside_a_search(arena, large.keys.queue, CALLERS)
        lone, lone_beside = beside_a_search(arena, large.keys.queue, 1)
        costs |= {"beside": beside, "lone_beside": lone_beside}
        figures = {
            "survey": many * 1e6,
            "flat": many / few,
            "running": running * 1e3,
            "by_task": by_task,
            "by_text": by_text,
            "step": step,
            "share": share * 100,
            "beside": median(beside),
            "alone_ms": median(alone),
            "lone_beside": median(lone_beside),
            "lone_ms": median(lone),
        }
        return Sample(figures, costs)

    def _survey(self, queue: Scripts) -> None:
        queue.survey(self.surveys, per_call=_PER_CALL)


def _filled(server: Server, name: str, jobs: int) -> Scripts:
    """A queue in which so many jobs wait."""
    queue = Scripts(server.url, name)
    die_in(queue, jobs // 10)
    queue.enqueue(2 * _RUNNING + jobs, per_call=100, arguments=arguments)
    taken = queue.fetch(2 * _RUNNING, per_call=100)
    for runs in islice(taken, _RUNNING // 100):
        queue.finish(runs)
    for _ in taken:
        pass
    for page in _paged(jobs // 10):
        due = [word for n in page for word in (str(10**13 + n), f"scheduled-{n}")]
        server.ask("ZADD", queue.keys["sched"], *due)
    return queue


def _paged(number: int) -> Iterator[range]:
    yield from (range(first, min(number, first + _PAGE)) for first in range(0, number, _PAGE))


def _running(queue: Scripts) -> None:
    found = queue.running()
    assert found == _RUNNING, f"{found} jobs on a page of {_RUNNING}"


def _cpu(server: Server, act: Callable[[], None]) -> float:
    """Seconds of the server."""
    began = server.cpu_seconds
    act()
    return server.cpu_seconds - began
