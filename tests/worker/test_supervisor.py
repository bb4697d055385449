"""Supervisor: keeps executors alive, and none of them outlives it."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

import psutil
import pytest

from fennelq import App, Status
from fennelq.worker.orders import CANNOT_RUN, Orders
from fennelq.worker.supervisor import Supervisor
from tests.kit.ledger import Ledger
from tests.kit.spawn import Spawner
from tests.kit.waiting import aeventually
from tests.worker import shop
from tests.worker.conftest import Workers, executors
from tests.worker.shop import Gate, task_of


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


async def test_there_are_as_many_executors_as_were_ordered(workers: Workers) -> None:
    worker = workers("-p", "3")
    await aeventually(lambda: len(executors(worker)) == 3)


async def test_an_executor_that_crashes_is_replaced_and_the_work_goes_on(workers: Workers, app: App) -> None:
    worker = workers("-p", "1")
    double = task_of(app, shop.double)
    assert await (await double.delay(1)).get(timeout=15) == 2
    (first,) = executors(worker)
    first.kill()
    assert "SIGKILL" in worker.wait_for("executor_crashed")
    assert await (await double.delay(2)).get(timeout=15) == 4
    (second,) = executors(worker)
    assert second.pid != first.pid


@pytest.mark.audit(unfinished=True)
async def test_the_crash_of_one_executor_disturbs_no_other(
    workers: Workers, app: App, gate: Gate, ledger: Ledger
) -> None:
    worker = workers("-p", "2", "-c", "1", FENNELQ_LEASE="60")
    await aeventually(lambda: len(executors(worker)) == 2)
    doomed, other = await task_of(app, shop.hold).map([str(gate)] * 2)
    await aeventually(lambda: len(ledger.starts()) == 2, within=15)
    pids = {row.job_id: row.pid for row in ledger.read()}
    os.kill(pids[doomed.id], signal.SIGKILL)
    worker.wait_for("executor_crashed")
    gate.open()
    assert await other.get(timeout=15) == 1
    assert await doomed.status() is Status.EXECUTING
    assert {row.pid for row in ledger.read() if row.job_id == other.id} == {pids[other.id]}


async def test_executors_do_not_outlive_a_supervisor_that_is_killed_and_hand_their_jobs_back(
    workers: Workers, app: App, gate: Gate, ledger: Ledger
) -> None:
    worker = workers("-p", "2", "-c", "2", "--grace", "600")
    results = await task_of(app, shop.hold).map([str(gate)] * 4)
    await aeventually(lambda: len(ledger.starts()) == 4, within=15)
    orphans = executors(worker)
    assert len(orphans) == 2
    worker.kill()
    await aeventually(lambda: not any(map(is_alive, orphans)), within=10)
    for result in results:
        info = await result.info()
        assert info is not None
        assert (info.status, info.tries) == (Status.SENT, 0)


async def test_an_executor_that_cannot_run_ends_at_once_and_says_why(spawn: Spawner, redis_url: str) -> None:
    orders = Orders(app="tests.worker.no_such_shop:app")
    executor = spawn("fennelq.worker.process", orders.to_text(), environment={"FENNELQ_REDIS_URL": redis_url})
    assert executor.returncode() == CANNOT_RUN
    assert "no_such_shop" in executor.text


def test_orders_arrive_as_they_were_given() -> None:
    orders = Orders(app="shop:app", concurrency=7, queues="mail:3,default:1", lanes=("s:high",), grace=1.5)
    assert Orders.from_text(orders.to_text()) == orders


# Without processes


class Rehearsal(Supervisor):
    """Executors that were at work or not, and end so."""

    def __init__(self, *ends: tuple[bool, int], burst: bool = False) -> None:
        super().__init__(Orders(app="shop:app", burst=burst), 1, silence=60.0, note=lambda _, __: None)
        self._ends = list(ends)
        self.pauses: list[float] = []

    async def _run(self, orders: Orders) -> tuple[int, bool]:
        if not self._ends:
            self._told.set()
            return 0, True
        worked, code = self._ends.pop(0)
        return code, worked

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)


@pytest.mark.parametrize(
    ("ends", "pauses"),
    [
        ([(False, -9)] * 9, [0.5, 1, 2, 4, 8, 16, 30, 30, 30]),
        ([(False, 1), (False, 1), (True, 1), (False, 1)], [0.5, 1, 0.5, 1]),
        ([(True, -9)] * 3, [0.5, 0.5, 0.5]),
        ([(True, 0), (True, 0)], []),
    ],
    ids=["dies of starting", "was at work once", "dies at work", "makes room for a fresh one"],
)
async def test_the_pause_before_a_successor_grows_while_none_gets_to_work(
    ends: Sequence[tuple[bool, int]], pauses: Sequence[float]
) -> None:
    rehearsal = Rehearsal(*ends)
    assert await rehearsal._keep_alive() == 0
    assert rehearsal.pauses == pauses


async def test_in_a_burst_an_executor_that_is_done_is_not_replaced_and_one_that_crashed_is() -> None:
    rehearsal = Rehearsal((True, -9), (True, 0), (True, 0), burst=True)
    assert await rehearsal._keep_alive() == 0
    assert rehearsal.pauses == [0.5]
    assert len(rehearsal._ends) == 1


async def test_an_executor_that_cannot_run_is_not_tried_again() -> None:
    rehearsal = Rehearsal((False, CANNOT_RUN), (True, 0))
    assert await rehearsal._keep_alive() == CANNOT_RUN
    assert rehearsal.pauses == []
