"""Asks for confirmation before a command that cannot be undone."""

from __future__ import annotations

import sys

import typer

from fennelq.cli.exits import Exit, Problem


def agree(question: str, *, yes: bool) -> None:
    """Ask, unless `--yes` was given; without a terminal, `--yes` is required."""
    if yes:
        return
    if not on_a_terminal():
        raise Problem(f"{question} Add --yes to do it.", Exit.USAGE)
    confirm(question)


def confirm(question: str) -> None:
    """Ask; any answer but yes ends the command. So does Ctrl-C, with the exit code of an interrupted command."""
    try:
        typer.confirm(question, abort=True, err=True)
    except typer.Abort as refused:
        if isinstance(refused.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise


def on_a_terminal() -> bool:
    """Whether stdin and stderr are a terminal, so that a person can answer a question."""
    return sys.stdin.isatty() and sys.stderr.isatty()
