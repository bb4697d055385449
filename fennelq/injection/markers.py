"""`Depends` and `Shared`: they mark the parameters of tasks and providers to which a worker passes values."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from fennelq.errors import ConfigurationError
from fennelq.wording import a_kind_of

if TYPE_CHECKING:
    # What `@asynccontextmanager` and `@contextmanager` return. Their base classes would fit every class that has an
    # `__enter__`, whose objects are passed as they are: `Depends(Lock)` is a Lock and not a bool.
    from contextlib import (
        _AsyncGeneratorContextManager as _MadeAsync,  # pyright: ignore[reportPrivateUsage]
    )
    from contextlib import (
        _GeneratorContextManager as _Made,  # pyright: ignore[reportPrivateUsage]
    )

    from fennelq.app import App

T = TypeVar("T")

Provider = Callable[..., Any]
"""A function, or a class, whose value fills a parameter."""
Lifespan = Callable[["App"], AsyncIterator[Any] | AbstractAsyncContextManager[Any]]
"""Makes what an executor needs before its first job, and closes it after the last."""


class Marker:
    """The default of a parameter that is filled by a provider, or a part of its `Annotated` type."""

    __slots__ = ("provider", "shared")

    def __init__(self, provider: Provider, *, shared: bool) -> None:
        self.provider, self.shared = provider, shared

    def __repr__(self) -> str:
        return f"{'Shared' if self.shared else 'Depends'}({provider_name(self.provider)})"


class Injected:
    """The type of `injected`."""

    def __repr__(self) -> str:
        return "injected"


injected: Final[Any] = Injected()
"""The default of a parameter whose `Annotated` type has a `Depends` or `Shared`. At run time it changes nothing. It
lets type checkers accept a `delay()` without this argument: `db: Annotated[Db, Depends(get_db)] = injected`."""


@overload
def Depends(provider: Callable[..., AsyncGenerator[T, Any]], /) -> T: ...
@overload
def Depends(provider: Callable[..., AsyncIterator[T]], /) -> T: ...
@overload
def Depends(provider: Callable[..., Generator[T, Any, Any]], /) -> T: ...
@overload
def Depends(provider: Callable[..., _MadeAsync[T]], /) -> T: ...
@overload
def Depends(provider: Callable[..., _Made[T]], /) -> T: ...
@overload
def Depends(provider: Callable[..., Coroutine[Any, Any, T]], /) -> T: ...
@overload
def Depends(provider: Callable[..., T], /) -> T: ...
def Depends(provider: Provider, /) -> Any:  # noqa: N802 - as in FastAPI, whose providers work here as well
    """Fill a parameter with the value of `provider`: `db: Db = Depends(get_db)`.

    The worker calls it once per job, even if several parameters need its value. If it is a generator function, or has
    the decorator `@contextmanager` or `@asynccontextmanager`, it yields the value; its code after `yield` runs after
    the task, and gets the exception of the task. Any other value is passed as it is. The parameters of a provider may
    have providers themselves.

    `db: Annotated[Db, Depends(get_db)] = injected` is the same. There, `injected` only lets type checkers accept a
    `delay()` without this argument.
    """
    return _marker("Depends", provider, shared=False)


@overload
def Shared(provider: Callable[..., AsyncGenerator[T, Any]], /) -> T: ...
@overload
def Shared(provider: Callable[..., AsyncIterator[T]], /) -> T: ...
@overload
def Shared(provider: Callable[..., Generator[T, Any, Any]], /) -> T: ...
@overload
def Shared(provider: Callable[..., _MadeAsync[T]], /) -> T: ...
@overload
def Shared(provider: Callable[..., _Made[T]], /) -> T: ...
@overload
def Shared(provider: Callable[..., Coroutine[Any, Any, T]], /) -> T: ...
@overload
def Shared(provider: Callable[..., T], /) -> T: ...
def Shared(provider: Provider, /) -> Any:  # noqa: N802
    """Fill a parameter with a value that all jobs of an executor share: `pool: Pool = Shared(make_pool)`.

    The executor calls `provider` when a job first needs the value, and leaves it when the executor stops, after the
    jobs, in reverse order. Its own parameters may have `Shared` providers only.
    """
    return _marker("Shared", provider, shared=True)


def provider_name(provider: Provider) -> str:
    """The name of a provider, for messages."""
    inner = getattr(provider, "func", provider)  # of a functools.partial
    return str(getattr(inner, "__qualname__", None) or type(inner).__qualname__).rpartition("<locals>.")[2]


def _marker(word: str, provider: object, *, shared: bool) -> Marker:
    is_task = type(provider).__module__ == "fennelq.task"
    if callable(provider) and not is_task:
        return Marker(provider, shared=shared)
    if is_task:
        raise ConfigurationError(
            f"{word} takes a function, not a task: write {word}(…) with the function the task was made of"
        )
    if inspect.iscoroutine(provider):
        provider.close()  # it will not be awaited: Python need not warn of that
    raise ConfigurationError(
        f"{word} takes the provider, not {a_kind_of(provider)}: write {word}(get_db), without calling it. "
        f"For a value that exists already, write {word}(lambda: value)"
    )
