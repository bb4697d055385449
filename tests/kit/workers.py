"""Workers for tests: an executor on the loop of the test, or processes of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from anyio.from_thread import start_blocking_portal

from fennelq import App
from fennelq.broker.keys import LANES
from fennelq.model.job import Priority
from fennelq.worker.executor import Executor
from fennelq.worker.processes.config import ExecutorConfig


@asynccontextmanager
async def running(
    app: App,
    *,
    concurrency: int = 8,
    queues: str | None = None,
    priorities: Iterable[Priority] = ("high", "normal", "low"),
    grace: float = 5.0,
) -> AsyncGenerator[Executor]:
    """An executor of `app` on this loop, at work for the length of the block.

    At the end it is stopped as a signal would stop it: what runs may finish. When the block fails, nothing is waited
    for. An executor that ends by an error raises it here.
    """
    lanes = tuple(LANES[priority] for priority in priorities)
    config = ExecutorConfig(concurrency=concurrency, queues=queues, lanes=lanes, grace=grace)
    executor = Executor(app, config)
    life = asyncio.create_task(executor.run(), name="executor")
    try:
        yield executor
    except BaseException:
        executor.stop(now=True)
        raise
    finally:
        executor.stop()
        await life


@contextmanager
def running_aside(app: App, **how: Any) -> Generator[Executor]:
    """`running`, in a thread with a loop of its own: for tests that have no loop, or block theirs."""
    with start_blocking_portal() as portal:
        with portal.wrap_async_context_manager(running(app, **how)) as executor:
            yield executor
        portal.call(app.close)
