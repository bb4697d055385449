"""The commands: each has a file and a line in this table. They do not import each other: shared code is in
`fennelq/cli/`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import typer

from fennelq.cli.commands import (
    api,
    audit,
    cron,
    dev,
    dlq,
    enqueue,
    exporter,
    grpc,
    history,
    info,
    job,
    limit,
    op,
    profile,
    queue,
    token,
    top,
    web,
    worker,
)

COMMANDS: Final[Mapping[str, Callable[..., Any] | typer.Typer]] = {
    "worker": worker.commands,
    "dlq": dlq.commands,
    "queue": queue.commands,
    "job": job.commands,
    "op": op.commands,
    "limit": limit.commands,
    "cron": cron.commands,
    "enqueue": enqueue.send,
    "info": info.show,
    "top": top.show,
    "profile": profile.show,
    "audit": audit.show,
    "history": history.commands,
    "exporter": exporter.run,
    "web": web.commands,
    "dev": dev.run,
    "api": api.serve,
    "grpc": grpc.serve,
    "token": token.commands,
}
"""Name → the function of a command, or a family of commands, in the order of the help."""
