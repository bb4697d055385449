"""What a search through the jobs of a queue costs the server, and what others notice of it. A part of `looking`."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

from benchmarks.arena import START_SECONDS, Arena
from benchmarks.figures import percentile
from benchmarks.rows.fleets import server_share
from benchmarks.scripts import Scripts
from benchmarks.server import Server
from fennelq.broker.verbs.search import Criteria
from fennelq.model.query import parse

_LANE: Final = "s"
BY_TEXT: Final = '"user-none@example.com"'
BY_TASK: Final = "task:none"
"""No job has these, so a search looks at all of them."""
CALLERS: Final = 100
"""As many as in the row `enqueue`."""
_PASSES: Final = 3
_SLOW: Final = 100
"""Microseconds."""
_SHARE_SECONDS: Final = 10.0
_FIRST_STEPS: Final = 5
_TURNS: Final = 10
_SEND_SECONDS: Final = 2.0


def arguments(number: int) -> bytes:
    """Those of a small job."""
    return b'[[%d,"user-%d@example.com"],{"template":"welcome","retry":false}]' % (number, number)


def cost_of_find(server: Server, queue: Scripts, where: str) -> tuple[float, float]:
    """Microseconds of server CPU per record of a search that finds nothing, and the milliseconds of its longest step.
    Other programs only add to a time, so the lowest of some passes counts."""
    criteria = Criteria(parse(f"state:waiting {where}", datetime.now(UTC)))
    next(queue.find(_LANE, criteria))  # loads the script
    costs, steps = zip(*(_pass(server, queue, criteria) for _ in range(_PASSES)), strict=True)
    return min(costs), min(steps) / 1e3


def _pass(server: Server, queue: Scripts, criteria: Criteria) -> tuple[float, int]:
    """The cost per record, and the microseconds of the longest step."""
    with _slow_log(server):
        began = server.cpu_seconds
        looked = sum(queue.find(_LANE, criteria))
        cost = (server.cpu_seconds - began) / looked * 1e6
        steps = _times_of_scripts(server)
    assert steps, f"no step of a search took {_SLOW} us"
    return cost, max(steps)


@contextmanager
def _slow_log(server: Server) -> Generator[None]:
    """Only slow commands are in the log: to log every command of a script would cost more than to run it."""
    server.ask("CONFIG", "SET", "slowlog-log-slower-than", str(_SLOW), "slowlog-max-len", "100000")
    server.ask("SLOWLOG", "RESET")
    yield
    server.ask("CONFIG", "SET", "slowlog-log-slower-than", "-1")
    server.ask("SLOWLOG", "RESET")


def _times_of_scripts(server: Server) -> list[int]:
    """In microseconds."""
    entries = server.ask("SLOWLOG", "GET", "-1")
    return [took for _, _, took, command, *_ in entries if command[0].upper().startswith(b"EVALSHA")]


def share_of_a_search(arena: Arena, queue: str) -> float:
    """The share of a core that a search takes from the server, at the pace of `app.jobs`."""
    with _searching(arena, queue):
        return server_share(arena, _SHARE_SECONDS)


def beside_a_search(arena: Arena, queue: str, callers: int) -> tuple[list[float], list[float]]:
    """The p99 of calls of `delay()` by so many callers, in milliseconds, without such a search; and in the turn after
    each how many times as long it is beside one. A second in which the machine does something else changes one turn."""
    alone: list[float] = []
    ratios: list[float] = []
    for _ in range(_TURNS):
        alone.append(_p99(_sent(arena, callers)))
        with _searching(arena, queue):
            ratios.append(_p99(_sent(arena, callers)) / alone[-1])
    return alone, ratios


@contextmanager
def _searching(arena: Arena, queue: str) -> Generator[None]:
    where = f"state:waiting queue:{queue} {BY_TEXT}"
    before = arena.server.scripts
    with arena.searcher(where) as searcher:
        begun = before + _FIRST_STEPS
        arena.wait(searcher, START_SECONDS, "a search", lambda: arena.server.scripts >= begun)
        yield
        arena.wait(searcher, START_SECONDS, "a search that goes on", lambda: arena.server.scripts > begun)


def _sent(arena: Arena, callers: int) -> list[float]:
    """Milliseconds per call."""
    answer = arena.ask("send_for", seconds=_SEND_SECONDS, width=callers)
    times: list[float] = answer["ms"]
    return times


def _p99(times: Iterable[float]) -> float:
    """Of a hundred calls, the slowest but one."""
    return percentile(list(times), 0.99)
