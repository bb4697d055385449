"""Runs a function in a child of this process, and reads what it has returned."""

from __future__ import annotations

import json
import os
import resource
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.kit.guardian import guardian

CPU_SECONDS: Final = 900
"""A mutant that loops must not do so for ever when this process has been killed."""

_notes: Path | None = None


def note(text: str, patience: float) -> None:
    """In a child: what it does now, and how many seconds that may take."""
    if _notes is not None:
        _write_note(_notes, text, patience)


def _write_note(file: Path, text: str, patience: float) -> None:
    new = file.with_suffix(".new")
    new.write_text(f"{time.time() + patience} {text}")
    new.rename(file)


class Child:
    """A child that runs `act`. What `act` returns must be JSON. It may take `patience` seconds, or what it notes."""

    def __init__(self, act: Callable[[], Any], *, patience: float) -> None:
        self._answer, self._notes = _temporary_file(), _temporary_file()
        _write_note(self._notes, "", patience)
        self._pid = os.fork()
        if self._pid == 0:
            self._run(act)

    def _run(self, act: Callable[[], Any]) -> None:
        global _notes
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
            _redirect(os.environ.get("MUTATION_OUTPUT", os.devnull))
            # What this child starts ends with it, not with its parent.
            guardian.cache_clear()
            _notes = self._notes
            self._answer.write_text(json.dumps(act()))
        finally:
            os._exit(0)

    def finished(self) -> bool:
        """Whether it has ended; it is ended when it has taken too long."""
        if os.waitpid(self._pid, os.WNOHANG)[0]:
            return True
        if time.time() < float(self._notes.read_text().partition(" ")[0]):
            return False
        self._end()
        return True

    def abandon(self) -> None:
        """End it, whatever it would have returned."""
        self._end()
        self.answer()

    def _end(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def answer(self) -> Any:
        """What `act` has returned; when it has raised, or has not returned in time, the latest note as a text."""
        text, noted = self._answer.read_text(), self._notes.read_text().partition(" ")[2]
        self._answer.unlink()
        self._notes.unlink()
        return json.loads(text) if text else noted

    def wait(self) -> Any:
        while not self.finished():
            time.sleep(0.01)
        return self.answer()


def _temporary_file() -> Path:
    descriptor, name = tempfile.mkstemp(prefix="mutation-")
    os.close(descriptor)
    return Path(name)


def _redirect(path: str) -> None:
    output = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    for stream in (0, 1, 2):
        os.dup2(output, stream)
