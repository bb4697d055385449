"""Deaths that unwind: a job that ends the loop, or everything on it, is dead in the end and takes no other along."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import pytest

from fennelq.broker.keys import queue_keys
from tests.chaos import jobs, scale
from tests.chaos.account import account, drained
from tests.chaos.conftest import Figure
from tests.chaos.fleet import Fleet
from tests.chaos.load import call, send, some
from tests.chaos.test_processes import begun, rows_of, the_executor
from tests.kit.ledger import Ledger
from tests.kit.server import Server
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.timeout(scale.of(300, long=600))]

ENDS = {
    "subtask": ("D", "SystemExit", ""),
    "callback": ("S", "", "still there"),
    "group": ("D", "KeyboardInterrupt", ""),
    "stop": ("S", "", "still there"),
    "mute": ("D", "tests.chaos.jobs.Mute", ""),
    "cancel": ("D", "fennelq.RunCancelled", ""),
}
"""Way out → how its job ends: status, error, result."""


def record_of(server: Server, job: str) -> dict[bytes, bytes]:
    keys, key = queue_keys(jobs.NAME, "default"), job.partition(":")[2]
    with server.client() as client:
        return cast("dict[bytes, bytes]", client.hgetall(keys.record(key)))


def result_of(server: Server, job: str) -> str:
    keys, key = queue_keys(jobs.NAME, "default"), job.partition(":")[2]
    with server.client() as client:
        return cast("list[bytes]", client.lrange(keys.result(key), 0, -1))[0].decode()


@pytest.mark.parametrize("how", jobs.WAYS_OUT)
def test_no_job_ends_the_loop_of_its_executor(
    fleet: Fleet, ledger: Ledger, server: Server, figure: Figure, how: str
) -> None:
    """Bystanders do not notice: they run once, to their end, in the same process."""
    worker = fleet.start()
    executor = the_executor(worker)
    bystanders = send(server.url, some(8, jobs.work, 1500))
    begun(ledger, 8)
    (suspect,) = send(server.url, lambda app: [call(app, jobs.leave, how)])
    drained(server, within=30)
    assert the_executor(worker).pid == executor.pid
    status, error, result = ENDS[how]
    record = record_of(server, suspect)
    assert record[b"s"].decode() == status
    if error:
        assert f'"type":"{error}"' in record[b"x"].decode()
    else:
        assert result_of(server, suspect) == f'{{"ok":"{result}"}}'
    more = send(server.url, some(20, jobs.work, 1))
    drained(server, within=30)
    fleet.stop()
    it = account(server, {**bystanders, **more}, None)
    assert (it.done, it.recovered, it.released) == (28, 0, 0)
    starts = Counter(row.job_id for row in rows_of(ledger, "start") if row.job_id != suspect)
    assert starts == Counter([*bystanders, *more])
    figure("F6", f"{how}: its executor goes on, 8 bystanders ran once")


def test_a_job_that_cancels_everything_is_dead_in_the_end_and_its_bystanders_are_not(
    fleet: Fleet, ledger: Ledger, server: Server, figure: Figure
) -> None:
    """Its executor falls over each time. What ran then keeps its lease: handed back in order, no delivery would be
    spent, and the job and its bystanders would start again for ever."""
    fleet.start()
    bystanders = send(server.url, some(8, jobs.work, 1000))
    begun(ledger, 8)
    (suspect,) = send(server.url, lambda app: [call(app, jobs.poison, "cancel")])
    drained(server, within=60)
    record = record_of(server, suspect)
    starts = Counter(row.job_id for row in rows_of(ledger, "start"))
    fleet.stop()
    it = account(server, bystanders, None)
    assert (it.done, it.dead, it.unfinished, it.lost) == (8, 0, 0, [])
    assert (record[b"s"], record[b"y"]) == (b"D", b"crash_loop")
    assert starts[suspect] == 4
    assert max(starts[job] for job in bystanders) <= 3
    figure("F6", f"cancels everything: {starts[suspect]} starts, then dead; 8 of 8 bystanders done")


def test_signals_are_heard_after_a_job_tried_to_end_the_process(
    fleet: Fleet, ledger: Ledger, server: Server
) -> None:
    worker = fleet.start("--grace", "30")
    send(server.url, lambda app: [call(app, jobs.leave, "subtask"), call(app, jobs.leave, "stop")])
    drained(server, within=30)
    held = send(server.url, some(2, jobs.work, 1000))
    begun(ledger, 4)
    assert fleet.retire(worker) == 0
    it = account(server, held, None)
    assert (it.done, it.released) == (2, 0)


# Handlers that do not stop


def test_f8_a_handler_that_swallows_its_cancellation_is_settled_and_its_executor_replaced(
    fleet: Fleet, ledger: Ledger, server: Server, figure: Figure
) -> None:
    """F8. Timeout 1 s: the outcome `timeout` is written once; with one slot, the executor is replaced at once."""
    worker = fleet.start(concurrency=1, settings={"FENNELQ_STOP_GRACE": "1"})
    first = the_executor(worker)
    (suspect,) = send(server.url, lambda app: [call(app, jobs.deaf, 600, timeout=1, retries=0)])
    others = send(server.url, some(5, jobs.work, 10))
    drained(server, within=30)
    record = record_of(server, suspect)
    assert (record[b"s"], record[b"y"], record[b"n"]) == (b"D", b"timeout", b"1")
    eventually(lambda: not first.running, within=30)
    fleet.stop()
    it = account(server, others, None)
    assert (it.done, it.lost, it.innocents_dead) == (5, [], [])
    starts = Counter(row.job_id for row in rows_of(ledger, "start"))
    assert starts == Counter([suspect, *others])
    (line,) = [line for line in fleet.output.splitlines() if '"slot_stuck"' in line]
    assert "in deaf" in line
    figure("F8", "timeout written once, executor replaced, 5 of 5 others done")


@pytest.mark.parametrize("function", [jobs.deaf, jobs.in_thread])
def test_f9_a_few_stuck_slots_leave_the_others_at_work_and_too_many_replace_the_executor(
    fleet: Fleet, ledger: Ledger, server: Server, figure: Figure, function: Any
) -> None:
    """F9. 4 of 8 stuck: the other 4 keep working; at 8 the process is replaced, and the jobs run again once."""
    worker = fleet.start(concurrency=8, settings={"FENNELQ_STOP_GRACE": "0.5"})
    first = the_executor(worker)
    deaf = send(server.url, some(4, function, 600, timeout=0.5, retries=1))
    begun(ledger, 4)
    others = send(server.url, some(40, jobs.work, 5))
    finished = send(server.url, some(1, jobs.work, 5))
    eventually(lambda: ended(ledger, {*others, *finished}), within=30)
    assert first.running
    drained(server, within=40)
    eventually(lambda: not first.running, within=30)
    records = [record_of(server, job) for job in deaf]
    assert {(record[b"s"], record[b"y"], record[b"n"]) for record in records} == {(b"D", b"timeout", b"2")}
    starts = Counter(row.job_id for row in rows_of(ledger, "start"))
    assert {starts[job] for job in deaf} == {2}
    fleet.stop()
    it = account(server, {**others, **finished}, None)
    assert (it.done, it.lost, it.innocents_dead) == (41, [], [])
    stuck = [line for line in fleet.output.splitlines() if '"slot_stuck"' in line]
    assert len(stuck) == 8
    assert all(f"in {function.__name__}" in line for line in stuck)
    figure("F9", f"{function.__name__}: 4 of 8 stuck: 41 of 41 others done; 8 of 8: replaced")


def ended(ledger: Ledger, wanted: set[str]) -> bool:
    return wanted <= {row.job_id for row in rows_of(ledger, "end")}


@pytest.mark.audit(skip="an entry was removed on purpose")
def test_a_function_in_a_thread_that_lost_its_lease_keeps_its_slot_until_it_ends(
    fleet: Fleet, ledger: Ledger, server: Server
) -> None:
    """Its thread is busy all the same: a job that started in its place would wait in a queue without a thread."""
    victim = fleet.start(concurrency=1, settings={"FENNELQ_STOP_GRACE": "600"})
    (held,) = send(server.url, some(1, jobs.in_thread, 12))
    begun(ledger, 1)
    with server.client() as client:
        keys = queue_keys(jobs.NAME, "default")
        ((entry, _),) = cast("Any", client.xrange(keys["s"]))
        client.xack(keys["s"], "fq", entry)  # as if another had taken the job and ended it
        client.xdel(keys["s"], entry)
    victim.process.wait_for('"lease_lost"')
    later = send(server.url, some(3, jobs.work, 1))
    eventually(lambda: ended(ledger, {held}), within=30)
    eventually(lambda: ended(ledger, set(later)), within=30)
    rows = ledger.read()
    end_of_held = next(row.at for row in rows if row.kind == "end" and row.job_id == held)
    assert all(row.at > end_of_held for row in rows if row.kind == "start" and row.job_id in later)
    fleet.stop()
