"""Runs a function in a child of this process, and reads what it has returned."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Child:
    """A child that runs `act`. What `act` returns must be JSON."""

    def __init__(self, act: Callable[[], Any], *, patience: float) -> None:
        descriptor, name = tempfile.mkstemp(prefix="mutation-")
        os.close(descriptor)
        self._answer = Path(name)
        self._deadline = time.monotonic() + patience
        self._pid = os.fork()
        if self._pid == 0:
            self._run(act, math.ceil(patience))

    def _run(self, act: Callable[[], Any], seconds: int) -> None:
        try:
            # A mutant that loops must not do so for ever when this process has been killed.
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            _redirect(os.environ.get("MUTATION_OUTPUT", os.devnull))
            self._answer.write_text(json.dumps(act()))
        finally:
            os._exit(0)

    def finished(self) -> bool:
        """Whether it has ended; it is ended when it has taken too long."""
        if os.waitpid(self._pid, os.WNOHANG)[0]:
            return True
        if time.monotonic() < self._deadline:
            return False
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        return True

    def answer(self) -> Any:
        """What `act` has returned; None when it has raised, or has not returned in time."""
        text = self._answer.read_text()
        self._answer.unlink()
        return json.loads(text) if text else None

    def wait(self) -> Any:
        while not self.finished():
            time.sleep(0.01)
        return self.answer()


def _redirect(path: str) -> None:
    output = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    for stream in (0, 1, 2):
        os.dup2(output, stream)
