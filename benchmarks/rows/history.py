"""The history: how fast the recorder is, what it costs the server, and how long questions about a million jobs take."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import ClassVar, Final

from benchmarks.arena import Arena, SampleFailed
from benchmarks.figures import AtLeast, AtMost, Line, Sample
from benchmarks.rows.row import Row as BenchmarkRow
from benchmarks.scripts import Scripts
from benchmarks.server import Server
from fennelq import App
from fennelq.manage.history.recorder import Recorder
from fennelq.manage.history.row import Row
from fennelq.manage.history.store import HistoryKeep, Store
from fennelq.manage.history.url import open_store
from fennelq.model.query import parse
from tests.kit.postgres import Postgres, why_not

_DAY: Final = 86_400_000
_MONTH: Final = 30
_NOW: Final = 1_800_000_000_000
_TASKS: Final = 20
_PAGE: Final = 5_000
_ARGUMENTS: Final = b'[[4217,"hello"],{"template":"friendly","lang":"de"}]'
_NEWEST: Final = {
    "by_task": "task:shop.tasks:task7",
    "by_state": "state:dead",
    "by_group": "fp:0000000d",
}
_LOOKS: Final = 9


@dataclass(frozen=True)
class History(BenchmarkRow):
    """Jobs that have ended, with arguments, are recorded by one recorder, as fast as it can. Then a million rows of a
    month are asked, and half of them are removed while further rows are written, a page at a time in turns."""

    name = "history"
    lines: ClassVar[Sequence[Line]] = (
        Line("recorded into SQLite", "rate", "jobs/s", AtLeast(25_000)),
        Line("  recorder CPU per job", "recorder", "us", digits=1),
        Line("  server CPU per job", "server", "us", AtMost(10), digits=1),
        Line("of 1 M rows, the newest 50 of a task", "by_task", "ms", AtMost(5), digits=2),
        Line("  with a state", "by_state", "ms", AtMost(5), digits=2),
        Line("  of a group of dead jobs", "by_group", "ms", AtMost(5), digits=2),
        Line("  with a text, in a day", "text", "ms", AtMost(400), digits=1),
        Line("  a month by the hour", "chart", "ms", AtMost(20), digits=1),
        Line("remove half: longest stall of the recorder", "stall", "ms", AtMost(1000), digits=1),
        Line("  bytes per row", "size", "B"),
    )
    with_floor = False
    most_repeats = 1
    jobs: int = 64_000
    rows: int = 1_000_000

    def measure(self, arena: Arena) -> Sample:
        with self.histories() as (empty, other):
            figures = recorded(arena.server, empty, self.jobs)
            store = open_store(App("asked", redis_url=arena.server.url, history_url=other))
            store.migrate()
            fill(store, self.rows)
            figures |= asked(store)
            figures["size"] = store.facts().size / self.rows
            figures["stall"] = longest_stall(store, self.rows)
            store.close()
        return Sample(figures)

    @contextmanager
    def histories(self) -> Generator[tuple[str, str]]:
        """The URLs of two empty histories."""
        with tempfile.TemporaryDirectory(prefix="fennelq-history-") as directory:
            yield f"sqlite://{directory}/recorded.db", f"sqlite://{directory}/asked.db"


@dataclass(frozen=True)
class HistoryInPostgres(History):
    """The same in a PostgreSQL server that the row starts. It fails where PostgreSQL is not installed."""

    name = "history_postgres"
    lines: ClassVar[Sequence[Line]] = (
        Line("recorded into PostgreSQL", "rate", "jobs/s", AtLeast(15_000)),
        *(line for line in History.lines[1:]),
    )

    @contextmanager
    def histories(self) -> Generator[tuple[str, str]]:
        if why := why_not():
            raise SampleFailed(why)
        with Postgres() as server:
            yield server.new_url(), server.new_url()


# Recording


def recorded(server: Server, url: str, jobs: int) -> dict[str, float]:
    """Jobs per second of one recorder, and the CPU that it and the server need for each."""
    queue = Scripts(server.url, "recorded")
    queue.note()
    queue.begin_recording()
    queue.enqueue(jobs, per_call=100, arguments=lambda _: _ARGUMENTS)
    for runs in queue.fetch(jobs, per_call=32):
        queue.finish(runs)

    async def record() -> dict[str, float]:
        async with App("bench", redis_url=server.url, history_url=url) as app:
            store = open_store(app)
            recorder = Recorder(app, store)
            before, own, began = server.cpu_seconds, time.process_time(), time.perf_counter()
            await recorder.drain()
            seconds, own = time.perf_counter() - began, time.process_time() - own
            cost = server.cpu_seconds - before
            store.close()
        if recorder.progress.recorded != jobs:
            raise SampleFailed(f"{recorder.progress} of {jobs} jobs were recorded")
        return {"rate": jobs / seconds, "recorder": own / jobs * 1e6, "server": cost / jobs * 1e6}

    return asyncio.run(record())


# Asking


def row(number: int, rows: int) -> Row:
    """One of these rows, spread over a month: every twentieth is dead, of 50 groups."""
    ended = _NOW - (rows - number) * (_MONTH * _DAY // rows)
    found = Row(
        id=f"mail:{number:020d}",
        queue="mail",
        status="DEAD" if number % 20 == 0 else "SUCCESS",
        ended=ended,
        task=f"shop.tasks:task{number % _TASKS}",
        created=ended - 900,
        started=ended - 400,
        tries=0,
        starts=1,
        executor="web-1.17.a0b1c2",
        args=f'[[{number},"hello"],{{"template":"friendly","user":"user-{number % 99_991}"}}]',
    )
    if found.status != "DEAD":
        return found
    return found._replace(
        error="shop.errors.NoCard",
        message=f"the bank refused card {number}",
        traceback="Traceback …\n" * 5,
        fingerprint=f"{number // 20 % 50:08x}",
        reason="failed",
    )


def fill(store: Store, rows: int) -> None:
    for first in range(0, rows, _PAGE):
        store.write([row(number, rows) for number in range(first, min(rows, first + _PAGE))])


def asked(store: Store) -> dict[str, float]:
    """Milliseconds of each question: the median of some."""
    now = datetime.fromtimestamp(_NOW / 1000, UTC)

    def newest(where: str, expected: int) -> Callable[[], None]:
        def ask() -> None:
            if len(found := store.find(parse(where, now), 50)) != expected:
                raise SampleFailed(f"{len(found)} rows for {where!r}")

        return ask

    figures = {name: timed(newest(where, 50)) for name, where in _NEWEST.items()}
    # A text that no row of the day has, so that all of them are read.
    a_day = now - timedelta(days=1)
    figures["text"] = timed(newest(f'since:{a_day.isoformat()} "user-xyz"', 0))

    def chart() -> None:
        if not store.chart(_NOW - _MONTH * _DAY, _NOW, days=False, queue=None, task=None):
            raise SampleFailed("an empty chart")

    figures["chart"] = timed(chart)
    return figures


def timed(act: Callable[[], None]) -> float:
    act()
    times: list[float] = []
    for _ in range(_LOOKS):
        began = time.perf_counter()
        act()
        times.append((time.perf_counter() - began) * 1e3)
    return median(times)


def longest_stall(store: Store, rows: int) -> float:
    """Milliseconds of the longest step of a recorder that writes and removes in turns, until half of the rows are
    gone."""
    keep, longest, number = HistoryKeep(rows=rows // 2), 0.0, 0
    while True:
        began = time.perf_counter()
        store.write(new_rows(rows, number))
        done = store.prune(keep, _NOW, 2_000)
        longest, number = max(longest, (time.perf_counter() - began) * 1e3), number + 1
        if not done.more:
            return longest


def new_rows(rows: int, page: int) -> Sequence[Row]:
    return [row(rows + page * 200 + number, rows)._replace(ended=_NOW) for number in range(200)]
