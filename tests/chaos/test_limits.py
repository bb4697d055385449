"""Limits under faults: never two at once beyond a lost lease, and no slot is lost."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import count, pairwise
from typing import cast

import pytest

from fennelq import App
from fennelq.broker.keys import queue_keys
from fennelq.model.job import AnyJob
from tests.chaos import jobs, scale
from tests.chaos.account import account, drained
from tests.chaos.conftest import Figure
from tests.chaos.fleet import Fleet
from tests.chaos.load import Described, call, send, some
from tests.chaos.test_processes import begun
from tests.kit.ledger import Ledger
from tests.kit.proxy import Proxy
from tests.kit.server import Server
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.timeout(scale.of(300, long=900)), *scale.servers()]

KEYS = queue_keys(jobs.NAME, "default")
ACCOUNTS = 8
JOBS = scale.of(400, long=12_000)
KILLS = scale.of(4, long=20)
DELETED = ["everything", "slots", "lines", "waits"][: scale.of(2, long=4)]


def of_accounts(number: int, milliseconds: float = 10, accounts: int = ACCOUNTS) -> Described:
    def described(app: App) -> list[AnyJob]:
        return [call(app, jobs.for_account, milliseconds, n % accounts) for n in range(number)]

    return described


def overlaps(ledger: Ledger) -> Iterator[str]:
    """The runs of an account that began before the one before it had ended. A run that was killed has no end."""
    began: dict[tuple[str, str], float] = {}
    runs: defaultdict[str, list[tuple[float, float, str]]] = defaultdict(list)
    for row in ledger.read():
        if row.kind == "start":
            began[row.job_id, row.token] = row.at
        elif (at := began.get((row.job_id, row.token))) is not None:
            runs[row.note].append((at, row.at, row.job_id))
    for name, each in runs.items():
        for (_, ended, one), (at, _, other) in pairwise(sorted(each)):
            if at < ended:
                yield f"account {name}: {other} began {(ended - at) * 1000:.1f} ms before {one} had ended"


def ended(ledger: Ledger, number: int) -> None:
    eventually(lambda: len(ledger.ends()) >= number, within=120)


def left_of_limits(server: Server) -> list[str]:
    """The keys that are there only while a job waits for a limit, or holds a slot."""
    with server.client() as client:
        keys = cast("Iterator[bytes]", client.scan_iter(f"{KEYS.prefix}*", count=1000))
        names = [key.decode() for key in keys]
    kinds = tuple(KEYS.prefix + kind for kind in ("slots:", "line:", "wait:", "lines", "turn"))
    return sorted(name for name in names if name.startswith(kinds))


def test_l1_limits_hold_while_executors_are_killed_and_replies_are_lost(
    fleet: Fleet, proxy: Proxy, ledger: Ledger, server: Server, figure: Figure
) -> None:
    """L1. One at a time for each account, all jobs end, and no key of a limit is left. A lost reply makes an executor
    settle its jobs a second time."""
    dice, calls, one_in = scale.dice("limits"), count(1), scale.of(15, long=33)
    fleet.start(processes=2, url=proxy.url)
    proxy.drop_replies(lambda exchange: exchange.command == "EVALSHA" and next(calls) % one_in == 0, cut=True)
    sent = send(server.url, of_accounts(JOBS))
    for kill in range(1, KILLS + 1):
        ended(ledger, kill * JOBS // (KILLS + 2))
        if (victim := fleet.any(dice)) is not None:
            fleet.kill(victim)
    drained(server, within=scale.of(90, long=600))
    lost = proxy.counters.dropped
    proxy.up()
    fleet.stop()
    assert [*overlaps(ledger)] == []
    assert left_of_limits(server) == []
    it = account(server, sent, None)
    assert (it.done, it.lost, it.wrong_results) == (JOBS, [], [])
    figure(
        "L1",
        f"{JOBS} jobs of {ACCOUNTS} accounts, {KILLS} kills, {lost} replies lost: {it.recovered} recovered, "
        "never two at once",
    )
    assert lost >= 3


def test_l2_an_executor_that_stood_still_gives_back_nothing_that_is_not_its_own(
    fleet: Fleet, ledger: Ledger, server: Server, figure: Figure
) -> None:
    """L2. Its job runs elsewhere by now, and still holds the only slot."""
    fleet.start()
    (first,) = send(server.url, of_accounts(1, 4000, accounts=1))
    begun(ledger, 1)
    (zombie,) = fleet.executors()
    others = send(server.url, of_accounts(5, 1, accounts=1))
    fleet.pause(zombie)
    fleet.start()
    eventually(lambda: ledger.starts()[first] == 2, within=30)
    fleet.let_go_on(zombie)
    drained(server, within=60)
    fleet.stop()
    second = max(row.at for row in ledger.read() if row.kind == "start" and row.job_id == first)
    ended = max(row.at for row in ledger.read() if row.kind == "end" and row.job_id == first)
    assert ended > second
    # Those that waited began when the job had really ended, and not when the executor came back.
    assert min(row.at for row in ledger.read() if row.kind == "start" and row.job_id in others) > second + 3.9
    assert left_of_limits(server) == []
    figure("L2", "the zombie's end gave no slot back")


def test_l3_the_line_moves_on_when_the_record_of_a_holder_is_deleted(
    fleet: Fleet, ledger: Ledger, server: Server, figure: Figure
) -> None:
    """L3. Within two intervals of maintenance."""
    fleet.start(settings={"FENNELQ_MAINTENANCE_INTERVAL": "0.5", "FENNELQ_GRACE_PERIOD": "0.1"})
    (holder,) = send(server.url, of_accounts(1, 600_000, accounts=1))
    begun(ledger, 1)
    sent = send(server.url, of_accounts(50, 1, accounts=1))
    with server.client() as client:
        client.delete(KEYS.record(holder.partition(":")[2]))
        eventually(lambda: len(ledger.ends()) == len(sent), within=30)
        assert client.hget(KEYS["stats"], "slots_mended") == b"1"
    assert '"slots_mended"' in fleet.output
    assert "c:" in fleet.output
    fleet.stop()
    figure("L3", "1 slot mended, 50 jobs ran")


@pytest.mark.parametrize("what", DELETED)
@pytest.mark.audit(skip="keys were deleted on purpose")
def test_l4_no_job_is_stuck_when_the_keys_of_limits_are_deleted(
    fleet: Fleet, ledger: Ledger, server: Server, figure: Figure, what: str
) -> None:
    """L4. And the limits hold for those that start later."""
    fleet.start(settings={"FENNELQ_MAINTENANCE_INTERVAL": "0.5"})
    send(server.url, of_accounts(40, 20, accounts=2))
    begun(ledger, 4)
    with server.client() as client:
        if what == "everything":
            client.flushall()
        else:
            pattern = {"slots": "slots:*", "lines": "lines", "waits": "wait:*"}[what]
            client.delete(*cast("Iterator[bytes]", client.scan_iter(KEYS.prefix + pattern)))
    sent = send(server.url, of_accounts(40, 20, accounts=2))
    eventually(lambda: sent.keys() <= ledger.ends().keys(), within=60)
    drained(server, within=30)
    fleet.stop()
    assert left_of_limits(server) == []
    figure("L4", f"{what} deleted: all jobs ended")


def left_out_of_the_short_run() -> list[pytest.MarkDecorator]:
    """Eight processes start, and the time is real."""
    return [] if scale.LONG else [pytest.mark.slow]


def times_of(ledger: Ledger, kind: str, jobs_sent: Iterable[str]) -> list[float]:
    """When these jobs have started, or ended, in order."""
    chosen = set(jobs_sent)
    return sorted(row.at for row in ledger.read() if row.kind == kind and row.job_id in chosen)


@pytest.mark.parametrize("seconds", [pytest.param(scale.of(10, long=60), marks=left_out_of_the_short_run())])
def test_l8_a_rate_is_kept_by_eight_executors_of_which_two_are_killed(
    fleet: Fleet, ledger: Ledger, server: Server, figure: Figure, seconds: int
) -> None:
    """L8. Ten jobs start per second, and the free slots serve jobs without a limit."""
    dice = scale.dice("rate")
    fleet.start(processes=8, concurrency=4)
    paced = send(server.url, some(10 * seconds + 50, jobs.paced, 200))
    others, waits = dict[str, str](), list[float]()
    for number in range(4):
        due = number * 10 * seconds // 4
        eventually(lambda due=due: len(times_of(ledger, "start", paced)) > due, within=2 * seconds)  # type: ignore[misc]
        if number in (1, 2) and (victim := fleet.any(dice)) is not None:
            fleet.kill(victim)
        began, more = time.monotonic(), send(server.url, some(100, jobs.work, 1))
        eventually(lambda more=more: more.keys() <= ledger.ends().keys(), within=30)  # type: ignore[misc]
        waits.append(times_of(ledger, "end", more)[-1] - began)
        others |= more
    drained(server, within=30 + seconds)
    fleet.stop()
    starts = times_of(ledger, "start", paced)
    within = [at for at in starts if at < starts[0] + seconds]
    again = len(starts) - len(paced)
    busiest = max(sum(at <= other < at + 1 for other in starts) for at in starts)
    figure(
        "L8",
        f"{len(within)} starts of 10/s in {seconds} s on 8 executors, 2 killed, {again} started again; at most "
        f"{busiest} in a second; {len(others)} jobs without a limit, 100 at a time, done after {max(waits):.1f} s",
    )
    assert 10 * (seconds - 1) <= len(within) <= 10 * (seconds + 1) + again
    assert len(ledger.ends().keys() & paced.keys()) == len(paced)
    assert max(waits) < 5 + fleet.lease
    assert left_of_limits(server) == []
