"""Calls the function of a task where it belongs: on the loop, or in a thread."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from fennelq.task import AnyTask
from fennelq.worker.running.held import Held


class Invoker:
    """Calls functions for one executor."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None

    async def call(self, task: AnyTask, held: Held, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The value that the function of this task returns."""
        if task.is_async:
            return await task.function(*args, **kwargs)
        return await self.in_thread(held, partial(task.function, *args, **kwargs))

    async def in_thread(self, held: Held, call: Callable[[], Any]) -> Any:
        """Call it in a thread, with the job's context.

        A thread cannot be stopped, so a cancellation does not end the wait. If it did, the job's slot would become
        free, and the next job would wait in a pool without a free thread. The code around it, which goes on after the
        thread, is not cancelled either.
        """
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="fennelq-task")
        context = contextvars.copy_context()
        called = asyncio.get_running_loop().run_in_executor(self._pool, _called, held, context, call)
        while not called.done():
            try:
                await asyncio.shield(called)
            except asyncio.CancelledError:
                uncancelled()
        value, error = called.result()
        if error is not None:
            raise error
        return value


def uncancelled() -> int:
    """Take back a cancellation of the current task, by which its run was asked to stop; returns how many are left."""
    task = asyncio.current_task()
    assert task is not None
    return task.uncancel()


def _called(
    held: Held, context: contextvars.Context, call: Callable[[], Any]
) -> tuple[Any, BaseException | None]:
    """The returned value and the raised error of a call. The error is returned, because a future cannot raise every
    exception: StopIteration is one that it cannot."""
    held.enter_thread()
    try:
        return context.run(call), None
    except BaseException as error:
        return None, error
    finally:
        held.leave_thread()


def loop_is_gone() -> bool:
    """Whether the interpreter closes the run after the loop has ended, as opposed to a handler that raised
    GeneratorExit itself."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return True
    return False
