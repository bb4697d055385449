"""The server of a test session: an embedded one in a temporary directory, started when a test needs it first."""

from __future__ import annotations

import atexit
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fennelq import clock, embedded
from fennelq.embedded.guardian import GUARDIAN_LOCK, POLL, try_lock

if TYPE_CHECKING:
    from fennelq.embedded import EmbeddedServer

_ENDS_WITHIN = 2.0
_lock = threading.Lock()
_running: SessionServer | None = None


class SessionServer:
    """A server that only this process and its children use. It listens on a socket in a directory of its own, so that
    the servers of several test processes never meet."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._directory = tempfile.TemporaryDirectory(prefix="fennelq-", ignore_cleanup_errors=True)
        self._server: EmbeddedServer = embedded.start(Path(self._directory.name))

    def __repr__(self) -> str:
        return f"<SessionServer {self.url}>"

    @property
    def url(self) -> str:
        """Its URL, for `App(redis_url=…)`, `FENNELQ_REDIS_URL`, or a client."""
        return self._server.url

    def close(self) -> None:
        """Stop the server, and remove its directory. A second call does nothing."""
        self._server.close()
        if self.pid == os.getpid():  # a forked child must not remove the directory of its parent
            self._wait_for_end()
            self._directory.cleanup()

    def _wait_for_end(self) -> None:
        """A server that is stopping still writes into its directory. Its guardian holds this lock until then."""
        deadline = clock.monotonic() + _ENDS_WITHIN
        while (lock := try_lock(self._server.directory / GUARDIAN_LOCK)) is None:
            if clock.monotonic() > deadline:
                return
            time.sleep(POLL)
        os.close(lock)


def session_server() -> SessionServer:
    """The server of this process, which runs until the process ends or `close_session_server` is called."""
    global _running
    with _lock:
        if _running is None:
            _running = SessionServer()
            atexit.register(close_session_server)
        return _running


def close_session_server() -> None:
    """Stop the server of this process. The next test that needs one gets a new server."""
    global _running
    with _lock:
        server, _running = _running, None
    if server is not None:
        atexit.unregister(close_session_server)
        server.close()
