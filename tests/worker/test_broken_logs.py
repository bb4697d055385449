"""A log that cannot be written costs log lines and nothing else: no job, no lease, no stop in order."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from fennelq import App, Status, TaskFailed
from fennelq.broker.keys import GROUP, QueueKeys
from tests.kit.ledger import Ledger
from tests.kit.ports import HOST, Port
from tests.kit.processes import executors, is_alive
from tests.kit.server import Server
from tests.kit.spawn import Process
from tests.kit.waiting import aeventually
from tests.worker import shop
from tests.worker.conftest import Workers
from tests.worker.shop import Gate, task_of


class Log:
    """Where a worker writes its log, in one of the ways in which that fails."""

    def __init__(self, way: str, folder: Path) -> None:
        self.way, self.path = way, folder / "log"
        self._reader = -1
        if way in ("no reader", "reader stands still"):
            os.mkfifo(self.path)
            self.read_on()

    @property
    def redirect(self) -> str:
        ways = {"no space": "2>/dev/full", "closed": "2>&-", "both closed": ">&- 2>&-"}
        return ways.get(self.way, f"2>{self.path}")

    def read_on(self) -> None:
        """A reader comes, and has not read anything yet."""
        self._reader = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)

    def fail(self) -> None:
        """From now on nothing can be written."""
        if self.way == "no reader":
            self.close()
        elif self.way == "reader stands still":
            writer = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)
            with suppress(BlockingIOError):
                while True:
                    os.write(writer, b"\n" * 4096)
            with suppress(BlockingIOError):
                while True:
                    os.write(writer, b"\n")
            os.close(writer)

    def lines(self) -> list[dict[str, Any]]:
        """What can be read now."""
        read = b""
        with suppress(BlockingIOError):
            while data := os.read(self._reader, 1 << 16):
                read += data
        return [json.loads(line) for line in read.splitlines() if line]

    def close(self) -> None:
        if self._reader >= 0:
            os.close(self._reader)
            self._reader = -1


@pytest.fixture
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Log]:
    """The way it fails is the parameter."""
    log = Log(request.param, tmp_path)
    yield log
    log.close()


@pytest.fixture
def port() -> Iterator[Port]:
    """For the probes of a worker."""
    port = Port()
    yield port
    port.release()


every_way = pytest.mark.parametrize(
    "log", ["no reader", "no space", "reader stands still", "closed", "both closed"], indirect=True
)
PIPES = pytest.mark.parametrize("log", ["no reader", "reader stands still"], indirect=True)


async def the_executor(worker: Process) -> psutil.Process:
    await aeventually(lambda: len(executors(worker)) == 1)
    (executor,) = executors(worker)
    return executor


@every_way
async def test_jobs_run_and_a_signal_stops_the_worker_in_order(
    workers: Workers, app: App, ledger: Ledger, gate: Gate, log: Log, port: Port
) -> None:
    worker = workers("--grace", "60", "--health-port", f"{HOST}:{port.number}", redirect=log.redirect)
    double, hold = task_of(app, shop.double), task_of(app, shop.hold)
    assert await (await double.delay(1)).get(timeout=30) == 2
    log.fail()
    first = await the_executor(worker)
    assert [await (await double.delay(n)).get(timeout=30) for n in range(50)] == [2 * n for n in range(50)]
    died = await task_of(app, shop.whisper).delay("a", "b", fail=True)
    with pytest.raises(TaskFailed):
        await died.get(timeout=30)
    held = await hold.map([str(gate)] * 4)
    await aeventually(lambda: len(ledger.starts()) == 56)
    await aeventually(lambda: is_ready(port))
    worker.term()
    await aeventually(lambda: not is_ready(port))
    gate.open()
    assert worker.returncode(30) == 0
    assert not is_alive(first)
    assert [await result.get(timeout=30) for result in held] == [1] * 4
    assert {row.pid for row in ledger.read()} == {first.pid}
    assert ledger.starts() - ledger.ends() == {died.id: 1}


@every_way
async def test_no_executor_outlives_a_supervisor_that_is_killed(
    workers: Workers, app: App, ledger: Ledger, gate: Gate, log: Log
) -> None:
    worker = workers("-p", "2", "-c", "2", "--grace", "600", redirect=log.redirect)
    results = await task_of(app, shop.hold).map([str(gate)] * 4)
    await aeventually(lambda: len(ledger.starts()) == 4)
    log.fail()
    orphans = executors(worker)
    assert len(orphans) == 2
    worker.kill()
    await aeventually(lambda: not any(map(is_alive, orphans)))
    late = await task_of(app, shop.double).delay(1)
    gate.open()
    for result in (*results, late):
        info = await result.info()
        assert info is not None
        assert (info.status, info.tries) == (Status.SENT, 0)
    assert len(ledger.starts()) == 4


@pytest.mark.parametrize("log", ["no reader", "no space", "reader stands still"], indirect=True)
async def test_leases_are_renewed_after_trouble_that_could_not_be_logged(
    workers: Workers,
    app: App,
    ledger: Ledger,
    gate: Gate,
    log: Log,
    port: Port,
    server: Server,
    mail: QueueKeys,
) -> None:
    lease = 4.0
    where = f"{HOST}:{port.number}"
    worker = workers("--health-port", where, redirect=log.redirect, FENNELQ_LEASE=str(lease))
    await aeventually(lambda: is_ready(port))
    result = await task_of(app, shop.hold).options(queue="mail").delay(str(gate))
    await aeventually(lambda: len(ledger.starts()) == 1)
    log.fail()
    first = await the_executor(worker)
    # The heartbeat waits for a reply for a second, and then has something to complain of.
    server.pause()
    await aeventually(lambda: not is_ready(port))
    server.resume()
    with server.client() as client:

        def entry() -> dict[str, Any]:
            (one,) = cast("list[dict[str, Any]]", client.xpending_range(mail["s"], GROUP, "-", "+", 1))
            return one

        def now() -> float:
            seconds, micro = client.time()
            return float(seconds + micro / 1e6)

        resumed = now()
        await aeventually(lambda: now() - resumed > 2 * lease, within=30)
        assert entry()["time_since_delivered"] < lease * 1000
    assert is_alive(first)
    gate.open()
    assert await result.get(timeout=30) == 1
    assert ledger.starts() == {result.id: 1}
    worker.term()
    assert worker.returncode(30) == 0


def is_ready(port: Port) -> bool:
    with suppress(OSError), socket.create_connection((HOST, port.number), timeout=5) as connection:
        connection.sendall(b"GET /ready HTTP/1.1\r\n\r\n")
        return b" 200 " in connection.makefile("rb").readline()
    return False


@PIPES
async def test_what_could_not_be_logged_is_counted_when_it_can_be_again(
    workers: Workers, app: App, log: Log
) -> None:
    worker = workers(redirect=log.redirect)
    double = task_of(app, shop.double)
    assert await (await double.delay(1)).get(timeout=30) == 2
    log.fail()
    lost = [await double.delay(n) for n in range(7)]
    assert [await result.get(timeout=30) for result in lost] == [0, 2, 4, 6, 8, 10, 12]
    if log.way == "no reader":
        log.read_on()
    before = log.lines()
    seen = await double.delay(50)
    assert await seen.get(timeout=30) == 100
    after: list[dict[str, Any]] = []

    def read() -> list[dict[str, Any]]:
        after.extend(log.lines())
        return after

    await aeventually(lambda: len(read()) >= 2)
    assert not {result.id for result in lost} & {line.get("job_id") for line in before}
    assert [(line["event"], line.get("lines"), line.get("job_id")) for line in after] == [
        ("log_lines_lost", 7, None),
        ("job_succeeded", None, seen.id),
    ]
    worker.term()
    assert worker.returncode(30) == 0
