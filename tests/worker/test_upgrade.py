"""An upgrade in place: the supervisor still runs the earlier version, and its executors start with the new one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fennelq import App
from fennelq.worker.processes.config import ExecutorConfig
from fennelq.worker.processes.signals import Signal
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.worker import shop
from tests.worker.shop import task_of

ROOT = Path(__file__).parents[2]
EARLIER: dict[str, Any] = {
    "app": f"{shop.__name__}:app",
    "folder": ".",
    "log_format": "json",
    "log_level": "info",
    "log_errors": "traceback",
    "log_config": "fennelq",
    "name": "host.812.9f3c21",
    "concurrency": 4,
    "queues": None,
    "lanes": ["s:high", "s", "s:low"],
    "burst": False,
    "grace": 25.0,
    "max_jobs": None,
    "max_rss": None,
}
"""What a supervisor of the earlier version passes, besides its pipes."""


class Executor:
    """An executor as a supervisor of the earlier version starts it, with the other ends of its pipes."""

    def __init__(self, server: Server) -> None:
        self.lifeline, self._held = os.pipe()
        self._reading, signs = os.pipe()
        os.set_blocking(self._reading, False)
        self.received = b""
        config = {**EARLIER, "lifeline": self.lifeline, "signs": signs}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fennelq.worker.process", json.dumps(config)],
            pass_fds=[self.lifeline, signs],
            env={**os.environ, "FENNELQ_REDIS_URL": server.url},
            cwd=ROOT,
            start_new_session=True,
        )
        os.close(signs)

    def signalled(self, sign: bytes) -> bool:
        try:
            self.received += os.read(self._reading, 4096)
        except BlockingIOError:
            pass
        return sign in self.received

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.lifeline, self._held, self._reading):
            os.close(pipe)


@pytest.fixture
def executor(server: Server) -> Iterator[Executor]:
    executor = Executor(server)
    yield executor
    executor.close()


async def test_a_supervisor_of_the_earlier_version_can_start_an_executor(
    executor: Executor, app: App
) -> None:
    assert await (await task_of(app, shop.double).delay(4)).get(timeout=30) == 8
    await aeventually(
        lambda: executor.signalled(Signal.IMPORTED.value) and executor.signalled(Signal.READY.value)
    )
    executor.process.send_signal(signal.SIGTERM)
    await aeventually(lambda: executor.process.poll() == 0)


def test_the_configuration_has_the_fields_of_the_earlier_version_and_these_new_names() -> None:
    fields = json.loads(ExecutorConfig().to_text())
    assert {*EARLIER, "lifeline", "signals", "tasks", "consumes", "rate"} == fields.keys()
