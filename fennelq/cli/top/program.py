"""Runs the screen of `fennelq top` on a terminal, and leaves the terminal as it was."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager, suppress
from io import TextIOBase
from typing import TYPE_CHECKING, ClassVar, Final, TextIO, cast

from textual.app import App as Screens
from textual.binding import Binding, BindingType

from fennelq import log
from fennelq.cli.exits import Exit, Interrupted
from fennelq.cli.top.screen import TopScreen

if TYPE_CHECKING:
    from fennelq.app import App

_LINES: Final = 100
"""Lines of the log that are kept, and written when the screen is closed."""
_STOPPING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Top(Screens[int]):
    """The program."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "stop", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False, priority=True),
    ]

    def __init__(self, app: App) -> None:
        super().__init__()
        self._shop = app
        self.failure: Exception | None = None
        """The mistake of this program that has ended it."""

    def get_default_screen(self) -> TopScreen:
        """The screen that everything else comes in front of."""
        return TopScreen(self._shop, self._shop.name)

    def on_mount(self) -> None:
        """Textual starts every task of the loop eagerly. The connection to Redis expects that a task starts later."""
        asyncio.get_running_loop().set_task_factory(None)

    def action_stop(self) -> None:
        """Leave at once."""
        self.exit(Exit.INTERRUPTED)

    def _handle_exception(self, error: Exception) -> None:
        # Textual would print the traceback with the values of all variables: arguments of jobs are among them.
        self.failure = error
        super()._handle_exception(error)

    def _fatal_error(self) -> None:
        self._close_messages_no_wait()


async def shown(app: App) -> None:
    """Show the screen until a person leaves it, or a signal comes."""
    top = Top(app)
    with _held_log(), _stopped_by_signals(top):
        code = await top.run_async()
    if top.failure is not None:
        raise top.failure
    if code == Exit.INTERRUPTED:
        raise Interrupted("Interrupted.", at_line_start=True)


@contextmanager
def _stopped_by_signals(top: Top) -> Generator[None]:
    """After a signal, the terminal is left as it was."""
    loop = asyncio.get_running_loop()
    for one in _STOPPING:
        loop.add_signal_handler(one, top.action_stop)
    try:
        yield
    finally:
        for one in _STOPPING:
            loop.remove_signal_handler(one)


@contextmanager
def _held_log() -> Generator[None]:
    """Lines of the log would be drawn over the screen: they are written when it is closed."""
    held = _Held()
    log.aim(cast("TextIO", held))
    try:
        yield
    finally:
        log.aim(sys.stderr)
        with suppress(OSError, ValueError):
            print(*held.lines, sep="", end="", file=sys.stderr, flush=True)


class _Held(TextIOBase):
    """Keeps the latest lines."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=_LINES)

    def write(self, text: str) -> int:
        self.lines.append(text)
        return len(text)
