"""Makes a command from a function, and options from its parameters.

A parameter may be a dataclass: then each of its fields is an option, and several commands can share the dataclass. With
a parameter `session: Session`, a command has `--app`, `--app-dir` and a connection to Redis.

A command that changes something declares it: `@command(commands, "purge", changes=True)`, and does it in
`session.change(…)`, which records it for `fennelq audit`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, TypeVar, cast

import typer

from fennelq.cli.auditing import calling
from fennelq.cli.helps import Command, Group, GroupThatRuns

F = TypeVar("F", bound=Callable[..., None])


def family(text: str) -> typer.Typer:
    """A family of commands with a common first word; `text` is its help."""
    return typer.Typer(cls=Group, no_args_is_help=True, help=text)


def family_that_runs() -> typer.Typer:
    """A family whose first word alone is a command as well: see `itself`."""
    return typer.Typer(cls=GroupThatRuns)


def itself(commands: typer.Typer) -> Callable[[F], F]:
    """Make a function the command of a family without a further word, as in `fennelq worker`. Typer also calls it
    before every other command of the family. So it takes the typer.Context, whose `invoked_subcommand` is the name of
    that command."""

    def add(function: F) -> F:
        commands.callback(cls=GroupThatRuns, invoke_without_command=True)(_Flat(function))
        return function

    return add


def given_options(context: typer.Context) -> list[str]:
    """The options on the command line before the name of the command."""
    given = (
        one
        for one in context.command.params
        if getattr(context.get_parameter_source(str(one.name)), "name", "") == "COMMANDLINE"
    )
    return [max(one.opts, key=len) for one in given]


def command(commands: typer.Typer, name: str, *, changes: bool = False) -> Callable[[F], F]:
    """Make a function a command of this family. With `changes`, it is a command that changes something, and is
    recorded."""

    def add(function: F) -> F:
        commands.command(name, cls=Command)(Changing(function) if changes else _Flat(function))
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


class Changing(_Flat):
    """A command that changes something: `session.change` records the words of the command line."""

    def __init__(self, function: Callable[..., None]) -> None:
        super().__init__(function)
        context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        self.__signature__ = self.__signature__.replace(
            parameters=[*self.__signature__.parameters.values(), context]
        )
        self.__annotations__["context"] = typer.Context

    def __call__(self, **given: Any) -> None:
        with calling(given.pop("context")):
            super().__call__(**given)


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function, eval_str=True).parameters.values())
