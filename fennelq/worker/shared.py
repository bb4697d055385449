"""The values that the jobs of one executor share: made when a job first needs them, left when the executor stops."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Hashable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Final, NamedTuple

from fennelq import clock, log
from fennelq.injection.recipe import Recipe, Step
from fennelq.injection.signatures import AWAITED, ENTERED, ENTERED_ASYNC, UNMADE, refuse_unmade

_logger = log.get("fennelq.worker")

MISSING: Final = object()
"""In place of a value that is not made yet: None may be a value."""


class SharedValues:
    """The shared values of one executor.

    Each value has a task of its own, in which its provider is entered and left. So a job that is cancelled while it
    waits does not disturb the other jobs that need the value, a provider that hangs delays no other provider, and
    cancel scopes of anyio are left in the task that entered them.
    """

    def __init__(self) -> None:
        self.made: dict[Hashable, Any] = {}
        """The values by their keys."""
        self._lives: dict[Hashable, _Life] = {}
        self._ended = False
        # Not the context of the job that needs a value first: background tasks of the value would log as that job.
        self._context = contextvars.copy_context()

    async def make(self, step: Step, args: Mapping[str, Any]) -> Any:
        """The value of this step. All jobs that need it at the same time wait for one call of its provider. When it
        fails, all of them get its error, and the next job calls the provider again."""
        life = self._lives.get(step.key)
        if life is None:
            if self._ended:
                raise RuntimeError(f"the executor has stopped, so it does not make {step.name} any more")
            life = self._lives[step.key] = _Life(self, step, args, self._context.copy())
        value, error, trace = await asyncio.shield(life.made)
        if error is not None:
            raise error.with_traceback(trace)  # without what the other jobs that wait have added
        return value

    async def make_all(self, recipe: Recipe) -> Any:
        """Make the values of a recipe that has only shared ones; returns the last."""
        values: list[Any] = []
        for step in recipe.on_loop:
            value = self.made.get(step.key, MISSING)
            if value is MISSING:
                value = await self.make(step, {name: values[at] for name, at in step.needs})
            values.append(value)
        return values[-1]

    async def leave(self, within: float) -> None:
        """Leave all values, the last one first. If a provider fails, or takes too long, the others are left all the
        same."""
        # A run that ignores the request to stop may still ask for values: none of them would be left.
        self._ended = True
        deadline = clock.monotonic() + within
        lives = [*self._lives.values()]
        while lives:
            life = lives.pop()
            # All but the last get half of the time that is left: one that hangs must not cost the others their end.
            share = max(0.0, deadline - clock.monotonic()) / (2 if lives else 1)
            if not await life.end(share):
                _logger.warning("shared_value_not_left", provider=life.step.name, seconds=round(share, 3))

    def note_made(self, life: _Life, value: Any) -> None:
        """Keep the value for the next jobs."""
        self.made[life.step.key] = value

    def forget(self, life: _Life) -> None:
        """The value could not be made, or is about to be left."""
        if self._lives.get(life.step.key) is life:
            del self._lives[life.step.key]
            self.made.pop(life.step.key, None)


class _Made(NamedTuple):
    """A value, or the error in its place."""

    value: Any
    error: BaseException | None
    trace: TracebackType | None


class _Life:
    """The life of one value, from its making to its end."""

    def __init__(
        self, values: SharedValues, step: Step, args: Mapping[str, Any], context: contextvars.Context
    ) -> None:
        loop = asyncio.get_running_loop()
        self.step, self._values = step, values
        self.made: asyncio.Future[_Made] = loop.create_future()
        """The value or the error. An error is a result, because a future cannot raise every exception."""
        self._ending = asyncio.Event()
        self._task = loop.create_task(self._run(args), name=f"shared {step.name}", context=context)
        self._task.add_done_callback(self._note_end)

    async def end(self, within: float) -> bool:
        """Leave the value; returns whether that was done in time."""
        self._ending.set()
        if not self.made.done():
            self._task.cancel()
        await asyncio.wait([self._task], timeout=within)
        if self._task.done():
            return True
        self._task.cancel()
        return False

    def _note_end(self, _: asyncio.Task[None]) -> None:
        """A job that cancels all tasks of the loop may do so before the first step: then `_run` has not begun, and the
        jobs that wait would wait for ever."""
        if not self.made.done():
            self._values.forget(self)
            self.made.set_result(_Made(None, asyncio.CancelledError(f"{self.step.name} was cancelled"), None))

    async def _run(self, args: Mapping[str, Any]) -> None:
        manager: Any = None
        try:
            value: Any = self.step.make(**args)
            if self.step.how in (ENTERED, ENTERED_ASYNC):
                manager, value = value, await _entered(value, self.step.how)
            elif self.step.how == AWAITED:
                value = await value
            elif type(value) in UNMADE:
                raise refuse_unmade(value, self.step.name)
        except BaseException as error:
            self._values.forget(self)
            self.made.set_result(_Made(None, error, error.__traceback__))
            return
        self._values.note_made(self, value)
        self.made.set_result(_Made(value, None, None))
        if manager is not None:
            await self._keep(manager)

    async def _keep(self, manager: Any) -> None:
        try:
            await self._ending.wait()
        except asyncio.CancelledError:
            pass  # a job has cancelled all tasks of the loop: the next job that needs the value gets a new one
        self._values.forget(self)
        try:
            if self.step.how == ENTERED_ASYNC:
                await manager.__aexit__(None, None, None)
            else:
                manager.__exit__(None, None, None)
        except asyncio.CancelledError:
            pass  # it took too long, which is logged
        except BaseException as error:
            _logger.warning("shared_value_failed_to_leave", provider=self.step.name, error=repr(error)[:500])


async def _entered(manager: Any, how: int) -> Any:
    return await manager.__aenter__() if how == ENTERED_ASYNC else manager.__enter__()


class LooplessValues:
    """The shared values of a process without an event loop, which runs one job at a time."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Any] = {}
        self._stack = ExitStack()

    def value(self, step: Step, args: Mapping[str, Any]) -> Any:
        """The value of this step, made when it is first needed."""
        value = self._made.get(step.key, MISSING)
        if value is MISSING:
            value = step.make(**args)
            if step.how == ENTERED:
                value = self._stack.enter_context(value)
            elif type(value) in UNMADE:
                raise refuse_unmade(value, step.name)
            self._made[step.key] = value
        return value

    def leave(self) -> None:
        """Leave all values, the last one first."""
        self._made.clear()
        self._stack.close()
