"""`fennelq top`: watches queues, running jobs and dead jobs on a terminal, and acts on them."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from fennelq.cli.exits import Exit, Problem
from fennelq.cli.session import Session
from fennelq.streams import is_terminal

if TYPE_CHECKING:
    from fennelq.app import App


def show(
    session: Session,
    once: Annotated[
        bool, typer.Option("--once", help="Print one snapshot as plain tables, and end. Needs no extra.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print JSON: a line per look, until Ctrl-C; with --once, one. Needs no extra."
        ),
    ] = False,
) -> None:
    """Watch queues, running jobs and dead jobs, and act on them: pause, resume, cancel, replay.

    The first line shows what needs attention most. The command looks at Redis at most once a second. Press ? for the
    keys.
    """
    if as_json:
        from fennelq.cli.top.once import written

        session.run(lambda app: written(app, once=once))
    elif once:
        from fennelq.cli.top.once import printed

        session.run(printed)
    else:
        session.run(_screen())


def _screen() -> Callable[[App], Awaitable[None]]:
    """The function that shows the screen. Raises a Problem where it cannot be shown."""
    if find_spec("textual") is None:
        raise Problem(
            "the screen of `fennelq top` needs Textual: install it with `pip install 'fennelq[top]'`. "
            "`fennelq top --once` and `fennelq top --json` work without it",
            Exit.CONFIGURATION,
        )
    if not (is_terminal(sys.stdin) and is_terminal(sys.stdout)) or os.environ.get("TERM") == "dumb":
        raise Problem(
            "`fennelq top` needs a terminal: add --once for plain tables, or --json for programs", Exit.USAGE
        )
    from fennelq.cli.top.program import shown

    return shown
