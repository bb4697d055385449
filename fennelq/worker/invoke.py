"""Calls a task's function: on the loop, with a timeout when one is set, or in a thread."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any


class TaskTimeout(TimeoutError):
    """The task ran longer than its `timeout`."""


class Invoker:
    """Runs functions for one executor."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None

    async def on_loop(
        self, function: Callable[..., Any], args: Any, kwargs: Any, timeout: float | None
    ) -> Any:
        """Await it here; raises TaskTimeout when it takes too long."""
        if timeout is None:
            return await function(*args, **kwargs)
        # call_later and cancel cost a third of asyncio.timeout, and every job with a timeout pays for them.
        task = asyncio.current_task()
        assert task is not None
        expired = _Expiry(task)
        timer = task.get_loop().call_later(timeout, expired)
        try:
            value = await function(*args, **kwargs)
        except asyncio.CancelledError:
            if not expired.happened or task.uncancel() > 0:
                raise
        except BaseException:
            if expired.happened:
                task.uncancel()
            raise
        else:
            if not expired.happened:
                return value
            # The handler swallowed its cancellation; it was late all the same.
            task.uncancel()
        finally:
            timer.cancel()
        raise TaskTimeout(f"the task ran longer than its timeout of {timeout:g} s")

    async def in_thread(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call it in a thread, with the job's context. A thread cannot be stopped: the caller waits."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="fennelq-task")
        call = partial(_called, contextvars.copy_context(), function, args, kwargs)
        value, error = await asyncio.get_running_loop().run_in_executor(self._pool, call)
        if error is not None:
            raise error
        return value


def _called(
    context: contextvars.Context, function: Callable[..., Any], args: Any, kwargs: Any
) -> tuple[Any, BaseException | None]:
    """What it returns, or what it raises: a future cannot carry every exception (StopIteration is one)."""
    try:
        return context.run(function, *args, **kwargs), None
    except BaseException as error:
        return None, error


class _Expiry:
    __slots__ = ("happened", "task")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task, self.happened = task, False

    def __call__(self) -> None:
        self.happened = True
        self.task.cancel()
