"""Jobs that are unknown, unreadable, deleted, or wanted by several at once."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

import pytest

from fennelq.broker.keys import GROUP, queue_keys
from fennelq.model.job import Delivery
from fennelq.model.outcome import Outcome, retried
from tests.broker.desk import DEAD, DONE, FAILURE, Desk, a_job
from tests.chaos import jobs, scale, yesterday
from tests.chaos.account import account, drained
from tests.chaos.conftest import Figure
from tests.chaos.fleet import LEASE, Fleet
from tests.chaos.load import send, some
from tests.kit.ledger import Ledger
from tests.kit.server import Server
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.timeout(scale.of(300, long=600))]

KEYS: Final = queue_keys(jobs.NAME, "default")


def test_a_task_that_only_the_new_version_knows_waits_for_it(
    fleet: Fleet, ledger: Ledger, server: Server, figure: Figure
) -> None:
    number = scale.of(200, long=1_000)
    old = fleet.start(app=f"{yesterday.__name__}:app", settings={"FENNELQ_LOG_LEVEL": "info"})
    sent = send(server.url, some(number, jobs.work, 1))
    old.process.wait_for('"task_unknown"')
    fleet.start()
    eventually(lambda: len(ledger.ends()) > number / 4, within=30, what="the new one does what it can get")
    fleet.retire(old)
    took = drained(server, within=40)
    fleet.stop()
    it = account(server, sent, ledger)
    figure(
        "D1", f"{number} jobs of a new task, a rolling deploy: {it}; done {took:.1f} s after the old one left"
    )
    it.sound()
    assert (it.done, it.dead, it.started_again) == (number, 0, 0)


@pytest.mark.audit(lost=["default:half"])
def test_garbage_in_the_queue_stops_no_executor(
    fleet: Fleet, ledger: Ledger, server: Server, figure: Figure
) -> None:
    number = scale.of(400, long=10_000)
    dice, ghosts = scale.dice("garbage"), 0
    worker = fleet.start()
    before = worker.executors()[0].pid
    sent: dict[str, str] = {}
    unreadable: set[str] = set()
    with server.client() as client:
        for place in range(number):
            kind = dice.choice(GARBAGE)
            if kind is None:
                key = f"bad{place}"
                unreadable.add(f"default:{key}")
                put_a_job_that_cannot_be_read(client, key, dice.choice(UNREADABLE))
            else:
                client.execute_command("XADD", KEYS["s"], "*", *kind)
                ghosts += 1
            if place % 10 == 0:
                sent |= send(server.url, some(1, jobs.work, 1))
    sent |= send(server.url, some(3, jobs.unprintable))
    good = [job for job, name in sent.items() if name == "work"]
    drained(server, within=30)
    assert worker.executors()[0].pid == before
    fleet.stop()
    with server.client() as client:
        entries = cast("Any", client.xrange(KEYS["dlq"]))
        dead = Counter(f"default:{fields[b'i'].decode()}" for _, fields in entries)
        dropped = int(cast("Any", client.hget(KEYS["stats"], "dropped")))
    bad = unreadable | (set(sent) - set(good))
    figure(
        "D2",
        f"{ghosts} entries of no job dropped, {len(bad)} unreadable jobs dead once, {len(good)} good ones done",
    )
    assert set(dead) == bad, sorted(bad - set(dead))[:5]
    assert set(dead.values()) == {1}
    assert dropped == ghosts
    it = account(server, dict.fromkeys(good, "work"), ledger)
    assert (it.done, it.started_again) == (len(good), 0)


GARBAGE: Final[list[list[Any] | None]] = [
    None,
    None,
    ["i", "missing", "n", "1"],
    ["n", "1"],
    ["i", "x", "i", "y"],
    ["", ""],
    ["i", b"\xff\xfe", "n", "1"],
    ["x", "y" * (1 << 16)],
    ["i", "missing", "n", "many"],
    ["i", "", "n", ""],
]
UNREADABLE: Final = [
    b"",
    b"{",
    b"[[1",
    b"\xff\xfe",
    b"[[],{}]",
    b'[["x"],{}]',
    b"null",
    b"[" * 5000,
]


PUT: Final = """
local entry = redis.call('XADD', KEYS[1], '*', 'i', ARGV[1], 'n', '1')
redis.call('HSET', KEYS[2], 't', ARGV[2], 'a', ARGV[3], 'p', 's/' .. entry, 'c', '1')
"""


def put_a_job_that_cannot_be_read(client: Any, key: str, args: bytes) -> None:
    """As an older version, or a client in another language, might have written it."""
    client.eval(PUT, 2, KEYS["s"], KEYS.record(key), key, f"{jobs.__name__}:work", args)


@pytest.mark.audit(skip="an operator has deleted entries")
def test_entries_that_an_operator_deletes_are_never_run_as_empty_jobs(
    fleet: Fleet, ledger: Ledger, server: Server, figure: Figure
) -> None:
    fleet.start(concurrency=100)
    fleet.start()
    sent = send(server.url, some(100, jobs.work, 3 * LEASE * 1000))
    eventually(lambda: len(ledger.starts()) == 100, within=30)
    with server.client() as client:
        pending = client.xpending_range(KEYS["s"], GROUP, "-", "+", 1000)
        deleted = client.xdel(KEYS["s"], *(entry["message_id"] for entry in pending))
        began = time.monotonic()
        eventually(
            lambda: client.xpending(KEYS["s"], GROUP)["pending"] == 0, within=1.5 * LEASE + scale.SLACK
        )
        took = time.monotonic() - began
        vanished = int(cast("Any", client.hget(KEYS["stats"], "vanished")))
    fleet.stop()
    figure(
        "D3",
        f"{deleted} pending entries deleted: {vanished} counted, none pending {took:.2f} s later, runs of empty jobs 0",
    )
    assert deleted == vanished == 100
    assert ledger.starts() == dict.fromkeys(sent, 1)


def test_of_all_who_settle_a_job_at_once_one_wins(server: Server, figure: Figure) -> None:
    races, wins = scale.of(100, long=1_000), Counter[str]()
    desks = [Desk(server) for _ in range(4)]
    for race in range(races):
        (delivery,) = desks[0].executing(a_job(str(race)))
        won = at_once(
            {
                "success": partial(settled, desks[0], delivery, DONE),
                "dead": partial(settled, desks[1], delivery, DEAD),
                "retry": partial(settled, desks[2], delivery, retried(3600, FAILURE)),
                "recovery": lambda: desks[3].recover().requeued,
            }
        )
        assert sum(won.values()) == 1, won
        wins.update(won)
        desks[0].finish(desks[0].take())
    figure("D12", f"{races} races of four: one winner each ({dict(wins)})")
    stats = desks[0].stats()
    assert stats.get("S", 0) == wins["success"] + wins["recovery"]
    assert (stats.get("D", 0), stats.get("R", 0)) == (wins["dead"], wins["retry"])
    for desk in desks:
        desk.close()


def settled(desk: Desk, delivery: Delivery, outcome: Outcome) -> int:
    return desk.finish([delivery], outcome)[0] == 1


def at_once(runners: dict[str, Callable[[], int]]) -> dict[str, int]:
    """What each of them answered, started in the same moment."""
    start, answers = threading.Barrier(len(runners)), dict[str, int]()

    def run(name: str) -> None:
        start.wait()
        answers[name] = int(runners[name]())

    threads = [threading.Thread(target=run, args=(name,)) for name in runners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers
