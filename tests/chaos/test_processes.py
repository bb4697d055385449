"""Processes that end, stop in order, or do not move any more."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from fennelq.broker.keys import GROUP
from tests.broker.desk import Desk, a_job
from tests.chaos import jobs, scale
from tests.chaos.account import account, drained
from tests.chaos.conftest import Figure
from tests.chaos.fleet import LEASE, Executor, Fleet, Worker
from tests.chaos.load import Feeder, send, some
from tests.kit.ledger import Ledger, Row
from tests.kit.server import Server
from tests.kit.spawn import Spawner
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.timeout(scale.of(300, long=600))]


def rows_of(ledger: Ledger, kind: str) -> list[Row]:
    return [row for row in ledger.read() if row.kind == kind]


def begun(ledger: Ledger, number: int, *, within: float = 20.0) -> list[Row]:
    """The starts, as soon as there are so many."""
    return eventually(
        lambda: rows if len(rows := rows_of(ledger, "start")) >= number else None,
        within=within,
        what=f"{number} starts",
    )


def the_executor(worker: Worker) -> Executor:
    (executor,) = worker.executors()
    return executor


# Crashes


def test_with_the_shortest_lease_and_default_intervals_jobs_are_recovered(
    spawn: Spawner, ledger: Ledger, server: Server, figure: Figure
) -> None:
    fleet = Fleet(spawn, server, ledger, lease=1)
    victim = fleet.start()
    sent = send(server.url, some(8, jobs.long_at_first, 100))
    begun(ledger, 8)
    fleet.start()
    killed = time.monotonic()
    assert fleet.kill(the_executor(victim)) == 8
    again = [row for row in begun(ledger, 16) if row.at > killed]
    assert {row.job_id for row in again} == set(sent)
    drained(server, within=30)
    fleet.stop()
    it = account(server, sent, ledger, budget=fleet.budget)
    figure(
        "P4", f"lease of 1 s: all 8 jobs started again {max(row.at for row in again) - killed:.2f} s later"
    )
    it.sound()
    assert it.done == 8


def test_after_a_crash_all_its_jobs_start_again_at_once_elsewhere(
    fleet: Fleet, ledger: Ledger, server: Server, figure: Figure
) -> None:
    victim = fleet.start()
    sent = send(server.url, some(32, jobs.work, 6 * LEASE * 1000))
    begun(ledger, 32)
    fleet.start(concurrency=64)
    time.sleep(LEASE)  # the survivor has to have been heard for a lease before it judges others
    killed = time.monotonic()
    assert fleet.kill(the_executor(victim)) == 32
    again = [row for row in begun(ledger, 64) if row.at > killed]
    delays = sorted(row.at - killed for row in again)
    assert {row.job_id for row in again} == set(sent)
    drained(server, within=30)
    fleet.stop()
    account(server, sent, ledger, budget=fleet.budget).sound()
    figure(
        "F12",
        f"32 jobs of a killed executor started again {delays[0]:.2f}–{delays[-1]:.2f} s later (lease {LEASE:g})",
    )
    assert delays[-1] < 2 * LEASE + scale.SLACK


def test_executors_end_with_their_supervisor(
    fleet: Fleet, ledger: Ledger, server: Server, figure: Figure
) -> None:
    doomed = fleet.start(processes=4, concurrency=8)
    sent = send(server.url, some(32, jobs.work, 60_000, queue="long"))
    sent = {**sent, **send(server.url, some(8, jobs.in_thread, 5, queue="long"))}
    begun(ledger, 32)
    children = doomed.executors()
    killed = time.monotonic()
    doomed.process.kill()
    fleet.workers.remove(doomed)
    eventually(lambda: not any(child.running for child in children), within=30)
    gone = time.monotonic() - killed
    with server.client() as client:
        pending = cast("Any", client.xpending(f"fq:{{{jobs.NAME}/long}}:s", GROUP))["pending"]
    figure(
        "F3",
        f"4 executors gone {gone:.2f} s after their supervisor, {pending} of 32 jobs left in their hands",
    )
    assert gone < 3 + scale.SLACK
    assert pending <= 8, "only what is stuck in a thread may be left to its lease"
    finisher = fleet.start("--grace", "0.2", concurrency=64)
    again = begun(ledger, 32 + 40, within=30)
    assert {row.job_id for row in again} == set(sent)
    assert fleet.retire(finisher) == 0


# Stops


def test_rolling_restarts_run_nothing_twice(
    fleet: Fleet, ledger: Ledger, server: Server, figure: Figure
) -> None:
    restarts = scale.of(6, long=20)
    feeder = Feeder(server.url, scale.of(2_000, long=20_000), per_second=200, seed=scale.SEED).start()
    workers = [fleet.start(), fleet.start()]
    slowest = 0.0
    for _ in range(restarts):
        workers.append(fleet.start())
        began = time.monotonic()
        assert fleet.retire(workers.pop(0)) == 0
        slowest = max(slowest, time.monotonic() - began)
    feeder.enough()
    sent = feeder.finish()
    drained(server, within=30)
    fleet.stop()
    it = account(server, sent, ledger)
    it.sound()
    figure("F4", f"{restarts} restarts under load: {it}; slowest stop {slowest:.2f} s")
    assert it.started_again == 0
    assert it.recovered == 0


def test_what_outlasts_the_grace_period_is_handed_back_untouched(
    fleet: Fleet, ledger: Ledger, server: Server, figure: Figure
) -> None:
    first = fleet.start("--grace", "1")
    sent = send(server.url, some(8, jobs.work, 3_000))
    begun(ledger, 8)
    began = time.monotonic()
    assert fleet.retire(first) == 0
    took = time.monotonic() - began
    handed = time.monotonic()
    fleet.start()
    drained(server, within=30)
    fleet.stop()
    it = account(server, sent, ledger, budget=8)
    it.sound()
    figure(
        "F4", f"grace 1 s: gone after {took:.2f} s, {it.released} handed back, {it.started_again} run again"
    )
    assert (it.done, it.released, it.started_again, it.recovered) == (8, 8, 8, 0)
    assert took < 1 + 2 + scale.SLACK
    again = [row for row in rows_of(ledger, "start") if row.at > handed]
    assert len(again) == 8
    with server.client() as client:
        for job in sent:
            record = cast("Any", client.hgetall(f"fq:{{{jobs.NAME}/default}}:j:{job.partition(':')[2]}"))
            assert b"n" not in record, "a try was spent"
            history = cast(
                "Any", client.lrange(f"fq:{{{jobs.NAME}/default}}:hist:{job.partition(':')[2]}", 0, -1)
            )
            assert b'"what":"stopped"' in history[0]


def test_a_second_signal_hands_everything_back_at_once(
    fleet: Fleet, ledger: Ledger, server: Server, figure: Figure
) -> None:
    worker = fleet.start(settings={"FENNELQ_LOG_LEVEL": "info"})
    send(server.url, some(8, jobs.work, 60_000))
    begun(ledger, 8)
    began = time.monotonic()
    worker.process.term()
    worker.process.wait_for('"stopping"')
    worker.process.term()
    assert fleet.see_off(worker) == 0
    took = time.monotonic() - began
    figure("F4", f"8 jobs of a minute, two signals: gone after {took:.2f} s")
    assert took < 5 + scale.SLACK
    with server.client() as client:
        assert cast("Any", client.xpending(f"fq:{{{jobs.NAME}/default}}:s", GROUP))["pending"] == 0
        assert client.xlen(f"fq:{{{jobs.NAME}/default}}:s") == 8


def test_a_thread_that_is_stuck_does_not_hold_up_the_exit(
    fleet: Fleet, ledger: Ledger, server: Server, figure: Figure
) -> None:
    worker = fleet.start("--grace", "0.5")
    sent = send(server.url, some(2, jobs.in_thread, 20))
    begun(ledger, 2)
    began = time.monotonic()
    assert fleet.retire(worker, within=30) == 0
    took = time.monotonic() - began
    figure("F4", f"2 threads stuck for 20 s: gone after {took:.2f} s")
    assert len(sent) == 2
    with server.client() as client:
        assert cast("Any", client.xpending(f"fq:{{{jobs.NAME}/default}}:s", GROUP))["pending"] == 0


# Loops that do not move


@pytest.mark.parametrize("how", ["block", "spin"])
def test_a_blocked_loop_keeps_its_jobs(
    fleet: Fleet, ledger: Ledger, server: Server, figure: Figure, how: str
) -> None:
    victim = fleet.start()
    fleet.start()
    function = getattr(jobs, how)
    sent = send(server.url, some(1, function, 3 * LEASE))
    drained(server, within=30)
    fleet.stop()
    it = account(server, sent, ledger)
    it.sound()
    assert (it.done, it.recovered, it.started_again) == (1, 0, 0)
    (line,) = [line for line in fleet.output.splitlines() if '"loop_blocked"' in line]
    assert "jobs.py:" in line
    assert f"in {how}" in line
    assert f"jobs:{how}" in line
    assert victim.process.returncode() == 0
    figure("F7", f"{how} for {3 * LEASE:g} s: extra runs {it.started_again}, recovered {it.recovered}")


def test_a_call_that_keeps_the_interpreter_to_itself_ends_once_all_the_same(
    fleet: Fleet, ledger: Ledger, server: Server, figure: Figure
) -> None:
    fleet.start()
    fleet.start()
    sent = send(server.url, some(1, jobs.hog_at_first, 2.5 * LEASE))
    drained(server, within=60)
    eventually(lambda: len(rows_of(ledger, "end")) == len(rows_of(ledger, "start")), within=40)
    fleet.stop()
    it = account(server, sent, ledger, budget=1)
    it.sound()
    stale = fleet.output.count('"lease_lost"')
    figure("F7", f"interpreter held for {2.5 * LEASE:g} s: extra runs {it.started_again}, stale {stale}")
    assert it.done == 1
    assert stale == it.started_again


def test_a_loop_that_is_stalled_for_too_long_is_replaced(
    fleet: Fleet, ledger: Ledger, server: Server, figure: Figure
) -> None:
    limit = 3.0
    worker = fleet.start(settings={"FENNELQ_STALL_TIMEOUT": str(limit)})
    stalled = the_executor(worker)
    sent = send(server.url, some(1, jobs.block, 600))
    (start,) = begun(ledger, 1)
    eventually(lambda: not stalled.running, within=limit + 5 + scale.SLACK)
    took = time.monotonic() - start.at
    worker.process.wait_for('"loop_stalled"')
    worker.process.wait_for("in block")  # the stacks
    eventually(lambda: worker.executors() and the_executor(worker).pid != stalled.pid, within=30)
    figure("F7", f"stalled for more than {limit:g} s: replaced after {took:.2f} s")
    assert took < limit + 5 + scale.SLACK
    worker.process.kill(group=True)
    with server.client() as client:
        client.flushall()
    assert len(sent) == 1


# Names


def test_consumers_of_many_lives_do_not_pile_up(server: Server, figure: Figure) -> None:
    """Each start of an executor has a name of its own."""
    lives = scale.of(1_000, long=10_000)
    desk = Desk(server)
    desk.enqueue(*(a_job(str(key)) for key in range(10)))
    held = desk.take("executor.5", free=10)
    # The lane has entries, and none for these: an executor that reads an empty lane makes no consumer.
    for life in range(lives):
        desk.fetch(f"executor.{life}", free=1)
    desk.enqueue(*(a_job(str(key)) for key in range(10, 20)))
    held += desk.take("executor.7", free=10)
    assert len(desk.consumers()) == lives
    while desk.gc(idle_ms=-1, limit=100)[1]:
        pass
    left = desk.consumers()
    figure("F11", f"{lives} names: {len(left)} left, both with jobs in their hands among them")
    assert left == {"executor.5", "executor.7"}
    assert desk.finish(held) == [1] * 20
    desk.close()


def test_an_executor_that_leaves_takes_its_name_with_it(fleet: Fleet, server: Server, ledger: Ledger) -> None:
    for _ in range(2):
        fleet.start(processes=2)
    sent = send(server.url, some(20, jobs.work, 1))
    drained(server, within=30)
    fleet.stop()
    account(server, sent, ledger).sound()
    with server.client() as client:
        consumers = client.xinfo_consumers(f"fq:{{{jobs.NAME}/default}}:s", GROUP)
        assert {consumer["name"] for consumer in consumers} <= {b"recovery"}
        assert client.hlen(f"fq:{{{jobs.NAME}}}:executors") == 0
