"""Makes a task of a function: checks the function, names the task, and decides which kind of task it is."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

from fennelq.declaration import check_declared, check_function, check_isolation, name_for, place_of
from fennelq.errors import ConfigurationError
from fennelq.model.options import OptionArgs, Options
from fennelq.task import AnyTask, AsyncTask, ProcessTask, ThreadTask

if TYPE_CHECKING:
    from fennelq.app import App

P = ParamSpec("P")
R = TypeVar("R")


class TaskDecorator(Protocol):
    """The type of `app.task(…)`: it turns an `async def` into an AsyncTask and a `def` into a ThreadTask."""

    # The overloads overlap, because a coroutine function is a function too. Type checkers take the first that fits.
    @overload
    def __call__(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> ThreadTask[P, R]: ...


def made_task(
    app: App,
    function: Callable[..., Any],
    name: str | None,
    options: OptionArgs,
    isolation: str | None = None,
) -> AnyTask:
    """A task of this app, which the caller registers. Raises ConfigurationError when the function cannot be one."""
    check_function(function)
    name = name or name_for(function)
    check_declared(name, function, options)
    known = app.tasks.get(name)
    if known is not None and not _same_code(known.function, function):
        there = place_of(known.function)
        raise ConfigurationError(
            f"task {name!r} is declared twice: give one of them another name="
            + (f" (the first is at {there})" if there else "")
        )
    kind = _kind_of(name, function, app.service, isolation)
    task = kind(app, name, function, Options().with_(options))
    task.calls.check_types()
    task.returns.check_type()
    return task


def _kind_of(
    name: str, function: Callable[..., Any], service: str, isolation: str | None
) -> type[AsyncTask[Any, Any]] | type[ThreadTask[Any, Any]]:
    if isolation is not None:
        check_isolation(name, function, service, isolation)
        return ProcessTask
    return AsyncTask if inspect.iscoroutinefunction(function) else ThreadTask


def _same_code(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether both are the same function, of a module that was imported twice (as `__main__` and by its name)."""
    a, b = getattr(one, "__code__", one), getattr(other, "__code__", other)
    return getattr(a, "co_filename", a) == getattr(b, "co_filename", b) and getattr(
        a, "co_firstlineno", a
    ) == getattr(b, "co_firstlineno", b)
