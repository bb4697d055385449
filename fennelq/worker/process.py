"""An executor process from its first line to its last: `python -m fennelq.worker.process ORDERS`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from typing import Any

from fennelq import log
from fennelq.app import App
from fennelq.errors import ConfigurationError
from fennelq.model.routing import Routing
from fennelq.worker.discovery import load_app
from fennelq.worker.executor import Executor
from fennelq.worker.supervisor import ConfigurationExit, Orders

_logger = log.get("fennelq.worker")


def main(text: str) -> int:
    """Run one executor by these orders; answers the exit code."""
    orders = Orders.from_text(text)
    log.setup(os.environ.get("FENNELQ_LOG_FORMAT", "auto"), os.environ.get("FENNELQ_LOG_LEVEL", "info"))
    try:
        app = load_app(orders.app)
        log.setup(app.settings.log_format, app.settings.log_level)
        _on_the_fastest_loop(_run(app, orders))
    except ConfigurationError as error:
        _logger.critical("cannot_run", why=str(error))
        return ConfigurationExit
    return 0


async def _run(app: App, orders: Orders) -> None:
    executor = Executor(
        app,
        concurrency=orders.concurrency,
        routing=Routing.parse(orders.queues),
        priorities=orders.priorities,
        burst=orders.burst,
        grace=orders.grace,
    )
    loop = asyncio.get_running_loop()
    told = 0

    def on_signal() -> None:
        nonlocal told
        told += 1
        executor.stop(now=told > 1)

    loop.add_signal_handler(signal.SIGTERM, on_signal)
    loop.add_signal_handler(signal.SIGINT, on_signal)
    if orders.lifeline >= 0:
        loop.add_reader(orders.lifeline, lambda: _orphaned(loop, orders.lifeline, executor))
    await executor.run()


def _orphaned(loop: asyncio.AbstractEventLoop, lifeline: int, executor: Executor) -> None:
    """The supervisor is gone: hand everything back at once rather than run on where nobody can stop it."""
    loop.remove_reader(lifeline)
    _logger.error("supervisor_gone")
    executor.stop(now=True)


def _on_the_fastest_loop(main: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    # A stuck thread of a task must not hold up the exit: everything that matters has been written down.
    os._exit(code)
