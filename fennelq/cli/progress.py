"""Long work: a bar on a terminal, and Ctrl-C that says how far it got."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

import typer

from fennelq.cli.exits import Interrupted
from fennelq.cli.output import counted
from fennelq.streams import is_terminal

T = TypeVar("T")

_PATIENCE: Final = 1.0
"""Seconds that the page which is being worked on may take to end after Ctrl-C."""


class Steps:
    """Counts what is done, and ends the work between two steps when a person presses Ctrl-C.

    A step is one call to Redis for up to a hundred jobs. Cancelled in the middle of one, nobody would know whether
    Redis has done it: so the work ends after the step, and only if that takes too long is it cancelled.
    """

    def __init__(self, total: int, what: str = "job", advice: str = "run it again to go on") -> None:
        self._total, self._what, self._advice = total, what, advice
        self._done = 0
        self._interrupted = False
        self.show: Callable[[int], None] | None = None
        """Is called with how many more are done."""

    def __call__(self, done: int) -> None:
        """So many are done by now; raises Interrupted when that is enough."""
        if self.show:
            self.show(done - self._done)
        self._done = done
        if self._interrupted and done < self._total:
            raise self._how_far()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What the work returns; raises Interrupted after Ctrl-C."""
        task = asyncio.create_task(work)
        with _on_interrupt(self._interrupt, task):
            try:
                return await task
            except asyncio.CancelledError:
                if self._interrupted:
                    raise self._how_far("at least ") from None
                raise

    def _interrupt(self, task: asyncio.Task[Any]) -> None:
        if self._interrupted:
            task.cancel()
        self._interrupted = True
        asyncio.get_running_loop().call_later(_PATIENCE, task.cancel)

    def _how_far(self, about: str = "") -> Interrupted:
        done = f"{self._done:,} of {counted(self._total, self._what)}"
        return Interrupted(f"Interrupted after {about}{done}; {self._advice}.")


@contextmanager
def progress(title: str, steps: Steps, total: int, *, quiet: bool = False) -> Generator[Steps]:
    """The same steps, with a bar on a terminal."""
    if quiet or not total or not is_terminal(sys.stderr) or os.environ.get("TERM") == "dumb":
        yield steps
        return
    with typer.progressbar(length=total, label=title, file=sys.stderr) as bar:
        steps.show = bar.update
        try:
            yield steps
        except Interrupted as how_far:
            how_far.at_line_start = True  # the bar ends its line
            raise


@contextmanager
def _on_interrupt(handler: Callable[[asyncio.Task[Any]], None], task: asyncio.Task[Any]) -> Generator[None]:
    loop = asyncio.get_running_loop()
    # Where signals cannot be handled (not the main thread, another platform) Ctrl-C ends the command as usual.
    with suppress(ValueError, RuntimeError, NotImplementedError):
        loop.add_signal_handler(signal.SIGINT, handler, task)
    try:
        yield
    finally:
        with suppress(ValueError, RuntimeError, NotImplementedError):
            loop.remove_signal_handler(signal.SIGINT)
