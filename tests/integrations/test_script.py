"""The example of a plain script, with a worker: real processes, and a Ctrl-C."""

from __future__ import annotations

import pytest

from examples.script import app, count
from fennelq import Status
from fennelq.testing import testing
from tests.kit.spawn import Spawner
from tests.kit.waiting import eventually

pytestmark = pytest.mark.timeout(120)


def test_the_script_follows_its_job_and_a_ctrl_c_cancels_it(spawn: Spawner, redis_url: str) -> None:
    environment = {"FENNELQ_REDIS_URL": redis_url}
    worker = spawn("fennelq", "worker", "-A", "examples.script:app", "-p", "1", environment=environment)
    worker.wait_for("worker_started", within=30)
    short = spawn("examples.script", "3", environment=environment)
    assert short.returncode(30) == 0, short.text
    first, *followed, last = short.text.splitlines()
    assert first.startswith("job default:")
    assert (followed[-1], last) == ("3 of 3", "counted 3 rows")
    long = spawn("examples.script", "9000", environment=environment)
    eventually(lambda: " of 9000" in long.text, within=30)
    long.interrupt()
    assert long.returncode(30) == 130, long.text
    assert long.text.splitlines()[-1] == "cancelled"


def test_the_task_of_the_script_is_tested_without_a_worker() -> None:
    with testing(app) as t:
        result = count.sync.delay(2)
        assert t.run_until_idle().succeeded == 1
        assert (result.get(timeout=0), result.status()) == ("counted 2 rows", Status.SUCCESS)
        assert [report.done for report in result.watch()] == [2]
