"""The command line: `fennelq …` and `python -m fennelq …`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fennelq.cli import cron, dlq, enqueue, info, job, queue, worker
from fennelq.cli.exits import MEANINGS, Commands

__all__ = ["main", "program"]

_EPILOG = "Exit codes: " + "; ".join(f"{code.value} {meaning}" for code, meaning in MEANINGS.items()) + "."

program = typer.Typer(
    name="fennelq",
    help="Background jobs on Redis Streams: run workers, look at jobs, bring back the dead.",
    epilog=_EPILOG,
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    # Frames and colours are for terminals; without them a pipe gets plain lines, and sooner.
    rich_markup_mode="rich" if sys.stdout.isatty() and sys.stderr.isatty() else None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
program.command("worker")(worker.run)
program.add_typer(dlq.commands, name="dlq")
program.add_typer(queue.commands, name="queue")
program.add_typer(job.commands, name="job")
program.add_typer(cron.commands, name="cron")
program.command("enqueue")(enqueue.send)
program.command("info")(info.show)


def main() -> None:
    """Do what the command line says."""
    program(prog_name="fennelq")


def _version(asked: bool) -> None:
    if asked:
        from fennelq import __version__

        print(f"fennelq {__version__}")
        raise typer.Exit


@program.callback()
def _always(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    from fennelq import log

    # Logs go to stderr, and here only those that a person must see: `worker` sets up its own.
    log.setup(level="warning")
