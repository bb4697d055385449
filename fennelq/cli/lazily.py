"""Imports the file of a command when the command is called. To import all of them takes an eighth of the time in which
a command such as `fennelq queue list` starts."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import typer
from typer.main import get_group

from fennelq.cli.command import command
from fennelq.cli.commands import COMMANDS, found
from fennelq.cli.exits import Commands


class Program(Commands):
    """The commands in the order of their table, each made when it is asked for."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Made()


class _Made(MutableMapping[str, Any]):
    """Commands by name."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _made(name)
        return self._made[name]

    def __setitem__(self, name: str, one: Any) -> None:
        self._made[name] = one

    def __delitem__(self, name: str) -> None:
        del self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**COMMANDS, **self._made})

    def __len__(self) -> int:
        return len({**COMMANDS, **self._made})

    def __contains__(self, name: object) -> bool:
        """Imports nothing."""
        return name in COMMANDS or name in self._made


def _made(name: str) -> Any:
    """The command of this name; raises KeyError when there is none."""
    one, holder = found(name), typer.Typer(add_completion=False, rich_markup_mode=None)
    if isinstance(one, typer.Typer):
        holder.add_typer(one, name=name)
    else:
        command(holder, name)(one)
    return get_group(holder).commands[name]
