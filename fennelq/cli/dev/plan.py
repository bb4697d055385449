"""What `fennelq dev` runs, and where."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fennelq import clock
from fennelq.embedded.guardian import GUARDIAN_LOCK, POLL, try_lock
from fennelq.settings.settings import Settings

_GRACE: Final = "1s"
"""How long jobs may continue when the worker imports a changed file. They are handed back then, and start again."""

_SERVER_PATIENCE: Final = 2.0


@dataclass(frozen=True)
class Plan:
    """What is run, and where."""

    app: str | None
    """`module:app`, if the command line names it."""
    folder: Path | None
    """The folder of the app's modules, if the command line names it."""
    root: Path
    """The folder whose source files are watched."""
    listening: socket.socket
    url: str

    @property
    def data(self) -> Path:
        """The folder of the history, and of the embedded server."""
        return self.root / ".fennelq"

    def environment(self) -> dict[str, str]:
        """The environment of the processes: a history in a file, and a log for people, unless the project sets them.
        Raises ConfigurationError when the settings of the project are wrong."""
        found = Settings.load(self.root)
        given = {"PYTHONUNBUFFERED": "1"}
        if found.history_url is None:
            given["FENNELQ_HISTORY_URL"] = f"sqlite://{self.data / 'history.db'}"
        if found.log_format == "auto":
            given["FENNELQ_LOG_FORMAT"] = "console"
        return {**os.environ, **given}

    def make_folder(self) -> None:
        """Make the folder of the data, which git ignores. When it cannot be made, the recorder of the history says
        so."""
        with suppress(OSError):
            self.data.mkdir(mode=0o700, exist_ok=True)
            if not (self.data / ".gitignore").exists():
                (self.data / ".gitignore").write_text("*\n")

    def page(self) -> Sequence[str]:
        """The words after the module of the pages."""
        return [str(self.listening.fileno()), self.app or "", str(self.folder) if self.folder else ""]

    def worker(self) -> Sequence[str]:
        """The words after the module of the worker."""
        app = ["--app", self.app] if self.app else []
        folder = ["--app-dir", str(self.folder)] if self.folder else []
        return ["-p", "1", "--reload", "--grace", _GRACE, *app, *folder]

    def wait_for_server(self) -> None:
        """Wait for the end of the embedded server of this project. It goes on if another program uses it, so this does
        not wait for long."""
        end = clock.monotonic() + _SERVER_PATIENCE
        while self._server_runs() and clock.monotonic() < end:
            time.sleep(POLL)

    def _server_runs(self) -> bool:
        if not (self.data / GUARDIAN_LOCK).exists():
            return False
        try:
            lock = try_lock(self.data / GUARDIAN_LOCK)
        except OSError:
            return False
        if lock is not None:
            os.close(lock)
        return lock is None
