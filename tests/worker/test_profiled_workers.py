"""Profiles of real worker processes that are paused and killed meanwhile."""

from __future__ import annotations

import asyncio
import signal

import pytest

from fennelq import App, ExecutorUnavailable
from fennelq.manage.executors import profiling
from fennelq.manage.executors.profile import ExecutorProfile
from tests.kit.ledger import Ledger
from tests.kit.processes import executors
from tests.kit.waiting import aeventually
from tests.worker import shop
from tests.worker.conftest import Workers

LONG = 30.0


async def test_an_executor_that_is_paused_or_killed_meanwhile_is_given_up_with_the_reason(
    app: App, workers: Workers, gate: shop.Gate, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiling, "SILENT_AFTER", 2.5)
    worker = workers(FENNELQ_LEASE="1")
    job = await shop.task_of(app, shop.hold_in_thread).delay(str(gate))
    await aeventually(lambda: ledger.starts()[job.id], within=LONG)

    async def profiled(name: str) -> tuple[asyncio.Task[ExecutorProfile], asyncio.Event]:
        began = asyncio.Event()
        asked = asyncio.create_task(app.executors.profile(name, seconds=120, progress=lambda _: began.set()))
        await asyncio.wait_for(began.wait(), LONG)
        return asked, began

    (name,) = [one.name for one in await app.executors.list() if one.alive]
    (process,) = executors(worker)
    asked, _ = await profiled(name)
    process.suspend()
    with pytest.raises(
        ExecutorUnavailable, match=r"has not reported on the profile for 2\.5 s\. Its process is stop"
    ):
        await asked
    process.resume()
    monkeypatch.setattr(profiling, "SILENT_AFTER", 8.0)  # its supervisor has time to report its end
    whole = await aprofile(app, name)
    assert whole.tasks[0].task == f"{shop.__name__}:hold_in_thread"
    asked, _ = await profiled(name)
    process.send_signal(signal.SIGKILL)
    with pytest.raises(
        ExecutorUnavailable, match=rf"{name} has ended before the profile was ready: .*SIGKILL"
    ):
        await asked
    gate.open()
    await job.get(timeout=LONG)
    worker.term()
    assert worker.returncode(LONG) == 0


async def aprofile(app: App, name: str) -> ExecutorProfile:
    """A short profile, as soon as the one before it has ended."""
    async with asyncio.timeout(LONG):
        while True:
            try:
                return await app.executors.profile(name, seconds=0.3)
            except ExecutorUnavailable as error:
                assert "is being profiled by" in str(error)  # noqa: PT017
