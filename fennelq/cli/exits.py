"""The end of a command: one sentence on stderr, and an exit code on which scripts can rely."""

from __future__ import annotations

import sys
from contextlib import suppress
from enum import IntEnum
from typing import Any, Final

import typer

from fennelq.cli import helps, output
from fennelq.errors import (
    BrokerUnavailable,
    ConfigurationError,
    FennelqError,
    InvalidArguments,
    InvalidJobId,
    PayloadTooLarge,
    ResultExpired,
    ResultTimeout,
    UnknownSchedule,
    UnknownTask,
)
from fennelq.streams import is_terminal


class Exit(IntEnum):
    """The exit codes."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    TIMED_OUT = 4
    UNAVAILABLE = 69
    CONFIGURATION = 78
    INTERRUPTED = 130


MEANINGS: Final = {
    Exit.OK: "success",
    Exit.FAILED: "it failed, or failed for some jobs; the job failed or was cancelled; you answered no",
    Exit.USAGE: "the command line is wrong, or the arguments do not fit the task",
    Exit.NOT_FOUND: "the job, queue, task or schedule does not exist",
    Exit.TIMED_OUT: "the job has not ended within --timeout",
    Exit.UNAVAILABLE: "Redis is not available",
    Exit.CONFIGURATION: "the app or its settings are wrong, or Redis refuses them",
    Exit.INTERRUPTED: "interrupted with Ctrl-C",
}
"""For the help text and the reference page."""

_CODES: Final = {
    BrokerUnavailable: Exit.UNAVAILABLE,
    ConfigurationError: Exit.CONFIGURATION,
    UnknownTask: Exit.NOT_FOUND,
    UnknownSchedule: Exit.NOT_FOUND,
    ResultExpired: Exit.NOT_FOUND,
    ResultTimeout: Exit.TIMED_OUT,
    InvalidArguments: Exit.USAGE,
    InvalidJobId: Exit.USAGE,
    PayloadTooLarge: Exit.USAGE,
}


class Problem(FennelqError):
    """An error that the command line itself detects, with its exit code."""

    def __init__(self, sentence: str, code: Exit) -> None:
        self.code = code
        super().__init__(sentence)


class Interrupted(Exception):
    """A person pressed Ctrl-C; the text reports how far the command got."""

    def __init__(self, text: str, *, at_line_start: bool = False) -> None:
        """`at_line_start`: the cursor is at the start of a line. After a terminal has shown `^C`, it is not."""
        super().__init__(text)
        self.at_line_start = at_line_start


class Commands(helps.Group):
    """The commands. An error of fennelq is shown as a sentence and an exit code, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; print its error and exit with the code for it."""
        try:
            return super().invoke(ctx)
        except Interrupted as how_far:
            begin = "\n" if is_terminal(sys.stderr) and not how_far.at_line_start else ""
            with suppress(OSError, ValueError):
                print(f"{begin}{how_far}", file=sys.stderr, flush=True)
            raise typer.Exit(Exit.INTERRUPTED) from None
        except FennelqError as error:
            output.note(f"fennelq: {error}")
            raise typer.Exit(code_of(error)) from None

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """The exit codes."""
        helps.write_rows(
            formatter, "Exit codes", [(str(code.value), text) for code, text in MEANINGS.items()]
        )


def code_of(error: FennelqError) -> Exit:
    """The exit code of an error."""
    if isinstance(error, Problem):
        return error.code
    if isinstance(error, BrokerUnavailable) and not error.retriable:
        return Exit.CONFIGURATION
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), Exit.FAILED)
