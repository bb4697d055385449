"""Reads the signatures of tasks and providers: which parameters are injected, and how the value of a provider is made.

It runs when a task is registered. Its errors name the path from the task to the parameter.
"""

from __future__ import annotations

import inspect
import re
import sys
import typing
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from types import AsyncGeneratorType, CoroutineType, GeneratorType, SimpleNamespace
from typing import Annotated, Any, Final, cast, get_args, get_origin

from pydantic.fields import FieldInfo

from fennelq.errors import ConfigurationError
from fennelq.injection.markers import Injected, Marker, Provider
from fennelq.wording import a_kind_of

PLAIN: Final = 0
"""The value is what the provider returns."""
AWAITED: Final = 1
"""The provider is a coroutine function."""
ENTERED: Final = 2
"""The provider is a generator, or what contextlib made of one."""
ENTERED_ASYNC: Final = 3
"""The provider is an asynchronous generator, or what contextlib made of one."""

Path = tuple[str, ...]
"""From the task to the provider, for messages."""

_FILLED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_MARKED = re.compile(r"\b(Annotated|Depends|Shared)\b")


def _generator() -> Generator[None]:
    yield


async def _async_generator() -> AsyncGenerator[None]:
    yield


_entered: Any = contextmanager(_generator)
_entered_async: Any = asynccontextmanager(_async_generator)
_CODES: Final[Mapping[Any, int]] = {
    _entered.__code__: ENTERED,
    _entered_async.__code__: ENTERED_ASYNC,
}
"""The code objects of all functions that contextlib makes of generators: each has one of these two."""
UNMADE: Final[frozenset[Any]] = frozenset(
    {CoroutineType, GeneratorType, AsyncGeneratorType, type(_entered()), type(_entered_async())}
)
"""The types that a plain function returns if it only calls another provider: such an object is not the value."""


def refuse_unmade(value: object, provider: str) -> TypeError:
    """The error for a value that is of `UNMADE`."""
    kind = a_kind_of(value)
    if inspect.iscoroutine(value):
        value.close()  # it will not be awaited: Python need not warn of that
    return TypeError(
        f"the provider {provider} returned {kind}, not a value: it only calls another provider. "
        "Declare it in the same way as that one, with async def, yield or @asynccontextmanager"
    )


def way_of(provider: Provider) -> tuple[Callable[..., Any], int]:
    """The function to call for a value, and how the value is made of what it returns."""
    code = _function_of(provider)
    if inspect.isasyncgenfunction(code):
        return asynccontextmanager(provider), ENTERED_ASYNC
    if inspect.isgeneratorfunction(code):
        return contextmanager(provider), ENTERED
    if inspect.iscoroutinefunction(code):
        return provider, AWAITED
    return provider, _CODES.get(getattr(code, "__code__", None), PLAIN)


def markers_of(function: Provider, path: Path) -> dict[str, Marker]:
    """The injected parameters of a function; raises ConfigurationError when one is marked in a wrong way."""
    found: dict[str, Marker] = {}
    for parameter in parameters_of(function):
        marker = _marker_of(function, parameter, path)
        if marker is None:
            continue
        if parameter.kind not in _FILLED:
            raise _refusal(path, parameter, "is injected by its name, so no / or * may make it nameless")
        found[parameter.name] = marker
    return found


def check_filled(provider: Provider, path: Path, filled: Mapping[str, object]) -> None:
    """Raises ConfigurationError for a parameter of a provider that has no value."""
    for parameter in parameters_of(provider):
        default = parameter.default
        if parameter.name in filled or parameter.kind in _VARIABLE:
            continue
        if isinstance(default, FieldInfo) and type(default).__module__.startswith("fastapi"):
            raise _refusal(path, parameter, "is filled from a request by FastAPI, and a job has no request")
        if default is parameter.empty:
            raise _refusal(
                path,
                parameter,
                "has neither a provider nor a default. Give it one of them, "
                f"like {parameter.name}=Depends(…), or make the value in a provider without parameters",
            )


