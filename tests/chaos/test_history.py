"""The history: recorders are killed and the database restarts while jobs end in every way, and each end is one row."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from fennelq.broker import verbs
from fennelq.manage.history.postgres import PostgresStore
from fennelq.manage.history.sql import SqlStore
from fennelq.manage.history.sqlite import SqliteStore
from fennelq.model.job import Delivery
from tests.broker.desk import DEAD, DONE, Desk, a_job
from tests.chaos import scale
from tests.chaos.conftest import Figure
from tests.kit.postgres import Postgres
from tests.kit.server import Server
from tests.kit.spawn import Process, Spawner
from tests.kit.waiting import eventually

pytestmark = pytest.mark.audit(unfinished=True)

JOBS = scale.of(3_000, long=100_000)
KILLS = scale.of(4, long=20)
RESTARTS = scale.of(1, long=5)
PAGE = 100
RECORDERS = 2


def at_pages(times: int) -> set[int]:
    """Before which pages something happens so many times, at equal distances."""
    return {time * JOBS // (times + 1) // PAGE for time in range(1, times + 1)}


class Ends:
    """Ends jobs in every way, and knows how each ended last."""

    def __init__(self, desk: Desk, dice: random.Random) -> None:
        self._desk, self._dice = desk, dice
        self.expected: dict[str, str] = {}
        self.fates = Counter[str]()

    @property
    def told(self) -> str:
        """How many jobs there were, and how often their runs ended in which way."""
        fates = ", ".join(f"{number:,} {fate}" for fate, number in sorted(self.fates.items()))
        return f"{len(self.expected):,} jobs ({fates})"

    def page(self, first: int) -> None:
        """The next jobs: some are cancelled while they wait, and the runs of the others end in every way. Then some of
        the dead jobs are replayed and succeed, and some are purged."""
        desk, keys = self._desk, [str(number) for number in range(first, first + PAGE)]
        desk.enqueue(*(a_job(key, args=b'[[],{"number":1}]') for key in keys))
        cancelled = self._dice.sample(keys, 10)
        desk.cancel(*cancelled)
        self._ended(cancelled, "CANCELLED")
        while taken := desk.take(free=self._dice.randint(1, 40)):
            self._end(taken)
        self._replay()

    def _end(self, taken: list[Delivery]) -> None:
        desk, keys = self._desk, [run.key for run in taken]
        (fate,) = self._dice.choices(
            ["succeed", "alone", "die", "stop", "crash", "again"], [4, 2, 2, 1, 1, 1]
        )
        self.fates[fate] += len(taken)
        match fate:
            case "succeed":
                desk.finish(taken, DONE)
                self._ended(keys, "SUCCESS")
            case "alone":
                for run in taken:
                    desk.finish([run], DONE)
                self._ended(keys, "SUCCESS")
            case "die":
                desk.finish(taken, DEAD)
                self._ended(keys, "DEAD")
            case "stop":
                desk.cancel(*keys)
                desk.finish(taken, DEAD)
                self._ended(keys, "CANCELLED")
            case "crash":
                desk.recover(max_deliveries=0)
                self._ended(keys, "DEAD")
            case _:
                desk.release(taken)

    def _replay(self) -> None:
        dead = self._desk.entries("dlq")[-50:]
        chosen = [entry for entry, _ in self._dice.sample(dead, min(len(dead), 12))]
        self._desk.do(verbs.dead.replay, chosen[2:], {})
        for run in self._desk.take():
            self._desk.finish([run], DONE)
            self._ended([run.key], "SUCCESS")
        self.fates["purged"] += self._desk.do(verbs.dead.forget, chosen[:2])

    def _ended(self, keys: list[str], status: str) -> None:
        self.expected |= dict.fromkeys(keys, status)


@pytest.fixture
def desk(server: Server) -> Iterator[Desk]:
    with Desk.opened(server) as desk:
        yield desk


def recorders(spawn: Spawner, server: Server, url: str) -> list[Process]:
    started = [spawn("tests.chaos.recorder", server.url, url) for _ in range(RECORDERS)]
    for process in started:
        process.wait_for("ready", within=30)
    return started


def test_each_end_is_one_row_although_recorders_are_killed(
    spawn: Spawner, server: Server, desk: Desk, tmp_path: Path, figure: Figure
) -> None:
    url = f"sqlite://{tmp_path}/history.db"
    ends = Ends(desk, scale.dice("history"))
    alive = recorders(spawn, server, url)
    eventually(lambda: desk.redis.exists(desk.keys["ends"]), within=30)
    for page in range(JOBS // PAGE):
        ends.page(page * PAGE)
        if page in at_pages(KILLS):
            alive.pop(0).kill()
            alive += [spawn("tests.chaos.recorder", server.url, url)]
    wait_until_recorded(desk)
    assert_history(SqliteStore(tmp_path / "history.db", "shop"), ends)
    figure("history", f"{ends.told}, {KILLS} recorders killed, SQLite: each end is one row")


def test_each_end_is_one_row_although_the_database_restarts(
    spawn: Spawner, server: Server, desk: Desk, postgres_server: Postgres, figure: Figure
) -> None:
    url = postgres_server.new_url()
    ends = Ends(desk, scale.dice("history in PostgreSQL"))
    alive = recorders(spawn, server, url)
    eventually(lambda: desk.redis.exists(desk.keys["ends"]), within=30)
    for page in range(JOBS // PAGE):
        if page in at_pages(RESTARTS):
            postgres_server.kill()
        ends.page(page * PAGE)
        if page in at_pages(RESTARTS):
            postgres_server.start()
        if page in at_pages(KILLS):
            alive.pop(0).kill()
            alive += [spawn("tests.chaos.recorder", server.url, url)]
    wait_until_recorded(desk)
    assert_history(PostgresStore(url, "shop"), ends)
    figure(
        "history",
        f"{ends.told}, {KILLS} recorders killed, {RESTARTS} restarts of PostgreSQL: each end is one row",
    )


def wait_until_recorded(desk: Desk) -> None:
    eventually(lambda: desk.redis.xlen(desk.keys["ends"]) == 0, within=scale.of(30, long=300), every=0.05)


def assert_history(store: SqlStore, ends: Ends) -> None:
    def rows(statement: str) -> dict[str, str | int]:
        return dict(store.run(lambda cursor: cursor.run(statement)))

    found = rows("SELECT id, status FROM jobs")
    assert {job.removeprefix("mail:"): status for job, status in found.items()} == ends.expected
    sums = rows("SELECT status, sum(n) FROM counts GROUP BY status HAVING sum(n) <> 0")
    assert {str(status): int(n) for status, n in sums.items()} == Counter(ends.expected.values())
    assert store.facts().missed == 0
    store.close()
