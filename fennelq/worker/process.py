"""What an executor process does from its first line to its last: `python -m fennelq.worker.process ORDERS`."""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from fennelq import log, streams
from fennelq.app import App
from fennelq.errors import ConfigurationError
from fennelq.model.routing import Routing
from fennelq.worker.discovery import load_app
from fennelq.worker.executor import Executor
from fennelq.worker.orders import CANNOT_RUN, Orders

_logger = log.get("fennelq.worker")
_LAST_WORDS = 2.0
_HOOKS = 3.0
"""Seconds for the exit hooks of the app's code: less than the margin that a supervisor gives."""


def main(text: str) -> int:
    """Run one executor by these orders; answers the exit code."""
    orders = Orders.from_text(text)
    log.setup(orders.log_format, orders.log_level)
    try:
        app = load_app(orders.app, Path(orders.folder))
        _on_the_fastest_loop(_run(app, orders))
    except ConfigurationError as error:
        _logger.critical("cannot_run", why=str(error))
        return CANNOT_RUN
    return 0


async def _run(app: App, orders: Orders) -> None:
    executor = Executor(
        app,
        name=orders.name or None,
        concurrency=orders.concurrency,
        routing=Routing.parse(orders.queues),
        lanes=orders.lanes,
        burst=orders.burst,
        grace=orders.grace,
        max_jobs=orders.max_jobs,
        max_rss=orders.max_rss,
        tell=_teller(orders.signs),
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
        hold = threading.Thread(target=_hold_on, args=(loop, orders.lifeline, executor), daemon=True)
        hold.start()
    async with app:
        await executor.run()


def _teller(pipe: int) -> Callable[[bytes], None]:
    if pipe >= 0:
        # A supervisor that stands still must not make those who tell it something stand still too.
        os.set_blocking(pipe, False)

    def tell(sign: bytes) -> None:
        # A supervisor that is gone hears nothing; the lifeline says so.
        with suppress(OSError):
            os.write(pipe, sign)

    def tell_nobody(_: bytes) -> None:
        return

    return tell if pipe >= 0 else tell_nobody


def _hold_on(loop: asyncio.AbstractEventLoop, lifeline: int, executor: Executor) -> None:
    """Blocks until the supervisor is gone, however it died. Nothing could stop this process any more: hand all jobs
    back and end. It is a thread, because the loop may be stuck; and whatever fails here, the process ends."""
    try:
        with suppress(OSError):
            os.read(lifeline, 1)
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(lambda: executor.stop(now=True))
        _logger.error("supervisor_gone")
        threading.Event().wait(_LAST_WORDS)
    finally:
        os._exit(1)


def _on_the_fastest_loop(main: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


def _leave(code: int) -> NoReturn:
    """End this process: run the exit hooks of the app's code, write what is buffered, and do not wait for long.

    Threads are not joined, as an interpreter would do at its end: one that is stuck in a task must not hold up the
    exit, and everything that matters has been written down.
    """
    try:
        # Hooks expect to be called in the main thread, so it is another one that loses patience.
        threading.Thread(target=_lose_patience, args=(code,), daemon=True).start()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _already_leaving)
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
        streams.flush(sys.stdout, sys.stderr)
    finally:
        os._exit(code)


def _lose_patience(code: int) -> None:
    try:
        threading.Event().wait(_HOOKS)
        _logger.warning("exit_hooks_abandoned", seconds=_HOOKS)
    finally:
        os._exit(code)


def _already_leaving(_: int, __: FrameType | None) -> None:
    """Without a handler the signal would end the hooks, and the exit would count as a crash."""


if __name__ == "__main__":
    streams.open_missing()
    try:
        code = main(sys.argv[1])
    except BaseException:
        log.write(traceback.format_exc())
        code = 1
    _leave(code)
