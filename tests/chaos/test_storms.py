"""Everything at once, at random: no job is lost, none has two outcomes, whatever is killed, paused or cut off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from fennelq.broker.keys import queue_keys
from tests.chaos import jobs, scale
from tests.chaos.conftest import Figure
from tests.chaos.fleet import LEASE, Fleet
from tests.chaos.storm import Weather, storm
from tests.kit.ledger import Ledger
from tests.kit.server import Server
from tests.kit.spawn import Spawner

pytestmark = [pytest.mark.timeout(scale.of(300, long=900)), *scale.servers()]

NUMBER = scale.of(2_000, long=100_000)
PACE = scale.of(400, long=1_200)
SECONDS = scale.of(5, long=60)


def weather(**faults: int) -> Weather:
    return Weather(number=NUMBER, per_second=PACE, seconds=SECONDS, **faults)


def test_executors_are_killed(fleet: Fleet, ledger: Ledger, figure: Figure) -> None:
    after = storm(weather(kills=scale.of(8, long=50)), fleet, ledger, scale.dice("kills"))
    figure("F1", after)
    assert after.account.done == NUMBER
    assert after.until_empty <= 2.5 * LEASE + scale.SLACK


def test_executors_stand_still_and_come_back_as_zombies(fleet: Fleet, ledger: Ledger, figure: Figure) -> None:
    # An executor that has stood still takes no jobs from others for two leases, so there have to be some that have not.
    after = storm(weather(pauses=scale.of(4, long=15), workers=4), fleet, ledger, scale.dice("pauses"))
    figure("F5", after)
    assert after.account.done == NUMBER
    assert after.stale > 0


def test_poisonous_jobs_die_alone(fleet: Fleet, ledger: Ledger, figure: Figure) -> None:
    poison = scale.of(4, long=15)
    after = storm(weather(poison=poison, kills=scale.of(2, long=10)), fleet, ledger, scale.dice("poison"))
    figure("F6, F12", after)
    assert (after.account.done, after.account.dead) == (NUMBER, poison)
    starts = Counter(row.job_id for row in ledger.read() if row.kind == "start" and row.note in jobs.DEATHS)
    # Four deliveries. Of the first two it may not have used one: another one killed their executor before it began.
    assert len(starts) == poison
    assert set(starts.values()) <= {2, 3, 4}
    lines = "\n".join(last_words(fleet))
    for death in ("SIGKILL", "SIGSEGV", "SIGABRT", "exit code 3"):
        assert lines.count(f"last: {death}") >= poison // 4, lines


def last_words(fleet: Fleet) -> Iterator[str]:
    """The last words about each dead job."""
    keys = queue_keys(jobs.NAME, "default")
    with fleet.server.client() as client:
        for _, fields in cast("Any", client.xrange(keys["dlq"])):
            yield fields[b"m"].decode()


@pytest.mark.parametrize("fsync", ["everysec", "always"])
def test_redis_is_killed_and_comes_back(
    a_server: Callable[..., Server], spawn: Spawner, ledger: Ledger, figure: Figure, fsync: str
) -> None:
    fleet = Fleet(spawn, a_server(aof=True, config={"appendfsync": fsync}), ledger)
    kills = scale.of(2, long=6)
    after = storm(weather(server_kills=kills), fleet, ledger, scale.dice("server", fsync))
    figure("R1", f"{fsync}, {kills} server kills; {after}")
    assert after.account.done == NUMBER


def test_a_worker_is_cut_off_and_what_it_sent_arrives_later(
    fleet: Fleet, ledger: Ledger, figure: Figure
) -> None:
    partitions = scale.of(2, long=12)
    calm = weather(partitions=partitions)
    after = storm(calm, fleet, ledger, scale.dice("partitions"))
    figure("N1", f"{partitions} partitions; {after}")
    assert after.account.done == NUMBER
    assert after.stale > 0


@pytest.mark.skipif(not scale.LONG, reason="the parts of it are tested one by one")
def test_all_of_it(a_server: Callable[..., Server], spawn: Spawner, ledger: Ledger, figure: Figure) -> None:
    fleet = Fleet(spawn, a_server(aof=True), ledger)
    everything = weather(kills=15, pauses=5, server_kills=4, partitions=6, poison=3)
    after = storm(everything, fleet, ledger, scale.dice("everything"))
    figure("all at once", after)
    assert (after.account.done, after.account.dead) == (NUMBER, 3)
