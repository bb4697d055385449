"""For commands that take long: a bar on a terminal, and Ctrl-C, which ends them between two steps and reports how far
they got."""

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
"""Seconds that the current step may still take after Ctrl-C."""


class Steps:
    """Counts finished items, and ends the work between two steps after Ctrl-C.

    A step is one call to Redis for up to a hundred jobs. After a cancellation in the middle of a step, it would be
    unknown whether Redis has executed the call. So the work ends after the step, and is cancelled only if the step
    takes too long.
    """

    def __init__(
        self,
        total: int,
        what: str = "job",
        advice: str = "run it again to go on",
        show: Callable[[int], None] | None = None,
        done: int = 0,
    ) -> None:
        """`show` is called with the number of items that were finished since its last call. `done` were finished
        before."""
        self._total, self._what, self._advice, self._show = total, what, advice, show
        self._done = done
        self._interrupted = False
        self.stopped_short = False
        """Whether the work has ended before all items were finished."""

    def __call__(self, done: int) -> None:
        """Report how many items are finished; raises Interrupted after Ctrl-C, unless all are finished."""
        if self._show:
            self._show(done - self._done)
        self._done = done
        if self._interrupted and done < self._total:
            raise self._how_far()

    def shown_by(self, show: Callable[[int], None]) -> Steps:
        """New steps for the same work, which report their progress to `show`."""
        return Steps(self._total, self._what, self._advice, show, self._done)

    def stop_short(self) -> None:
        """Record that the work has ended before all items were finished: a bar stays where it is."""
        self.stopped_short = True

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the work and return its result; raises Interrupted after Ctrl-C."""
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
    """The same steps, with a bar on a terminal.

    At the end of the work the bar is full, also if some items were gone: otherwise it would look as if work was left.
    """
    if quiet or not total or not is_terminal(sys.stderr) or os.environ.get("TERM") == "dumb":
        yield steps
        return
    with typer.progressbar(length=total, label=title, file=sys.stderr) as bar:
        shown = steps.shown_by(bar.update)
        try:
            yield shown
            if not shown.stopped_short:
                bar.update(max(0, total - bar.pos))
        except Interrupted as how_far:
            raise Interrupted(str(how_far), at_line_start=True) from None  # the bar ends its line


@contextmanager
def _on_interrupt(handler: Callable[[asyncio.Task[Any]], None], task: asyncio.Task[Any]) -> Generator[None]:
    loop = asyncio.get_running_loop()
    # Outside the main thread and on some platforms, a signal handler cannot be set. There Ctrl-C ends the command as
    # usual.
    with suppress(ValueError, RuntimeError, NotImplementedError):
        loop.add_signal_handler(signal.SIGINT, handler, task)
    try:
        yield
    finally:
        with suppress(ValueError, RuntimeError, NotImplementedError):
            loop.remove_signal_handler(signal.SIGINT)
