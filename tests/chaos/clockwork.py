"""Processes that keep time: `python -m tests.chaos.clockwork executor | promoter QUEUE`, until SIGTERM.

An executor runs `beat`, and writes each run to the ledger; what it declares is in TEST_SCHEDULES. A promoter moves due
jobs of one queue to their lanes and does nothing else: twenty thousand of them are to be moved, not run.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from fennelq import App
from fennelq.worker.duties.promoter import Promoter
from fennelq.worker.duties.service import tend
from fennelq.worker.executor import Executor
from fennelq.worker.processes.config import ExecutorConfig
from fennelq.worker.state import State
from tests.chaos import jobs

SCHEDULES: Final = "TEST_SCHEDULES"


async def beat(milliseconds: float = 1) -> None:
    """One run."""
    with jobs.written_down():
        await asyncio.sleep(milliseconds / 1000)


def app_of(**settings: Any) -> App:
    """The app `chaos` with the task `beat`, and the schedules of it that the environment names."""
    app = App(jobs.NAME, **settings)
    task = app.task(name="clockwork:beat")(beat)
    for name, options in json.loads(os.environ.get(SCHEDULES, "{}")).items():
        task.every(options.pop("every"), name=name, **options)
    return app


async def executor() -> None:
    """Run jobs, like the process of a worker."""
    app = app_of()
    worker = Executor(app, ExecutorConfig(concurrency=8, grace=5))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    print("at work", flush=True)
    async with app:
        await worker.run()


async def promoter(queue: str) -> None:
    """Move due jobs until asked to stop."""
    state = State(app_of(schedule_interval=0.05), ExecutorConfig(queues=queue))
    state.serve(state.wanted)
    tending = asyncio.create_task(tend(Promoter(state)))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, tending.cancel)
    print("at work", flush=True)
    await asyncio.wait([tending])
    await state.broker.close()


DOINGS: Final[Mapping[str, Callable[..., Coroutine[Any, Any, None]]]] = {
    "executor": executor,
    "promoter": promoter,
}

if __name__ == "__main__":
    asyncio.run(DOINGS[sys.argv[1]](*sys.argv[2:]))
