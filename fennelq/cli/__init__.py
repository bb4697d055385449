"""The command line: `fennelq …` and `python -m fennelq …`."""

from __future__ import annotations

import errno
import gc
import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from fennelq.cli import output
from fennelq.cli.exits import Exit
from fennelq.cli.helps import WIDEST
from fennelq.cli.lazily import Program
from fennelq.streams import open_missing

__all__ = ["main", "program"]

_UNWRITABLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE)

program = typer.Typer(
    name="fennelq",
    help="Background jobs on Redis Streams: run workers, look at jobs, replay dead jobs.",
    cls=Program,
    no_args_is_help=True,
    rich_markup_mode=None,  # help is laid out in `helps`, and errors are plain sentences
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDEST},
)


def main() -> None:
    """Run the command that the command line names."""
    open_missing()
    try:
        try:
            program(prog_name="fennelq")
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        raise SystemExit(Exit.INTERRUPTED) from None
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        _report_output_error(error)
        raise SystemExit(Exit.FAILED) from None
    finally:
        # When the interpreter ends, it searches all its objects for garbage: a fifth of the time of a short command.
        gc.freeze()


def _report_output_error(error: OSError) -> None:
    if error.errno != errno.EPIPE:  # a reader such as `head` closes the pipe early: no error
        output.note(f"fennelq: the output cannot be written: {error.strerror}")
    # The interpreter flushes stdout when it ends. The flush would fail again, and change the exit code.
    sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115


def _version(asked: bool) -> None:
    if asked:
        from fennelq import __version__

        print(f"fennelq {__version__}")
        raise typer.Exit


@program.callback()
def _always(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    from fennelq import log

    # Commands log only warnings and errors, to stderr. `worker` configures logging after importing the app, because the
    # app may configure logging itself.
    log.setup(level="warning", stdlib=context.invoked_subcommand != "worker", at_once=False)
