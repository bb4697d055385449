"""A Redis that dies, forgets, fills up, or refuses writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, Final, cast

import pytest
import redis

from fennelq.broker.keys import queue_keys
from fennelq.errors import BrokerUnavailable
from tests.broker.desk import DONE, Desk, a_job
from tests.chaos import jobs, scale
from tests.chaos.account import Sent, account, drained, left
from tests.chaos.conftest import Figure
from tests.chaos.fleet import LEASE, Fleet
from tests.chaos.load import Feeder, send, some
from tests.kit.ledger import Ledger
from tests.kit.server import Server
from tests.kit.spawn import Spawner
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.timeout(scale.of(300, long=600))]

KEYS: Final = queue_keys(jobs.NAME, "default")
MakeServer = Callable[..., Server]


def no_executor_has_ended(fleet: Fleet, executors: list[int]) -> bool:
    """Neither a supervisor nor one of these executors."""
    there = [one.pid for worker in fleet.workers for one in worker.executors()]
    return all(worker.process.running for worker in fleet.workers) and set(executors) <= set(there)


def pids(fleet: Fleet) -> list[int]:
    return [one.pid for one in fleet.executors()]


def until_a_job_is_done(server: Server, ledger: Ledger) -> tuple[float, Sent]:
    """Seconds until a job that is sent now has ended."""
    began = time.monotonic()
    sent = send(server.url, some(1, jobs.work, 1))
    eventually(lambda: set(sent) <= set(ledger.ends()), within=5 + scale.SLACK, every=0.02)
    return time.monotonic() - began, sent


# It forgets


@pytest.mark.audit(skip="jobs were deleted")
@pytest.mark.parametrize("how", ["FLUSHALL", "DEL of a lane", "restart without persistence"])
def test_a_redis_that_has_forgotten_everything_is_worked_with_again(
    fleet: Fleet, ledger: Ledger, server: Server, figure: Figure, how: str
) -> None:
    number = scale.of(300, long=1_000)
    fleet.start(processes=2)
    before = pids(fleet)
    feeder = Feeder(server.url, 10**6, per_second=200, seed=scale.SEED).start()
    eventually(lambda: len(ledger.ends()) > 50, within=30)
    forget(server, how)
    feeder.enough()
    feeder.finish()
    took, _ = until_a_job_is_done(server, ledger)
    sent = send(server.url, some(number, jobs.work, 5))
    eventually(lambda: set(sent) <= set(ledger.ends()), within=30)
    warnings = fleet.output.count('"groups_made_anew"')
    figure("R2", f"{how}: a new job done {took:.2f} s later, {number} of {number} done, {warnings} warnings")
    assert no_executor_has_ended(fleet, before)
    assert warnings >= 1
    assert took < 5 + scale.SLACK
    fleet.stop()


def forget(server: Server, how: str) -> None:
    if how.startswith("restart"):
        server.kill()
        server.start()
        return
    with server.client() as admin:
        _ = admin.flushall() if how == "FLUSHALL" else admin.delete(KEYS["s"])


def test_a_redis_that_forgets_its_scripts_again_and_again_causes_no_error(
    fleet: Fleet, ledger: Ledger, server: Server, figure: Figure
) -> None:
    seconds = scale.of(3, long=10)
    fleet.start(processes=2)
    feeder = Feeder(server.url, 10**6, per_second=200, seed=scale.SEED).start()
    flushes, end = 0, time.monotonic() + seconds
    with server.client() as admin:
        while time.monotonic() < end:
            admin.script_flush()
            flushes += 1
            time.sleep(0.1)  # that is how often
    feeder.enough()
    sent = feeder.finish()
    drained(server, within=30)
    fleet.stop()
    it = account(server, sent, ledger)
    figure("R10", f"{flushes} SCRIPT FLUSH: {it}")
    it.sound()
    assert it.done == len(sent)
    assert it.started_again == 0
    assert 'trouble"' not in fleet.output


# It is away


def test_an_outage_longer_than_the_lease_takes_no_job_away(
    a_server: MakeServer, spawn: Spawner, ledger: Ledger, figure: Figure
) -> None:
    """R13. Redis is away for two leases with 200 jobs in flight: none is taken from the healthy executor that runs it,
    none starts twice, and each has the result of its own call."""
    outages, in_flight = scale.of(1, long=10), 200
    server = a_server(aof=True)
    fleet = Fleet(spawn, server, ledger)
    for _ in range(2):
        fleet.start(processes=2, concurrency=50)
    length = outages * (3 * LEASE + 2) + 2 * LEASE
    sent = send(server.url, some(in_flight, jobs.work, 1000 * length))
    eventually(lambda: len(ledger.starts()) == in_flight, within=30)
    time.sleep(LEASE)  # by now all of them judge others
    before = pids(fleet)
    for _ in range(outages):
        server.kill()
        time.sleep(2 * LEASE)
        server.start()
        time.sleep(LEASE + 1)  # an executor that judged too early would have done so by now
    assert no_executor_has_ended(fleet, before)
    drained(server, within=30 + length)
    fleet.stop()
    it = account(server, sent, ledger)
    figure("R13", f"{outages} outages of {2 * LEASE:g} s with {in_flight} in flight: {it}")
    it.sound()
    assert (it.done, it.recovered, it.started_again, it.run_twice) == (in_flight, 0, 0, 0)
    assert ledger.starts() == ledger.ends() == dict.fromkeys(sent, 1)
    assert it.wrong_results == []


def test_a_redis_that_loads_for_long_is_waited_for(
    a_server: MakeServer, spawn: Spawner, ledger: Ledger, figure: Figure
) -> None:
    keys, delay_us = scale.of(3_000, long=12_000), 1_200
    server = a_server(aof=True, config={"key-load-delay": str(delay_us)})
    fleet = Fleet(spawn, server, ledger)
    fleet.start(processes=2)
    with server.client() as admin, admin.pipeline(transaction=False) as pipe:
        for number in range(keys):
            pipe.set(f"ballast:{number}", "x", ex=3600)
        pipe.execute()
    sent = send(server.url, some(20, jobs.work, LEASE * 1000))
    eventually(lambda: len(ledger.starts()) == 20, within=30)
    before = pids(fleet)
    server.kill()
    began = time.monotonic()
    server.start(within=60)
    loading = time.monotonic() - began
    resumed, probe = until_a_job_is_done(server, ledger)
    drained(server, within=30)
    assert no_executor_has_ended(fleet, before)
    fleet.stop()
    with server.client() as admin:
        admin.delete(*admin.keys("ballast:*"))
    it = account(server, {**sent, **probe}, ledger, budget=20)
    figure(
        "R3",
        f"loading for {loading:.1f} s: a new job done {resumed:.2f} s after it, 20 in flight, {it.done} done",
    )
    it.sound()
    assert loading > LEASE
    assert resumed < 2 + scale.SLACK


def test_a_worker_may_be_started_before_redis(a_server: MakeServer, spawn: Spawner, ledger: Ledger) -> None:
    server = a_server(aof=True)
    fleet = Fleet(spawn, server, ledger)
    sent = send(server.url, some(10, jobs.work, 1))
    server.kill()
    worker = fleet.start(ready=False)
    worker.process.wait_for('"waiting_for_redis"')
    server.start()
    drained(server, within=30)
    fleet.stop()
    account(server, sent, ledger).sound()


@pytest.mark.audit(unfinished=True)
def test_a_worker_can_be_stopped_while_redis_is_away(
    a_server: MakeServer, spawn: Spawner, ledger: Ledger, figure: Figure
) -> None:
    server = a_server(aof=True)
    fleet = Fleet(spawn, server, ledger)
    worker = fleet.start("--grace", "1")
    send(server.url, some(8, jobs.work, 60_000))
    eventually(lambda: len(ledger.starts()) == 8, within=30)
    server.kill()
    began = time.monotonic()
    worker.process.term()
    assert worker.process.returncode(30) == 0
    took = time.monotonic() - began
    assert "Traceback" not in worker.log
    figure("R1", f"SIGTERM while Redis is down, grace 1 s: gone after {took:.2f} s")
    assert took < 1 + 10 + scale.SLACK
    server.start()


# It has no room


def test_over_maxmemory_what_runs_is_settled_and_callers_get_an_error(
    fleet: Fleet, ledger: Ledger, server: Server, figure: Figure
) -> None:
    fleet.start(processes=2)
    sent = send(server.url, some(64, jobs.work, 1.5 * LEASE * 1000))
    eventually(lambda: len(ledger.starts()) == 64, within=30)
    with server.configured(maxmemory="1"):
        with pytest.raises(BrokerUnavailable, match="OOM"):
            send_impatiently(server.url)
        eventually(lambda: left(server) == 0, within=2 * LEASE + scale.SLACK, what="everything is settled")
    back, probe = until_a_job_is_done(server, ledger)
    fleet.stop()
    it = account(server, {**sent, **probe}, ledger)
    it.sound()
    figure(
        "R7",
        f"over maxmemory with 64 in flight: {it}; a new job done {back:.2f} s after the limit was lifted",
    )
    assert (it.done, it.recovered, it.started_again) == (65, 0, 0)


def send_impatiently(url: str) -> None:
    app = jobs.app_of(redis_url=url, enqueue_timeout=0.5)
    try:
        jobs.task_of(app, jobs.work).sync.delay(1)
    finally:
        app.blocking.close()


def test_a_redis_that_may_evict_jobs_is_refused(fleet: Fleet, server: Server, figure: Figure) -> None:
    with server.configured(maxmemory_policy="allkeys-lru"):
        refused = fleet.start(ready=False)
        code = refused.process.returncode(30)
        (line,) = [line for line in refused.log.splitlines() if "allkeys-lru" in line]
        fleet.workers.remove(refused)
        fleet.start("--force")
        fleet.stop()
    figure("R8", f"maxmemory-policy allkeys-lru: exit {code}, one line; --force goes on")
    assert code == 78
    assert "noeviction" in line


def test_a_full_disk_is_waited_out(
    a_server: MakeServer, spawn: Spawner, ledger: Ledger, figure: Figure
) -> None:
    """What Redis cannot save it refuses to accept: every write is answered with MISCONF."""
    server = a_server(config={"save": "1 1"})
    fleet = Fleet(spawn, server, ledger)
    fleet.start(processes=2)
    before = pids(fleet)
    sent = send(server.url, some(32, jobs.work, 2 * LEASE * 1000))
    eventually(lambda: len(ledger.starts()) == 32, within=30)
    with unable_to_save(server):
        eventually(lambda: len(ledger.ends()) == 32, within=30, what="what runs goes on")
        time.sleep(2 * LEASE)  # longer than any lease
        assert no_executor_has_ended(fleet, before)
    began = time.monotonic()
    drained(server, within=5 + scale.SLACK)
    healed = time.monotonic() - began
    fleet.stop()
    it = account(server, sent, ledger)
    figure(
        "R9",
        f"no write for more than {2 * LEASE:g} s, 32 outcomes waiting: settled {healed:.2f} s after; {it}",
    )
    it.sound()
    assert (it.done, it.recovered, it.started_again) == (32, 0, 0)


@contextmanager
def unable_to_save(server: Server) -> Generator[None]:
    """A folder is where the snapshot should go: renaming the file to it fails, for root as for any user."""
    obstacle = server.directory / "dump.rdb"
    obstacle.unlink(missing_ok=True)
    obstacle.mkdir()
    with server.client() as admin:
        eventually(lambda: not _can_write(admin), within=30, every=0.05, what="Redis refuses to write")
        yield
        obstacle.rmdir()
        with suppress(redis.ResponseError):  # when the server's own next try has just begun
            admin.bgsave()
        eventually(lambda: _can_write(admin), within=30, every=0.05)


def _can_write(admin: redis.Redis) -> bool:
    try:
        admin.set("ballast", "x", px=1)
    except redis.ResponseError as error:
        assert "MISCONF" in str(error)  # noqa: PT017
        return False
    return True


# Jobs that are stuck


@pytest.mark.audit(unfinished=True)
def test_a_stuck_job_costs_a_few_kilobytes(server: Server, figure: Figure) -> None:
    number, each = scale.of(20_000, long=1_000_000), 100
    costs: dict[int, int] = {}
    for stuck in (0, 1):
        desk = Desk(server)
        for first in range(0, number, each):
            desk.enqueue(*(a_job(str(first + i), args=b"[" + b"1" * 200 + b"]") for i in range(each)))
            desk.finish(desk.take()[stuck:], DONE)
        costs[stuck] = int(cast("Any", desk.redis.memory_usage(desk.keys["s"], samples=0)))
        desk.close()
        with server.client(timeout=60) as patient:  # two million keys at once take their time
            patient.flushall()
    per_job = (costs[1] - costs[0]) / (number / each)
    figure(
        "R12",
        f"{number} jobs passed: {costs[0]} bytes left, {per_job:.0f} for each of {number // each} stuck ones",
    )
    assert costs[0] < 1 << 20
    assert per_job < 4_500
