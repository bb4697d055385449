"""The commands: each has a file and a line in this table. They do not import each other: shared code is in
`fennelq/cli/`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

import typer

COMMANDS: Final[Mapping[str, str]] = {
    "enqueue": "enqueue:send",
    "info": "info:show",
    "top": "top:show",
    "profile": "profile:show",
    "audit": "audit:show",
    "exporter": "exporter:run",
    "dev": "dev:run",
    "api": "api:serve",
    "grpc": "grpc:serve",
    "worker": "worker:commands",
    "dlq": "dlq:commands",
    "queue": "queue:commands",
    "job": "job:commands",
    "op": "op:commands",
    "limit": "limit:commands",
    "cron": "cron:commands",
    "history": "history:commands",
    "web": "web:commands",
    "token": "token:commands",
}
"""Name → the file and the function of a command, or the file and the family of commands, in the order of the help."""


def found(name: str) -> Callable[..., Any] | typer.Typer:
    """The function of this command, or the family. This imports its file."""
    module, _, attribute = COMMANDS[name].partition(":")
    one: Callable[..., Any] | typer.Typer = getattr(import_module(f"{__name__}.{module}"), attribute)
    return one
