"""Performs the body of a run, from the outside in: its timeout, then its function.

The runner calls plain tasks without a timeout directly, so that they pay for none of this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple

from fennelq.model.plan import Plan
from fennelq.task import AnyTask
from fennelq.worker.cells.pool import Cells
from fennelq.worker.running.held import Held
from fennelq.worker.running.invoke import Invoker


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

    def __init__(self, threads: int, cells: Cells) -> None:
        self._invoker, self._cells = Invoker(threads), cells

    async def perform(self, bound: Bound, held: Held, time_out: TimeOut) -> Any:
        """The value that the body returns. Raises TaskTimeout when it takes longer than its timeout, even if it then
        returns a value: a thread, or a handler that swallows its cancellation, may do so."""
        if bound.task.isolated:
            await self._cells.ready()
        timeout = bound.plan.timeout
        if timeout is None:
            return await self._call(bound, held)
        # Not asyncio.timeout: call_later and cancel cost a third of it, for every job with a timeout.
        timer = asyncio.get_running_loop().call_later(timeout, time_out, held)
        where: TracebackType | None = None
        try:
            value = await self._call(bound, held)
        except asyncio.CancelledError as cancelled:
            if not held.overran or _uncancelled() > 0:
                raise
            where = cancelled.__traceback__
        except BaseException:
            if held.overran:
                _uncancelled()
            raise
        else:
            if not held.overran:
                return value
            _uncancelled()
        finally:
            timer.cancel()
        # With the traceback of the cancellation, which shows where the task was waiting.
        try:
            raise too_late(timeout).with_traceback(where)
        finally:
            del where  # avoids a reference cycle: the traceback refers to this frame

    async def _call(self, bound: Bound, held: Held) -> Any:
        if bound.task.isolated:
            return await self._cells.run(held.delivery)
        return await self._invoker.call(bound.task, held, bound.args, bound.kwargs)


def too_late(timeout: float) -> TaskTimeout:
    """The error of a run that took longer than its timeout."""
    return TaskTimeout(f"the task ran longer than its timeout of {timeout:g} s")


def _uncancelled() -> int:
    """Take back the cancellation by which the run was asked to stop; returns how many are left."""
    task = asyncio.current_task()
    assert task is not None
    return task.uncancel()
