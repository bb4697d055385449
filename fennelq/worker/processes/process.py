"""The main module of an executor process: `python -m fennelq.worker.processes.process CONFIG [MORE]`."""

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
from typing import Any, NoReturn, TypeVar

from fennelq import log, streams
from fennelq.app import App
from fennelq.context import job_facts
from fennelq.errors import ConfigurationError
from fennelq.worker.executor import Executor
from fennelq.worker.processes.config import (
    CANNOT_RUN,
    DRAINED,
    LIFESPAN_FAILED,
    RECYCLED,
    ExecutorConfig,
)
from fennelq.worker.processes.discovery import load_app
from fennelq.worker.processes.signals import Signal, SignalPipe

_logger = log.get("fennelq.worker")
_HAND_BACK = 2.0
"""Seconds to hand jobs back after the supervisor's end."""
_HOOKS = 3.0
"""Seconds for the exit hooks of the app's code: less than the supervisor waits before it kills the process."""

T = TypeVar("T")


def run_and_leave(*words: str) -> NoReturn:
    """Run one executor, configured by these words, and end the process."""
    streams.open_missing()
    try:
        code = main(*words)
    except BaseException:
        _logger.critical("executor_failed", traceback=traceback.format_exc())
        code = 1
    _leave(code)


def main(*words: str) -> int:
    """Run one executor, configured by these words; returns the exit code."""
    config = ExecutorConfig.from_text(*words)
    log.setup(
        config.log_format,
        config.log_level,
        config=config.log_config,
        errors=config.log_errors,
        about=job_facts,
    )
    signals, hand_back = SignalPipe(config.signals), HandBack()
    if config.lifeline >= 0:
        # Before the import of the app, which may hang for ever.
        threading.Thread(target=_watch_supervisor, args=(config.lifeline, hand_back), daemon=True).start()
    try:
        app = load_app(config.app, Path(config.folder))
        log.hide(app.redaction.fact)
        if app.injections.lifespan is None:
            signals.send(Signal.IMPORTED)
        return run_to_its_end(_run(app, config, signals, hand_back))
    except ConfigurationError as error:
        _logger.critical("cannot_run", why=str(error))
        return CANNOT_RUN


class HandBack:
    """Hands back the jobs of this process, from any thread. Before the process has an executor, it has no jobs."""

    _stop: Callable[[], object] | None = None

    def of(self, executor: Executor, loop: asyncio.AbstractEventLoop) -> None:
        """Set the executor of this process."""
        self._stop = lambda: loop.call_soon_threadsafe(lambda: executor.stop(now=True))

    def now(self) -> bool:
        """Begin to hand the jobs back; returns whether the process has an executor."""
        if self._stop is not None:
            with suppress(RuntimeError):
                self._stop()
        return self._stop is not None


async def _run(app: App, config: ExecutorConfig, signals: SignalPipe, hand_back: HandBack) -> int:
    executor = Executor(app, config, signals)
    loop = asyncio.get_running_loop()
    received = 0

    def on_signal() -> None:
        nonlocal received
        received += 1
        executor.stop(now=received > 1)

    loop.add_signal_handler(signal.SIGTERM, on_signal)
    loop.add_signal_handler(signal.SIGINT, on_signal)
    hand_back.of(executor, loop)
    try:
        async with app:
            await executor.run()
    except ConfigurationError:
        raise
    except BaseException:
        if not executor.lifespan_failed:
            raise
        _logger.critical("lifespan_failed", traceback=traceback.format_exc())
        return LIFESPAN_FAILED
    if executor.drained:
        return DRAINED
    return RECYCLED if executor.recycled else 0


def _watch_supervisor(lifeline: int, hand_back: HandBack) -> None:
    """Blocks until the supervisor has ended, then hands all jobs back and ends this process: without a supervisor, no
    signal would stop it. It runs in a thread, because the loop may be stuck, and ends the process after any error."""
    try:
        with suppress(OSError):
            os.read(lifeline, 1)
        has_executor = hand_back.now()
        _logger.error("supervisor_gone")
        if has_executor:
            threading.Event().wait(_HAND_BACK)
    finally:
        os._exit(1)


def run_to_its_end(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on the fastest loop that is installed; returns its result.

    A SystemExit or KeyboardInterrupt in any task or callback ends `run_until_complete`, and so does `loop.stop()`. But
    the loop is intact and still has its other tasks, so this runs it again. So the code of a job cannot end the loop:
    only its own task fails. `asyncio.run` is not used, because it would cancel all tasks, and wait for those that
    ignore it.
    """
    loop = _fastest_loop()
    asyncio.set_event_loop(loop)
    life = loop.create_task(main)
    while True:
        try:
            return loop.run_until_complete(life)
        except BaseException as error:
            if life.done() or loop.is_closed():
                raise
            _logger.error("loop_goes_on", why="a job tried to end the process", error=type(error).__name__)


def _fastest_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _leave(code: int) -> NoReturn:
    """End this process: run the exit hooks of the app's code, for a limited time, and flush the standard streams.

    Threads are not joined, which the interpreter would do at its end. A thread that is stuck in a task must not hold up
    the exit, and all outcomes have been written by now.
    """
    try:
        # Hooks expect to be called in the main thread, so another thread limits their time.
        threading.Thread(target=_limit_hooks, args=(code,), daemon=True).start()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _already_leaving)
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
        streams.flush(sys.stdout, sys.stderr)
    finally:
        os._exit(code)


def _limit_hooks(code: int) -> None:
    try:
        threading.Event().wait(_HOOKS)
        _logger.warning("exit_hooks_abandoned", seconds=_HOOKS)
    finally:
        os._exit(code)


def _already_leaving(_: int, __: FrameType | None) -> None:
    """Ignores a signal. Without a handler it would end the hooks, and the exit would count as a crash."""


if __name__ == "__main__":
    run_and_leave(*sys.argv[1:3])
