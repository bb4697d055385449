"""The example of machines with and without a GPU."""

from __future__ import annotations

import pytest

from examples.gpu import app, describe, main, read_scans, train
from fennelq import Status
from fennelq.testing import testing
from fennelq.worker.executor import Executor
from fennelq.worker.processes.config import ExecutorConfig
from tests.kit.workers import running


async def test_each_machine_runs_what_is_for_it_and_either_runs_the_rest(
    redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with testing(app, redis_url=redis_url):
        results = await app.enqueue([train.job("cats"), read_scans.job("2026-11"), describe.job("cat.png")])
        await Executor(app, ExecutorConfig(queues="cpu,any", burst=True)).run()
        assert [await result.status() for result in results] == [Status.SENT, Status.SUCCESS, Status.SUCCESS]
        async with running(app, queues="gpu,any"), running(app, queues="cpu,any"):
            assert await results[0].get(timeout=30) == "cats was trained on gpu"
            await main()
    # Workers of this process log to the same place.
    printed = [line for line in capsys.readouterr().out.splitlines() if " was " in line]
    assert printed == [
        "cats was trained on gpu",
        "2026-11 was read on cpu",
        "cat.png was described on any",
    ]
