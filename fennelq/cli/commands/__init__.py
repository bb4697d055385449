"""The commands: each has a file and a line in this table. They do not import each other: shared code is in
`fennelq/cli/`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import typer

from fennelq.cli.commands import cron, dlq, enqueue, info, job, queue, worker

COMMANDS: Final[Mapping[str, Callable[..., Any] | typer.Typer]] = {
    "worker": worker.run,
    "dlq": dlq.commands,
    "queue": queue.commands,
    "job": job.commands,
    "cron": cron.commands,
    "enqueue": enqueue.send,
    "info": info.show,
}
"""Name → the function of a command, or a family of commands, in the order of the help."""
