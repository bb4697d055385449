"""The worker under test: a process tree of its own, started from a command line like a user's."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.cpu import tree_seconds

_STOP_SECONDS = 20.0


class Worker:
    """A context manager around the worker's processes."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], directory: Path, log: Path
    ) -> None:
        self._command = list(command)
        self._environment = {**os.environ, **environment}
        self._directory = directory
        self._log = log

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd=self._directory,
                start_new_session=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def cpu_seconds(self) -> float:
        return tree_seconds(self._process.pid)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def last_words(self) -> str:
        return self._log.read_text(errors="replace")[-2000:].strip()

    def stop(self) -> None:
        """Ask politely, then end the whole session the worker was started in."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
