"""A terminal for commands, with a person before it who reads and types."""

from __future__ import annotations

import codecs
import os
import pty
import select
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tests.kit.forker import can_start, forker
from tests.kit.spawn import PROJECT

SILENCE = 60.0
"""Seconds without a word after which a command hangs. On a busy machine, its start alone may take many seconds."""


class Terminal:
    """A command on a terminal."""

    def __init__(self, *words: str, folder: Path, columns: int = 100, **environment: str) -> None:
        size = {"COLUMNS": str(columns), "LINES": "40"}
        variables = {**os.environ, "PYTHONPATH": str(PROJECT), **size, **environment}
        start = _copied if can_start("fennelq", variables, folder) else _executed
        self.pid, self._screen = start(words, folder, variables)
        self.text = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def shows(self, text: str, within: float = SILENCE) -> None:
        """Returns once this is on the screen."""
        until = time.monotonic() + within
        while text not in self.text:
            assert time.monotonic() < until, f"{text!r} did not appear: {self.text!r}"
            assert self._read(), f"ended without {text!r}: {self.text!r}"

    def type(self, text: str) -> None:
        """What a person types."""
        os.write(self._screen, text.encode())

    def code(self) -> int:
        """How it ended, with everything on the screen read."""
        while self._read():
            pass
        os.close(self._screen)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def lines(self) -> list[str]:
        """Everything on the screen, once the command has ended."""
        self.code()
        return self.text.replace("\r\n", "\n").splitlines()

    def _read(self) -> bool:
        if not select.select([self._screen], [], [], SILENCE)[0]:
            os.kill(self.pid, signal.SIGKILL)
            return False
        try:
            news = os.read(self._screen, 4096)
        except OSError:  # the error of Linux when the child has closed its side
            return False
        self.text += self._decoder.decode(news)
        return bool(news)


def _copied(words: tuple[str, ...], folder: Path, environment: Mapping[str, str]) -> tuple[int, int]:
    """The pid and the screen of a command in a copy of the forker."""
    screen, theirs = pty.openpty()
    try:
        streams = (theirs, theirs, theirs)
        child = forker().start(
            "fennelq", *words, streams=streams, environment=environment, folder=folder, terminal=True
        )
    finally:
        os.close(theirs)
    return child.pid, screen


def _executed(words: tuple[str, ...], folder: Path, environment: Mapping[str, str]) -> tuple[int, int]:
    """The same in a new interpreter."""
    pid, screen = pty.fork()
    if pid == 0:  # pragma: no cover - the child becomes another program
        # A suite that runs in the background ignores Ctrl-C, and so would its children.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.chdir(folder)
        os.execve(sys.executable, [sys.executable, "-m", "fennelq", *words], {**environment})
    return pid, screen
