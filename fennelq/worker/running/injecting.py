"""Makes the values that a task has injected, calls it with them, and leaves them before its outcome is decided."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from fennelq.injection.recipe import Injection, Recipe, Step
from fennelq.injection.signatures import AWAITED, ENTERED, UNMADE, refuse_unmade
from fennelq.worker.running.held import Held
from fennelq.worker.running.invoke import Invoker, loop_is_gone
from fennelq.worker.shared import MISSING, LooplessValues, SharedValues

if TYPE_CHECKING:
    from fennelq.worker.running.body import Bound, TimeOut

Entered = list[tuple[Any, bool]]
"""The managers that were entered, each with whether it is asynchronous."""


class Injecting:
    """Calls the tasks of one executor that have injected parameters."""

    def __init__(self, invoker: Invoker, shared: SharedValues, stop_grace: float) -> None:
        self._invoker, self._shared, self._stop_grace = invoker, shared, stop_grace

    async def call_directly(self, injection: Injection, bound: Bound) -> Any:
        """Call an `async def` task whose values need not be left. Written in one piece, because most tasks that have
        something injected are called here, and a coroutine in between costs as much as a provider."""
        recipe, shared = injection.recipe, self._shared.made
        values: list[Any] = []
        for make, how, needs, key, path in recipe.on_loop:
            if key is not None:
                value = shared.get(key, MISSING)
                if value is MISSING:
                    step = recipe.on_loop[len(values)]
                    value = await self._shared.make(step, {name: values[at] for name, at in needs})
            else:
                value = make(**{name: values[at] for name, at in needs}) if needs else make()
                if how == AWAITED:
                    value = await value
                elif type(value) in UNMADE:
                    raise refuse_unmade(value, path[-1])
            values.append(value)
        if injection.in_between:
            placed, named = injection.arguments(recipe, bound.args, bound.kwargs, values)
            return await bound.task.function(*placed, **named)
        named = {**bound.kwargs}
        for name, at in recipe.passed:
            named[name] = values[at]
        return await bound.task.function(*bound.args, **named)

    async def call(self, injection: Injection, bound: Bound, held: Held, time_out: TimeOut) -> Any:
        """The value that the task returns. The providers that were entered get the exception of the task, also one by
        which it chooses its outcome. If one of them swallows it, this raises it all the same; if one raises another,
        this raises that. `time_out` is called when they take longer than `stop_grace` and the task has no timeout."""
        recipe = injection.recipe
        entered: Entered = []
        result, failed = None, None
        try:
            values = await self._values(recipe, entered)
            if bound.task.is_async:
                args, kwargs = injection.arguments(recipe, bound.args, bound.kwargs, values)
                result = await bound.task.function(*args, **kwargs)
            else:
                result = await self._in_thread(injection, recipe, values, bound, held, time_out)
        except BaseException as error:
            if not entered or (isinstance(error, GeneratorExit) and loop_is_gone()):
                raise
            failed = error
        if entered:
            failed = await _left(entered, failed, Limit(held, self._stop_grace), time_out)
        if failed is None:
            return result
        try:
            raise failed
        finally:
            del failed  # avoids a reference cycle: its traceback refers to this frame

    async def _values(self, recipe: Recipe, entered: Entered) -> list[Any]:
        """The values that are made on the loop."""
        shared = self._shared.made
        values: list[Any] = []
        for step in recipe.on_loop:
            make, how, needs, key, _ = step
            value: Any
            if key is not None:
                value = shared.get(key, MISSING)
                if value is MISSING:
                    value = await self._shared.make(step, {name: values[at] for name, at in needs})
                values.append(value)
                continue
            value = make(**{name: values[at] for name, at in needs}) if needs else make()
            if how == AWAITED:
                value = await value
            elif how:
                manager, is_async = value, how != ENTERED
                value = await manager.__aenter__() if is_async else manager.__enter__()
                entered.append((manager, is_async))
            elif type(value) in UNMADE:
                raise refuse_unmade(value, step.name)
            values.append(value)
        return values

    async def _in_thread(
        self,
        injection: Injection,
        recipe: Recipe,
        values: list[Any],
        bound: Bound,
        held: Held,
        time_out: TimeOut,
    ) -> Any:
        """Make the rest of the values in the thread of the task, so that a session stays in the thread in which it was
        made, and call the task there."""
        limit = Limit(held, self._stop_grace)
        leaving = partial(_from_thread, asyncio.get_running_loop(), limit, time_out)
        call = partial(
            call_in_thread, injection, recipe, values, leaving, bound.task.function, bound.args, bound.kwargs
        )
        try:
            return await self._invoker.in_thread(held, call)
        finally:
            limit.end()


def call_in_thread(
    injection: Injection,
    recipe: Recipe,
    values: list[Any],
    leaving: Callable[[], None],
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    shared: LooplessValues | None = None,
) -> Any:
    """Make the values that are made in the thread of a task, after `values`; call the task with all of them, and leave
    their providers. `leaving` is called before that. `shared` makes the shared values where no loop has made them."""
    entered: list[Any] = []
    result, failed = None, None
    try:
        for step in recipe.in_thread:
            values.append(_made(step, {name: values[at] for name, at in step.needs}, entered, shared))
        placed, named = injection.arguments(recipe, args, kwargs, values)
        result = function(*placed, **named)
    except BaseException as error:
        failed = error
    if entered:
        leaving()
    while entered:
        try:
            entered.pop().__exit__(*_raised(failed))
        except BaseException as error:
            failed = error
    if failed is None:
        return result
    try:
        raise failed
    finally:
        del failed


def _made(step: Step, args: Mapping[str, Any], entered: list[Any], shared: LooplessValues | None) -> Any:
    if step.key is not None and shared is not None:
        return shared.value(step, args)
    value = step.make(**args)
    if step.how == ENTERED:
        manager, value = value, value.__enter__()
        entered.append(manager)
    elif type(value) in UNMADE:
        raise refuse_unmade(value, step.name)
    return value


async def _left(
    entered: Entered, failed: BaseException | None, limit: Limit, time_out: TimeOut
) -> BaseException | None:
    """Leave the providers, the last one first; returns the error of the task, or the one in its place."""
    limit.start(time_out)
    try:
        while entered:
            manager, is_async = entered.pop()
            try:
                if is_async:
                    await manager.__aexit__(*_raised(failed))
                else:
                    manager.__exit__(*_raised(failed))
            except BaseException as error:
                if isinstance(error, GeneratorExit) and loop_is_gone():
                    raise
                failed = error
    finally:
        limit.end()
    return failed


def _raised(error: BaseException | None) -> tuple[Any, BaseException | None, Any]:
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


class Limit:
    """Limits the time in which the providers of a task are left, also if the task has a longer timeout."""

    __slots__ = ("_held", "_seconds", "_timer")

    def __init__(self, held: Held, seconds: float) -> None:
        self._held, self._seconds = held, seconds
        self._timer: asyncio.TimerHandle | None = None

    def start(self, time_out: TimeOut) -> None:
        """Count from now, unless the run was asked to stop: then it is given up by its workbench."""
        if self._held.asked is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._seconds, self._expire, time_out)

    def end(self) -> None:
        """Stop counting."""
        if self._timer is not None:
            self._timer.cancel()

    def _expire(self, time_out: TimeOut) -> None:
        self._held.overstay()
        time_out(self._held)


def _from_thread(loop: asyncio.AbstractEventLoop, limit: Limit, time_out: TimeOut) -> None:
    with suppress(RuntimeError):  # the loop has ended: nothing waits for the task any more
        loop.call_soon_threadsafe(limit.start, time_out)
