"""Asks for confirmation before a command that cannot be undone."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Final

import typer

from fennelq.cli import output
from fennelq.cli.exits import Exit, Problem

_ANSWERS: Final = {"y": True, "yes": True, "n": False, "no": False, "": False}


def agree(question: str, *, yes: bool) -> None:
    """Ask, unless `--yes` was given; without a terminal, `--yes` is required."""
    if yes:
        return
    if not on_a_terminal():
        raise Problem(f"{question} Add --yes to do it.", Exit.USAGE)
    confirm(question)


def confirm(question: str) -> None:
    """Ask; any answer but yes ends the command. So does Ctrl-C, with the exit code of an interrupted command."""
    while (answer := _ANSWERS.get(_line(f"{question} [y/N]: ").strip().lower())) is None:
        output.note("write y or n")
    if not answer:
        raise typer.Abort


def on_a_terminal() -> bool:
    """Whether stdin and stderr are a terminal, so that a person can answer a question."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _line(question: str) -> str:
    """The line that a person types.

    A signal that comes just before `input` begins to read would be noticed only after the next line: Ctrl-C would be
    lost. So this waits for the line or for a signal, and only then reads.
    """
    print(question, end="", file=sys.stderr, flush=True)
    with suppress(ValueError, OSError), _signals() as signals:  # not in every thread, and not for every stdin
        select.select([sys.stdin, signals], [], [])
    try:
        return input()
    except EOFError:
        raise typer.Abort from None


@contextmanager
def _signals() -> Generator[int]:
    """A file descriptor that can be read as soon as a signal has come."""
    reader, writer = os.pipe()
    try:
        os.set_blocking(writer, False)
        before = signal.set_wakeup_fd(writer)
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(before)
    finally:
        os.close(reader)
        os.close(writer)
