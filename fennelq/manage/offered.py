"""Makes two methods from one conversation: `await app.queues.info(…)` and `app.sync.queues.info(…)`.

The operations of a family are written once, as a class whose methods are conversations. Its subclass with `Awaiting`
runs them on an event loop, its subclass with `Blocking` without one. The three classes of a family have names like
`QueueTalks`, `Queues` and `BlockingQueues`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

from fennelq.broker.talk import Finding, Talk
from fennelq.loops import check_loop
from fennelq.sync import waiting as sync_waiting

if TYPE_CHECKING:
    from fennelq.app import App

P = ParamSpec("P")
A = TypeVar("A")
F = TypeVar("F", bound=Callable[..., Any])


class Family:
    """Operations that belong together."""

    _attribute: ClassVar[str]
    """The attribute of App that has these operations."""
    _item: ClassVar[str] = "found"
    """The loop variable in a warning that shows how to await a `Scan`."""

    def __init__(self, app: App) -> None:
        self._app = app


class Awaiting:
    """The base of a family whose methods run on an event loop."""


class Blocking:
    """The base of a family whose methods run without an event loop."""


class Operation(Generic[P, A]):
    """A conversation as a method, which returns the value of the conversation."""

    def __init__(self, talk: Callable[Concatenate[Any, P], Talk[A]]) -> None:
        @_like(talk)
        async def awaiting(family: Family, *args: P.args, **kwargs: P.kwargs) -> A:
            return await _app_of(family).client.converse(talk(family, *args, **kwargs))

        @_like(talk, "Blocking")
        def blocking(family: Family, *args: P.args, **kwargs: P.kwargs) -> A:
            _check_loop(family, talk.__name__, "await")
            return sync_waiting.converse(_app_of(family), talk(family, *args, **kwargs))

        self._awaiting, self._blocking = awaiting, blocking

    @overload
    def __get__(self, instance: Awaiting, owner: Any) -> Callable[P, Coroutine[Any, Any, A]]: ...
    @overload
    def __get__(self, instance: Blocking, owner: Any) -> Callable[P, A]: ...
    @overload
    def __get__(self, instance: None, owner: Any) -> Callable[..., Any]: ...
    def __get__(self, instance: Any, owner: Any) -> Any:
        """The method for this family, or the function of its class."""
        return _bound(instance, self._awaiting if issubclass(owner, Awaiting) else self._blocking)


class Scan(Generic[P, A]):
    """A conversation as a method, which iterates over the values that the conversation yields."""

    def __init__(self, finding: Callable[Concatenate[Any, P], Finding[A]]) -> None:
        @_like(finding, iterator=AsyncIterator)
        async def awaiting(family: Family, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[A]:
            async for found in _app_of(family).client.each(finding(family, *args, **kwargs)):
                yield found

        @_like(finding, "Blocking", Iterator)
        def blocking(family: Family, *args: P.args, **kwargs: P.kwargs) -> Iterator[A]:
            _check_loop(family, finding.__name__, f"async for {_item_of(family)} in")
            return sync_waiting.each(_app_of(family), finding(family, *args, **kwargs))

        self._awaiting, self._blocking = awaiting, blocking

    @overload
    def __get__(self, instance: Awaiting, owner: Any) -> Callable[P, AsyncIterator[A]]: ...
    @overload
    def __get__(self, instance: Blocking, owner: Any) -> Callable[P, Iterator[A]]: ...
    @overload
    def __get__(self, instance: None, owner: Any) -> Callable[..., Any]: ...
    def __get__(self, instance: Any, owner: Any) -> Any:
        """The method for this family, or the function of its class."""
        return _bound(instance, self._awaiting if issubclass(owner, Awaiting) else self._blocking)


class Call(Generic[P, A]):
    """A function that blocks, such as a call of a database, as a method. With an event loop it runs in a thread."""

    def __init__(self, call: Callable[Concatenate[Any, P], A]) -> None:
        @_like(call)
        async def awaiting(family: Family, *args: P.args, **kwargs: P.kwargs) -> A:
            return await asyncio.to_thread(call, family, *args, **kwargs)

        @_like(call, "Blocking")
        def blocking(family: Family, *args: P.args, **kwargs: P.kwargs) -> A:
            _check_loop(family, call.__name__, "await")
            return call(family, *args, **kwargs)

        self._awaiting, self._blocking = awaiting, blocking

    @overload
    def __get__(self, instance: Awaiting, owner: Any) -> Callable[P, Coroutine[Any, Any, A]]: ...
    @overload
    def __get__(self, instance: Blocking, owner: Any) -> Callable[P, A]: ...
    @overload
    def __get__(self, instance: None, owner: Any) -> Callable[..., Any]: ...
    def __get__(self, instance: Any, owner: Any) -> Any:
        """The method for this family, or the function of its class."""
        return _bound(instance, self._awaiting if issubclass(owner, Awaiting) else self._blocking)


def _like(talk: Callable[..., Any], prefix: str = "", iterator: Any = None) -> Callable[[F], F]:
    """`functools.wraps`, but with the name and the return type of the method that users call: `help()` shows neither
    conversations nor their classes."""
    signature = inspect.signature(talk)
    returned = str(signature.return_annotation)
    is_talk = returned.startswith(("Talk[", "Finding["))
    found = returned.partition("[")[2].removesuffix("]") if is_talk else returned
    shown = f"{iterator.__name__}[{found}]" if iterator else found

    def like(function: F) -> F:
        method: Any = wraps(talk)(function)
        method.__qualname__ = prefix + talk.__qualname__.replace("Talks.", "s.").replace(
            "HistoryCalls.", "History."
        )
        # Only the part in quotes is resolved in the module of the conversation, which need not import the iterator.
        method.__annotations__ = {**talk.__annotations__, "return": iterator[found] if iterator else found}
        method.__signature__ = signature.replace(return_annotation=shown)
        return cast("F", method)

    return like


def _bound(instance: object, function: Callable[..., Any]) -> Callable[..., Any]:
    return function if instance is None else MethodType(function, instance)


def _check_loop(family: Family, name: str, keyword: str) -> None:
    path = f"{_attribute_of(family)}.{name}"
    check_loop(f"app.sync.{path}", f"{keyword} app.{path}(…)")


def _app_of(family: Family) -> App:
    return family._app  # pyright: ignore[reportPrivateUsage]  # the app of a family is not part of the public API


def _attribute_of(family: Family) -> str:
    return family._attribute  # pyright: ignore[reportPrivateUsage]


def _item_of(family: Family) -> str:
    return family._item  # pyright: ignore[reportPrivateUsage]
