"""The commands: each has a file and a line in this table. They do not import each other: shared code is in
`fennelq/cli/`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

import typer

COMMANDS: Final[Mapping[str, str]] = {
    "worker": "worker:commands",
    "dev": "dev:run",
    "enqueue": "enqueue:send",
    "job": "job:commands",
    "queue": "queue:commands",
    "dlq": "dlq:commands",
    "cron": "cron:commands",
    "limit": "limit:commands",
    "op": "op:commands",
    "info": "info:show",
    "top": "top:show",
    "web": "web:commands",
    "profile": "profile:show",
    "history": "history:commands",
    "audit": "audit:show",
    "exporter": "exporter:run",
    "api": "api:serve",
    "grpc": "grpc:serve",
    "token": "token:commands",
}
"""Name → the file and the function of a command, or the file and the family of commands, in the order of the help."""


def found(name: str) -> Callable[..., Any] | typer.Typer:
    """The function of this command, or the family. This imports its file."""
    module, _, attribute = COMMANDS[name].partition(":")
    one: Callable[..., Any] | typer.Typer = getattr(import_module(f"{__name__}.{module}"), attribute)
    return one
