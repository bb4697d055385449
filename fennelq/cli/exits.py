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
    HistoryUnavailable,
    ImportRefused,
    InvalidArguments,
    InvalidFilter,
    InvalidJobId,
    PayloadTooLarge,
    QueueFull,
    QueuePaused,
    ReplayRefused,
    ResultExpired,
    ResultTimeout,
    UnknownExecutor,
    UnknownLimit,
    UnknownOperation,
    UnknownQueue,
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
    Exit.FAILED: "the command failed, at least for some jobs; the job failed or was cancelled; you answered no",
    Exit.USAGE: "the command line is wrong, or the arguments do not fit the task",
    Exit.NOT_FOUND: "the job, queue, task, schedule, limit, executor or operation does not exist",
    Exit.TIMED_OUT: "the job has not ended within --timeout",
    Exit.UNAVAILABLE: "Redis, or the database of the history, is not available",
    Exit.CONFIGURATION: "the app or its settings are wrong, or Redis refuses them",
    Exit.INTERRUPTED: "interrupted with Ctrl-C",
}
"""For the help text and the reference page."""

_CODES: Final = {
    BrokerUnavailable: Exit.UNAVAILABLE,
    HistoryUnavailable: Exit.UNAVAILABLE,
    ConfigurationError: Exit.CONFIGURATION,
    UnknownTask: Exit.NOT_FOUND,
    UnknownQueue: Exit.NOT_FOUND,
    UnknownExecutor: Exit.NOT_FOUND,
    UnknownLimit: Exit.NOT_FOUND,
    UnknownOperation: Exit.NOT_FOUND,
    UnknownSchedule: Exit.NOT_FOUND,
    ResultExpired: Exit.NOT_FOUND,
    ResultTimeout: Exit.TIMED_OUT,
    InvalidArguments: Exit.USAGE,
    InvalidFilter: Exit.USAGE,
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
            output.note(f"fennelq: {_in_shell(error)}")
            raise typer.Exit(code_of(error)) from None

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """The exit codes."""
        helps.write_rows(
            formatter, "Exit codes", [(str(code.value), text) for code, text in MEANINGS.items()]
        )


def _in_shell(error: FennelqError) -> str:
    """The sentence of an error for people at a shell. Some errors advise a call in code: here the sentence names the
    command to type instead."""
    if isinstance(error, QueuePaused):
        return (
            f"queue {error.queue!r} takes no jobs: enqueuing is paused{error.pause.origin}. "
            f"Run the command again after `fennelq queue resume {error.queue}`"
        )
    if isinstance(error, QueueFull):
        return (
            f"queue {error.queue!r} is full: {error.waiting} jobs wait, and max_waiting is {error.max_waiting}. Run "
            "the command again when the workers have caught up, start more workers, or, if the queue is paused, resume "
            f"it (`fennelq queue resume {error.queue}`)"
        )
    if isinstance(error, ReplayRefused | ImportRefused):
        return (
            str(error)
            .replace("pass continue_=True", "add --continue")
            .replace("with secrets", "with --with-secrets")
        )
    return str(error)


def code_of(error: FennelqError) -> Exit:
    """The exit code of an error."""
    if isinstance(error, Problem):
        return error.code
    if isinstance(error, ReplayRefused):
        return code_of(error.error)
    if isinstance(error, ImportRefused):
        return max(code_of(problem) for _, problem in error.problems)
    if isinstance(error, BrokerUnavailable) and not error.retriable:
        return Exit.CONFIGURATION
    if isinstance(error, UnknownExecutor) and error.matching:
        return Exit.USAGE
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), Exit.FAILED)
