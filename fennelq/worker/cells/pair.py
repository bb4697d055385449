"""A cell's end of the connection to its executor."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

from fennelq.worker.cells.frames import CHUNK, Frame, Reader, packed

_HANDLED: Final = (
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGPROF,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGHUP,
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGCHLD,
)
"""The signals for which programs have handlers. Not all signals: Python makes an object of each at every call, and that
would double the time of a job."""


class Pair:
    """Sends and receives frames; blocks. Any thread of the cell may send.

    The code of a task may close the descriptor, and open a connection of its own that gets its number. So each frame is
    preceded by a look whether the number is still that of this connection.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._process = connection, os.getpid()
        self._number = connection.fileno()
        self._identity = _identity(self._number)
        self._lock = threading.RLock()
        self._sending = False
        self._waiting: deque[bytes] = deque()

    @property
    def is_here(self) -> bool:
        """Whether this process may use the connection: not one that a task has forked, nor after the task has closed
        it."""
        return os.getpid() == self._process and _identity(self._number) == self._identity

    def frames(self) -> Iterator[Frame]:
        """The frames of the executor, until it closes the connection, or the task has closed it."""
        reader = Reader()
        while data := self._received():
            yield from reader.feed(data)

    def _received(self) -> bytes:
        try:
            return self._socket.recv(CHUNK) if self.is_here else b""
        except OSError:
            return b""

    def send(self, head: Mapping[str, Any], body: bytes = b"") -> bool:
        """Send a frame, after those that wait; False when the connection is not here any more, or the executor is
        gone."""
        frame = packed(head, body)
        # A signal handler that raises, such as one for a time limit, would cut a frame in the middle. The mask is read
        # first: the call that changes it runs the handlers of pending signals, and may raise although it has changed.
        usual = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
            with self._lock:
                self._waiting.append(frame)
                # A handler that logs while a frame is sent leaves its own frame to the call that sends.
                return self._sending or self._send_waiting()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, usual)

    def _send_waiting(self) -> bool:
        try:
            self._sending = True
            while self._waiting:
                if not self.is_here:
                    return False
                self._socket.sendall(self._waiting.popleft())
        except OSError:
            return False
        finally:
            self._sending = False
        return True


def _identity(descriptor: int) -> tuple[int, int] | None:
    """What a descriptor stands for; None when it is closed."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino
