"""Performs the body of a run, from the outside in: its timeout, the performers of the app, its providers, its function.

The runner calls plain tasks without a timeout directly, so that they pay for none of this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple

from fennelq.context import current
from fennelq.model.plan import Plan
from fennelq.task import AnyTask
from fennelq.worker.cells.pool import Cells
from fennelq.worker.running.held import Held
from fennelq.worker.running.injecting import Injecting
from fennelq.worker.running.invoke import Invoker, uncancelled
from fennelq.worker.shared import SharedValues


class Bound(NamedTuple):
    """A delivery that can be run."""

    task: AnyTask
    plan: Plan
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


TimeOut = Callable[[Held], None]
"""Called when the timeout of a run is over: asks the run to stop."""


class TaskTimeout(TimeoutError):
    """The task ran longer than its `timeout`."""


class RunCancelled(Exception):
    """Code of the job, or of another job, cancelled the task that runs this one."""

    def __init__(self) -> None:
        super().__init__("the run was cancelled, but not by its executor: by its own code, or by another job")


class Body:
    """Performs the bodies of runs for one executor."""

    def __init__(self, threads: int, shared: SharedValues, cells: Cells, stop_grace: float) -> None:
        self._invoker, self._cells = Invoker(threads), cells
        self._injecting = Injecting(self._invoker, shared, stop_grace)

    def perform(self, bound: Bound, held: Held, time_out: TimeOut) -> Awaitable[Any]:
        """The value that the body returns. Raises TaskTimeout when it takes longer than its timeout, even if it then
        returns a value: a thread, or a handler that swallows its cancellation, may do so."""
        # Returns the coroutine of one of these, because a coroutine that awaited it would cost as much as a provider.
        if bound.task.isolated:
            return self._isolated(bound, held, time_out)
        injection = bound.task.injection
        if bound.plan.timeout is not None or (injection is not None and injection.recipe.enters):
            return self._within_its_time(bound, held, time_out)
        return self._call(bound, held, time_out)

    async def _call_cell(self, bound: Bound, held: Held, time_out: TimeOut) -> Any:
        encoded = await self._cells.run(held, time_out)
        # Without performers, the result is written as it came.
        return encoded if bound.task.performers is None else bound.task.returns.decode(encoded)

    async def _isolated(self, bound: Bound, held: Held, time_out: TimeOut) -> Any:
        # The app may have to be imported for the process. This does not count towards the timeout of the job.
        await self._cells.ready()
        return await self._within_its_time(bound, held, time_out)

    async def _within_its_time(self, bound: Bound, held: Held, time_out: TimeOut) -> Any:
        timeout = bound.plan.timeout
        # Not asyncio.timeout: call_later and cancel cost a third of it, for every job with a timeout.
        loop = asyncio.get_running_loop()
        timer = None if timeout is None else loop.call_later(timeout, time_out, held)
        where: TracebackType | None = None
        try:
            value = await self._call(bound, held, time_out)
        except asyncio.CancelledError as cancelled:
            if not held.overran or uncancelled() > 0:
                raise
            where = cancelled.__traceback__
        except BaseException:
            if held.overran:
                uncancelled()
            raise
        else:
            if not held.overran:
                return value
            uncancelled()
        finally:
            if timer is not None:
                timer.cancel()
        # With the traceback of the cancellation, which shows where the task was waiting.
        try:
            raise too_late(held, timeout).with_traceback(where)
        finally:
            del where  # avoids a reference cycle: the traceback refers to this frame

    def _call(self, bound: Bound, held: Held, time_out: TimeOut) -> Awaitable[Any]:
        performers = bound.task.performers
        if performers is None:
            return self._call_function(bound, held, time_out)
        return performers.around(current.get(), partial(self._call_function, bound, held, time_out))

    def _call_function(self, bound: Bound, held: Held, time_out: TimeOut) -> Coroutine[Any, Any, Any]:
        injection = bound.task.injection
        if bound.task.isolated:
            return self._call_cell(bound, held, time_out)
        if injection is None:
            return self._invoker.call(bound.task, held, bound.args, bound.kwargs)
        if injection.recipe.is_direct:
            return self._injecting.call_directly(injection, bound)
        return self._injecting.call(injection, bound, held, time_out)


def too_late(held: Held, timeout: float | None) -> TaskTimeout:
    """The error of a run that took longer than its timeout, or whose providers took longer than `stop_grace` to end."""
    if held.overstayed or timeout is None:
        return TaskTimeout("the providers of the task did not end within stop_grace")
    return TaskTimeout(f"the task ran longer than its timeout of {timeout:g} s")
