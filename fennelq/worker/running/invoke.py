"""Calls a task's function: on the loop, with a timeout when one is set, or in a thread."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any


class TaskTimeout(TimeoutError):
    """The task ran longer than its `timeout`."""


class RunCancelled(Exception):
    """Code of the job, or of another job, cancelled the task that runs this one."""

    def __init__(self) -> None:
        super().__init__("the run was cancelled, but not by its executor: by its own code, or by another job")


class Invoker:
    """Runs functions for one executor."""

    def __init__(self, threads: int, stop_grace: float) -> None:
        self._threads, self._stop_grace = threads, stop_grace
        self._pool: ThreadPoolExecutor | None = None

    async def on_loop(
        self,
        function: Callable[..., Any],
        args: Any,
        kwargs: Any,
        timeout: float,
        give_up: Callable[[], None],
    ) -> Any:
        """Await it here; raises TaskTimeout when it takes too long.

        A handler may swallow its cancellation and go on: then `give_up` is called `stop_grace` seconds later.
        """
        # Not asyncio.timeout: call_later and cancel cost a third of it, for every job with a timeout.
        task = asyncio.current_task()
        assert task is not None
        where: TracebackType | None = None
        expired = _Expiry(task, self._stop_grace)
        expired.start(timeout, give_up)
        try:
            value = await function(*args, **kwargs)
        except asyncio.CancelledError as cancelled:
            if not expired.happened or task.uncancel() > 0:
                raise
            where = cancelled.__traceback__
        except BaseException:
            if expired.happened:
                task.uncancel()
            raise
        else:
            if not expired.happened:
                return value
            # The handler swallowed its cancellation and returned, but after its timeout.
            task.uncancel()
        finally:
            expired.timer.cancel()
        # With the traceback of the cancellation, which shows where the task was waiting.
        try:
            raise too_late(timeout).with_traceback(where)
        finally:
            del where  # avoids a reference cycle: the traceback refers to this frame

    async def in_thread(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call it in a thread, with the job's context.

        A thread cannot be stopped, so a cancellation does not end the wait. If it did, the job's slot would become
        free, and the next job would wait in a pool without a free thread.
        """
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="fennelq-task")
        call = partial(_called, contextvars.copy_context(), function, args, kwargs)
        called = asyncio.get_running_loop().run_in_executor(self._pool, call)
        while not called.done():
            try:
                await asyncio.shield(called)
            except asyncio.CancelledError:
                continue
        value, error = called.result()
        if error is not None:
            raise error
        return value


def too_late(timeout: float) -> TaskTimeout:
    """The error of a run that took longer than its timeout."""
    return TaskTimeout(f"the task ran longer than its timeout of {timeout:g} s")


def _called(
    context: contextvars.Context, function: Callable[..., Any], args: Any, kwargs: Any
) -> tuple[Any, BaseException | None]:
    """The returned value and the raised error of a call. The error is returned, because a future cannot raise every
    exception: StopIteration is one that it cannot."""
    try:
        return context.run(function, *args, **kwargs), None
    except BaseException as error:
        return None, error


class _Expiry:
    """Cancels a task when its time is over, and calls `give_up` when the task still goes on after the grace."""

    __slots__ = ("_grace", "happened", "task", "timer")

    timer: asyncio.TimerHandle

    def __init__(self, task: asyncio.Task[Any], grace: float) -> None:
        self.task, self.happened = task, False
        self._grace = grace

    def start(self, timeout: float, give_up: Callable[[], None]) -> None:
        """Count from now."""
        self.timer = self.task.get_loop().call_later(timeout, self._expire, give_up)

    def _expire(self, give_up: Callable[[], None]) -> None:
        self.happened = True
        self.timer = self.task.get_loop().call_later(self._grace, give_up)
        self.task.cancel()
