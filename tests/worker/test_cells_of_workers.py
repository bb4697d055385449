"""Processes of tasks in a whole worker: what their ends cost, their lines, and the end of their executor."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest

from fennelq import App, BlockingResult
from fennelq.model.job import Delivery
from fennelq.worker.cells import forkserver
from fennelq.worker.cells.frames import packed
from fennelq.worker.cells.inside import head_of
from fennelq.worker.cells.preload import Preload
from fennelq.worker.processes.config import ExecutorConfig
from tests.kit.processes import executors, is_alive
from tests.kit.server import Server
from tests.kit.spawn import Process
from tests.kit.waiting import eventually
from tests.worker import cramped
from tests.worker.conftest import Workers

CRAMPED = f"{cramped.__name__}:app"


@pytest.fixture
def sender(server: Server) -> Iterator[App]:
    app = App("cramped", redis_url=server.url)
    yield app
    app.sync.close()


def sent(app: App, task: str, *args: Any, **options: Any) -> BlockingResult[Any]:
    return app.sync.send(f"{cramped.__name__}:{task}", *args, **options)


def lines_about(result: BlockingResult[Any], worker: Process) -> dict[str, dict[str, Any]]:
    lines = [orjson.loads(line) for line in worker.text.splitlines() if line.startswith("{")]
    return {line["event"]: line for line in lines if line.get("job_id") == result.id}


def test_a_crash_costs_one_try_and_no_delivery_and_a_stop_lets_a_process_finish(
    workers: Workers, sender: App, tmp_path: Path
) -> None:
    """U15. The executor lives. The job is allowed one delivery that ends in a crash of its executor, and has none.
    Lines name their job."""
    worker = workers("-c", "2", app=CRAMPED)
    (executor,) = executors(worker)
    crashing = sent(sender, "die_once", max_deliveries=1)
    assert crashing.get(timeout=30) == 2
    info = crashing.info()
    assert info is not None
    assert (info.tries, info.error and info.error.reason) == (2, "crashed")
    talking = sent(sender, "talk")
    assert talking.get(timeout=30) is None
    lines = eventually(lambda: (found := lines_about(talking, worker)).get("job_succeeded") and found)
    assert set(lines) == {"about this", "failed", "structured", "job_succeeded"}
    assert (lines["structured"]["n"], lines["structured"]["logger"]) == (7, "mine")
    assert (lines["about this"]["colour"], lines["about this"]["tries"]) == ("red", 1)
    assert "ValueError: half a pair" in lines["failed"]["traceback"]
    assert "printed" in worker.text.splitlines()
    assert executors(worker) == [executor]
    mark, gate = tmp_path / "mark", tmp_path / "gate"
    holding = sent(sender, "hold", str(mark), str(gate))
    eventually(lambda: mark.exists() and mark.read_text("ascii"))
    pid = int(mark.read_text("ascii"))
    family = executor.children(recursive=True)
    worker.term()
    worker.wait_for('"stopping"')
    gate.touch()
    assert holding.get(timeout=30) == pid
    assert worker.returncode() == 0
    assert not any(map(is_alive, family))


@pytest.mark.audit(unfinished=True)
def test_no_process_outlives_an_executor_that_is_killed(
    workers: Workers, sender: App, tmp_path: Path
) -> None:
    """Neither one that computes in C, nor one that waits, nor an idle one, nor the one that makes them."""
    worker = workers("-c", "3", app=CRAMPED)
    (executor,) = executors(worker)
    computing, waiting = tmp_path / "computing", tmp_path / "waiting"
    sent(sender, "add_up", str(computing))
    sent(sender, "hold", str(waiting), "never")
    eventually(lambda: computing.exists() and waiting.exists())
    assert sent(sender, "echo", "idle").get(timeout=30) == "idle"
    family = executor.children(recursive=True)
    assert len(family) == 4
    os.kill(executor.pid, signal.SIGKILL)
    try:
        eventually(lambda: not any(map(is_alive, family)))
    finally:
        end(family)


@contextmanager
def forkserver_of(
    preload: Preload, env: Mapping[str, str] | None = None, stdout: int | None = None
) -> Generator[tuple[socket.socket, subprocess.Popen[bytes]]]:
    """A forkserver of this process, which is ready, and the connection to it."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", forkserver.__name__, replace(preload, control=theirs.fileno()).to_text()]
    with subprocess.Popen(command, pass_fds=[theirs.fileno()], env=env, stdout=stdout) as server:
        theirs.close()
        try:
            assert orjson.loads(ours.recv(1000)) == {"ready": True}
            yield ours, server
        finally:
            ours.close()
            server.kill()


@pytest.mark.parametrize("read", [True, False], ids=["in order", "with unread reports"])
def test_the_forkserver_kills_its_cells_when_its_executor_is_gone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], read: bool
) -> None:
    """On systems whose kernel does not do it: here its parent, this process, lives on."""
    with forkserver_of(Preload.of(cramped.app, ExecutorConfig())) as (ours, server):
        job, its_job = socket.socketpair()
        socket.send_fds(ours, [b"f"], [its_job.fileno()])
        cell = psutil.Process(orjson.loads(ours.recv(1000, 0 if read else socket.MSG_PEEK))["pid"])
        mark = tmp_path / "computing"
        name, args = f"{cramped.__name__}:add_up", orjson.dumps([[str(mark)], {}])
        job.sendall(packed(head_of(Delivery("q", "s", "1-1", "7", name, args, b"", 0, 1, 1, 0)), args))
        eventually(mark.exists)
        ours.close()
        try:
            eventually(lambda: not is_alive(cell))
            assert server.wait(20) == 0
        finally:
            end([cell])
    for connection in (job, its_job):
        connection.close()
    assert "Traceback" not in capfd.readouterr().err


def test_what_the_import_of_the_app_prints_is_printed_once(tmp_path: Path) -> None:
    (tmp_path / "printing.py").write_text(
        "import fennelq\nprint('imported')\napp = fennelq.App('printing')\n"
    )
    preload = replace(
        Preload.of(cramped.app, ExecutorConfig()), module="printing", name="printing", modules=()
    )
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with (
        forkserver_of(
            replace(preload, path=[str(tmp_path), *preload.path]), env=buffered, stdout=subprocess.PIPE
        ) as (ours, server),
        ours.makefile("rb") as reports,
    ):
        for _ in range(2):
            job, its_job = socket.socketpair()
            socket.send_fds(ours, [b"f"], [its_job.fileno()])
            pid = orjson.loads(reports.readline())["pid"]
            job.close()
            its_job.close()
            assert orjson.loads(reports.readline()) == {"gone": pid, "code": 0}
        server.kill()
        assert server.stdout is not None
        assert server.stdout.read() == b"imported\n"


def end(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
