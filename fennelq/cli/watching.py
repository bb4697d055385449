"""Shows the queues again and again: a table that a terminal draws anew, tables one after the other in a pipe, lines of
JSON for programs."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from fennelq.cli import output
from fennelq.cli.tables.queues import show_queues
from fennelq.manage.documents import of_snapshot
from fennelq.manage.watch import Snapshot, Watch
from fennelq.streams import is_terminal

if TYPE_CHECKING:
    from fennelq.app import App

_CLEAR: Final = "\x1b[H\x1b[2J"
"""Moves the cursor to the first line and empties the screen."""


async def watch_queues(app: App, *, as_json: bool) -> None:
    """Show every snapshot, until a person presses Ctrl-C."""
    first = True
    async with Watch(app) as watch:
        async for snapshot in watch.follow():
            if as_json:
                print(output.record(of_snapshot(snapshot)), flush=True)
            else:
                _show(snapshot, first=first)
            first = False


def _show(snapshot: Snapshot, *, first: bool) -> None:
    if is_terminal(sys.stdout) and os.environ.get("TERM") != "dumb":
        print(_CLEAR, end="")
    elif not first:
        print()
    show_queues([*snapshot.queues.values()], snapshot.rates)
    sys.stdout.flush()
