"""Very many jobs due at one moment: each is moved to its lane once, soon, and no other job starves meanwhile."""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final, cast

import pytest

from fennelq.broker import verbs
from fennelq.broker.keys import QueueKeys, queue_keys
from tests.chaos import jobs, scale
from tests.chaos.conftest import Figure
from tests.chaos.crew import Crew
from tests.kit.jobs import sent
from tests.kit.server import Server
from tests.kit.waiting import eventually

pytestmark = pytest.mark.timeout(scale.of(300, long=1200))

PAGE: Final = 100


def due_at_once(crew: Crew, queue: str, number: int, due_ms: int) -> QueueKeys:
    """So many jobs, all due at one moment."""
    keys = queue_keys(jobs.NAME, queue)
    for page in range(0, number, PAGE):
        batch = [
            sent(queue, f"j{n}", "clockwork:beat", at_ms=due_ms)
            for n in range(page, min(page + PAGE, number))
        ]
        crew.broker.run(verbs.jobs.enqueue(keys, batch))
    return keys


def moved(crew: Crew, keys: QueueKeys) -> Counter[str]:
    """Job → how often it is in its lane."""
    with crew.server.client(timeout=30) as client:
        entries = cast("Any", client.xrange(keys["s"]))
    return Counter(fields[b"i"].decode() for _, fields in entries)


def not_moved(crew: Crew, keys: QueueKeys) -> int:
    """Jobs that still wait for their time."""
    return crew.broker.ask(verbs.queues.length(keys, "sched"))


def test_due_jobs_are_moved_once_while_schedulers_are_killed(crew: Crew, figure: Figure) -> None:
    rounds, number = scale.of(3, long=20), scale.of(4000, long=20_000)
    dice = scale.dice("promoters")
    kills = sum(one_round(crew, f"q{turn}", number, dice) for turn in range(rounds))
    figure("D5", f"{rounds} × {number} due jobs, {kills} schedulers killed: none lost, none moved twice")
    assert kills >= 2 * rounds


def one_round(crew: Crew, queue: str, number: int, dice: random.Random) -> int:
    """So many jobs are moved, all that move them but one are killed; answers how many that were."""
    for _ in range(scale.of(3, long=4)):
        crew.joins("promoter", queue)
    crew.at_work()
    keys = due_at_once(crew, queue, number, crew.now() + round(number / 10) + 300)
    kills = 0
    while len(crew.members) > 1:
        below(crew, keys, round(not_moved(crew, keys) * dice.uniform(0.5, 0.98)))
        crew.dies(dice.choice(crew.members))
        kills += 1
    below(crew, keys, 0)
    found = moved(crew, keys)
    assert set(found.values()) == {1}
    assert len(found) == number
    crew.goes_home()
    return kills


def below(crew: Crew, keys: QueueKeys, number: int) -> None:
    """Returns when no more than so many still wait."""
    eventually(lambda: not_moved(crew, keys) <= number, within=60, every=0.001)


def test_very_many_jobs_due_at_once_are_moved_in_seconds_and_no_other_job_starves(
    crew: Crew, figure: Figure
) -> None:
    number, schedulers = scale.of(10_000, long=100_000), scale.of(3, long=8)
    for _ in range(schedulers):
        crew.joins("promoter", "mail")
    crew.at_work()
    due = crew.now() + 500 + number // 10
    keys = due_at_once(crew, "mail", number, due)
    assert crew.now() < due
    eventually(lambda: crew.now() >= due, within=60, every=0.001)
    with pinging(crew.server) as pings:
        eventually(lambda: not not_moved(crew, keys), within=60, every=0.005)
        taken = (crew.now() - due) / 1000
    crew.goes_home()
    p99 = sorted(pings)[int(len(pings) * 0.99)]
    figure(
        "R11",
        f"{number} due at once, {schedulers} schedulers: moved in {taken:.2f} s, p99 of PING {p99:.1f} ms",
    )
    assert set(moved(crew, keys).values()) == {1}
    assert taken <= scale.SLACK
    # On a machine that does nothing else it is the p99 that stays below: the benchmark measures it.
    assert statistics.median(pings) < scale.of(200, long=20)


@contextmanager
def pinging(server: Server) -> Generator[list[float]]:
    """Milliseconds of one PING after the other meanwhile."""
    taken: list[float] = []
    enough = threading.Event()

    def ping() -> None:
        with server.client() as client:
            while not enough.is_set():
                began = time.perf_counter()
                client.ping()
                taken.append((time.perf_counter() - began) * 1000)
                time.sleep(0.001)

    thread = threading.Thread(target=ping)
    thread.start()
    try:
        yield taken
    finally:
        enough.set()
        thread.join()
