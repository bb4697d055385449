"""Processes of tasks in a whole worker: what their ends cost, their lines, and the end of their executor."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest

from fennelq import App, BlockingResult
from tests.kit.server import Server
from tests.kit.spawn import Process
from tests.kit.waiting import eventually
from tests.worker import cramped
from tests.worker.conftest import Workers, executors

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


def test_a_crash_costs_one_try_and_no_delivery_and_lines_name_their_job(
    workers: Workers, sender: App
) -> None:
    """U15. The executor lives. The job is allowed one delivery that ends in a crash of its executor, and has none."""
    worker = workers("-c", "2", app=CRAMPED)
    (executor,) = executors(worker)
    crashing = sent(sender, "die_once", max_deliveries=1)
    assert crashing.get(timeout=20) == 2
    info = crashing.info()
    assert info is not None
    assert (info.tries, info.error and info.error.reason) == (2, "crashed")
    talking = sent(sender, "talk")
    assert talking.get(timeout=20) is None
    lines = eventually(lambda: (found := lines_about(talking, worker)).get("job_succeeded") and found)
    assert set(lines) == {"about this", "failed", "structured", "job_succeeded"}
    assert (lines["structured"]["n"], lines["structured"]["logger"]) == (7, "mine")
    assert (lines["about this"]["colour"], lines["about this"]["tries"]) == ("red", 1)
    assert "ValueError: half a pair" in lines["failed"]["traceback"]
    assert "printed" in worker.text.splitlines()
    assert executors(worker) == [executor]


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
    eventually(lambda: computing.exists() and waiting.exists(), within=20)
    assert sent(sender, "echo", "idle").get(timeout=20) == "idle"
    family = executor.children(recursive=True)
    assert len(family) == 4
    os.kill(executor.pid, signal.SIGKILL)
    eventually(lambda: not any(map(lives, family)), within=2)


def lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
