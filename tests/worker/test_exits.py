"""Exits: what the app's code wants to be done at the end of a process is done, and holds up nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from fennelq import App
from tests.kit.ledger import Ledger
from tests.kit.processes import executors
from tests.kit.waiting import aeventually
from tests.worker import hooked, shop
from tests.worker.conftest import Workers
from tests.worker.shop import Gate, task_of

APP = f"{hooked.__name__}:app"
HOOKS = ["main thread", "failing", "first"]


def noted(file: Path, pid: int) -> list[str]:
    """What the hooks of a process wrote, in order."""
    lines = [line.split(" ", 1) for line in file.read_text().splitlines()] if file.exists() else []
    return [text for process, text in lines if process == str(pid)]


@pytest.mark.parametrize("flags", [(), ("--burst",), ("--max-jobs", "1")])
async def test_exit_hooks_run_in_the_main_thread_and_one_that_raises_does_not_matter(
    workers: Workers, app: App, ledger: Ledger, tmp_path: Path, flags: Sequence[str]
) -> None:
    file = tmp_path / "hooks"
    result = await task_of(app, shop.double).delay(4)
    worker = workers(*flags, app=APP, **{hooked.VARIABLE: str(file)})
    assert await result.get(timeout=30) == 8
    (pid,) = {row.pid for row in ledger.read()}
    if "--burst" not in flags:
        worker.term()
    assert worker.returncode(30) == 0
    assert noted(file, pid) == HOOKS


async def test_neither_a_hook_nor_a_task_that_hangs_holds_up_the_exit(
    workers: Workers, app: App, gate: Gate, ledger: Ledger, tmp_path: Path
) -> None:
    file = tmp_path / "hooks"
    worker = workers("--grace", "0.1", app=APP, **{hooked.VARIABLE: str(file), hooked.HANGS: "executor"})
    held = await task_of(app, shop.hold_in_thread).delay(str(gate))
    await aeventually(lambda: len(ledger.starts()) == 1)
    (executor,) = executors(worker)
    worker.term()
    await aeventually(lambda: noted(file, executor.pid) == HOOKS[:1])
    # A signal that comes now must not make a crash of the exit.
    executor.terminate()
    worker.wait_for("exit_hooks_abandoned")
    assert worker.returncode(30) == 0
    assert "executor_crashed" not in worker.text
    assert noted(file, executor.pid) == HOOKS[:1]
    info = await held.info()
    assert info is not None
    assert (info.status.name, info.tries) == ("SENT", 0)
