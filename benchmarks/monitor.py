"""The scripts that a server runs, one by one: INFO counts them, but cannot say for which queue."""

from __future__ import annotations

import re
import socket
import threading
from types import TracebackType
from typing import NamedTuple, Self

_SCRIPT = re.compile(rb'^\+?(\d+\.\d+) \[\d+ [^\]]*\] "(?i:evalsha|eval)" "[^"]*" "\d+" "([^"]*)"')
"""A line of MONITOR about a script that a client calls: the time, and the first key."""
_BLOCK = 1 << 16


class Call(NamedTuple):
    at: float
    """By the clock of the server's machine, like `time.time()`."""
    key: str
    """The first key: its prefix is that of a queue or of the app."""


class Monitor:
    """A context manager that records every call of a script meanwhile."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._calls: list[Call] = []

    def __enter__(self) -> Self:
        self._socket = socket.create_connection(("127.0.0.1", self._port))
        self._socket.sendall(b"MONITOR\r\n")
        self._thread = threading.Thread(target=self._record, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def calls(self, since: float, until: float, prefix: str = "") -> int:
        """The calls in a span of time, of one queue when its prefix is given."""
        return sum(
            1 for call in list(self._calls) if since <= call.at < until and call.key.startswith(prefix)
        )

    def _record(self) -> None:
        rest = b""
        while block := self._socket.recv(_BLOCK):
            *lines, rest = (rest + block).split(b"\r\n")
            for line in lines:
                if found := _SCRIPT.match(line):
                    self._calls.append(Call(float(found[1]), found[2].decode()))
