"""Makes a command from a function, and options from its parameters.

A parameter may be a dataclass: then each of its fields is an option, and several commands can share the dataclass. With
a parameter `session: Session`, a command has `--app`, `--app-dir` and a connection to Redis.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, TypeVar, cast

import typer

from fennelq.cli.helps import Command, Group

F = TypeVar("F", bound=Callable[..., None])


def family(text: str) -> typer.Typer:
    """A family of commands with a common first word; `text` is its help."""
    return typer.Typer(cls=Group, no_args_is_help=True, help=text)


def command(commands: typer.Typer, name: str) -> Callable[[F], F]:
    """Make a function a command of this family."""

    def add(function: F) -> F:
        commands.command(name, cls=Command)(_Flat(function))
        return function

    return add


class _Flat:
    """A function whose groups of options are replaced by single parameters, as typer requires."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function
        self._groups: dict[str, tuple[Any, list[str]]] = {}
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        flat = [
            one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in _parameters(function)
            for one in self._options(parameter)
        ]
        self.__signature__ = inspect.Signature(flat)
        self.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}

    def __call__(self, **given: Any) -> None:
        for name, (group, options) in self._groups.items():
            given[name] = group(**{option: given.pop(option) for option in options})
        self._function(**given)

    def _options(self, parameter: inspect.Parameter) -> list[inspect.Parameter]:
        group: Any = parameter.annotation
        if not is_dataclass(group):
            return [parameter]
        options = _parameters(cast("Callable[..., Any]", group))
        self._groups[parameter.name] = group, [option.name for option in options]
        return options


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function, eval_str=True).parameters.values())