def check_hashable(provider: Provider, path: Path) -> None:
    """Raises ConfigurationError for an object that cannot be told apart from other providers."""
    try:
        hash(provider)
    except TypeError:
        raise ConfigurationError(
            f"{' → '.join(path)}: this provider is an object without a hash: pass a function that calls it"
        ) from None


def parameters_of(function: Provider) -> Sequence[inspect.Parameter]:
    """The parameters of a function. Classes written in C may have no signature that Python can read, like `Lock`: they
    are called without arguments."""
    try:
        return [*inspect.signature(function).parameters.values()]
    except (ValueError, TypeError):
        return []


def _marker_of(function: Provider, parameter: inspect.Parameter, path: Path) -> Marker | None:
    inside = _in_annotation(function, parameter, path)
    default = as_marker(parameter.default)
    if inside is not None and default is not None:
        raise _refusal(path, parameter, "has two providers, as its default and in Annotated: leave one out")
    if inside is None and isinstance(parameter.default, Injected):
        raise _refusal(
            path,
            parameter,
            "has the default injected, and no provider: write Annotated[…, Depends(…)] = injected, and import at run "
            "time, not only under TYPE_CHECKING, what the annotation names",
        )
    return inside or default


def _in_annotation(function: Provider, parameter: inspect.Parameter, path: Path) -> Marker | None:
    """The marker in an `Annotated` type."""
    hint = parameter.annotation
    if isinstance(hint, str):
        hint = _resolved(function, parameter, path)
    if get_origin(hint) is not Annotated:
        return None
    found = [marker for extra in get_args(hint)[1:] if (marker := as_marker(extra)) is not None]
    if len(found) > 1:
        raise _refusal(path, parameter, "has two providers in Annotated: leave one out")
    return found[0] if found else None


def _resolved(function: Provider, parameter: inspect.Parameter, path: Path) -> Any:
    """The annotation, which is written as a string. Only this one is resolved, because the other annotations of a
    provider, such as that of its return value, often name what is imported for type checkers only."""
    name, written = parameter.name, str(parameter.annotation)
    alone = cast("Any", SimpleNamespace(__annotations__={name: written}))
    try:
        return typing.get_type_hints(alone, _names_of(function), include_extras=True)[name]
    except Exception as error:
        if _MARKED.search(written):
            raise _refusal(
                path,
                parameter,
                f"has an annotation that cannot be resolved ({error}): import its names at run time, not only under "
                "TYPE_CHECKING, and define them at the top level of the module",
            ) from None
        return None


def _names_of(function: Provider) -> dict[str, Any]:
    """The names that the annotations of a function can use."""
    code = _function_of(function)
    if isinstance(code, type):
        return dict(vars(sys.modules[code.__module__])) if code.__module__ in sys.modules else {}
    names: dict[str, Any] = getattr(inspect.unwrap(code), "__globals__", {})
    return names


def _function_of(provider: Provider) -> Any:
    """The function, or the class, that a call of the provider executes in the end."""
    while isinstance(provider, partial):
        provider = provider.func
    if not (isinstance(provider, type) or inspect.isroutine(provider)):
        provider = type(provider).__call__
    return getattr(provider, "__func__", provider)


def as_marker(value: object) -> Marker | None:
    """The marker that this is; FastAPI's `Depends` objects, and those of its like, have the provider in an attribute
    `dependency`."""
    if isinstance(value, Marker):
        return value
    if not any(kind.__name__ == "Depends" for kind in type(value).__mro__):
        return None
    provider = getattr(value, "dependency", None)
    if not callable(provider):
        raise ConfigurationError(f"{value!r} names no provider: write Depends(get_db)")
    return Marker(provider, shared=False)


def _refusal(path: Path, parameter: inspect.Parameter, why: str) -> ConfigurationError:
    return ConfigurationError(f"{' → '.join(path)}: parameter {parameter.name!r} {why}")
