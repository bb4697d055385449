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
    "dev": dev.run,
    "enqueue": enqueue.send,
    "job": job.commands,
    "queue": queue.commands,
    "dlq": dlq.commands,
    "cron": cron.commands,
    "limit": limit.commands,
    "op": op.commands,
    "info": info.show,
    "top": top.show,
    "web": web.commands,
    "profile": profile.show,
    "history": history.commands,
    "audit": audit.show,
    "exporter": exporter.run,
    "api": api.serve,
    "grpc": grpc.serve,
    "token": token.commands,
}
"""Name → the function of a command, or a family of commands, in the order of the help."""
