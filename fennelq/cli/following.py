"""Shows the progress of a job while a command waits for its end: a bar on a terminal, otherwise a line for each report.
Both go to stderr, so that a pipe gets the result only. With `--json`, the lines are JSON and go to stdout."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from fennelq.cli import output
from fennelq.cli.ending import ended
from fennelq.cli.exits import Interrupted
from fennelq.cli.tables.table import GAP, shortened, width
from fennelq.errors import FennelqError
from fennelq.manage.documents import Document, counts_of, of_progress, words_of
from fennelq.model.progress import Progress
from fennelq.streams import clean, is_terminal

if TYPE_CHECKING:
    from fennelq.app import App

LAST_REPORT: Final = 5.0
"""Seconds after the end of the job for its last report to arrive."""
_LONGEST_BAR, _SHORTEST_BAR = 40, 10
_SHORTEST_NOTE: Final = 8


class Display(Protocol):
    """Where progress is shown."""

    def show(self, progress: Progress) -> None:
        """Show this progress."""
        ...

    def close(self) -> bool:
        """End the display; returns whether the cursor is at the start of a line now because of that."""
        ...


def display(job: str, *, as_json: bool) -> Display:
    """The display for this terminal or pipe."""
    if as_json:
        return _Records(job)
    if is_terminal(sys.stderr) and os.environ.get("TERM") != "dumb":
        return _Bar()
    return _Lines()


async def followed(app: App, job: str, timeout: float | None, display: Display) -> Document:
    """Wait for the end of a job, and show its progress in the meantime. Raises as `ended`."""
    showing = asyncio.ensure_future(show_progress(app, job, display))
    try:
        end = await ended(app, job, timeout)
        await asyncio.wait([showing], timeout=LAST_REPORT)
    except Interrupted as how_far:
        raise Interrupted(str(how_far), at_line_start=display.close()) from None
    finally:
        showing.cancel()
        display.close()
    return end


async def show_progress(app: App, job: str, display: Display) -> None:
    """Show the progress of a job until it ends. It ignores a FennelqError: the wait for the end raises it too."""
    with suppress(FennelqError):
        async for progress in app.result(job).watch():
            display.show(progress)


class _Lines:
    def show(self, progress: Progress) -> None:
        output.note(words_of(progress))

    def close(self) -> bool:
        return False


class _Records:
    def __init__(self, job: str) -> None:
        self._job = job

    def show(self, progress: Progress) -> None:
        print(output.record({"id": self._job, "progress": of_progress(progress)}), flush=True)

    def close(self) -> bool:
        return False


class _Bar:
    _drawn = False

    def show(self, progress: Progress) -> None:
        self._drawn = True
        self._write(f"\r{drawn(progress, shutil.get_terminal_size().columns)}\x1b[K")

    def close(self) -> bool:
        if not self._drawn:
            return False
        self._drawn = False
        self._write("\n")
        return True

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            print(text, end="", file=sys.stderr, flush=True)


def drawn(progress: Progress, columns: int) -> str:
    """A bar, the numbers and the note, in one line of a terminal with so many columns."""
    room = columns - 1  # a text in the last column would move the cursor to the next line
    line = counts_of(progress)
    if (fraction := progress.fraction) is not None:
        wide = max(_SHORTEST_BAR, min(_LONGEST_BAR, room // 3))
        full = int(wide * fraction)
        line = f"[{'#' * full}{'-' * (wide - full)}] {int(fraction * 100):3} %{GAP}{line}"
    left = room - width(line) - len(GAP)
    if progress.note and left >= _SHORTEST_NOTE:
        line += GAP + shortened(clean(progress.note), left)
    return shortened(line, room)
