"""The executor's side of one cell."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from fennelq import clock, log
from fennelq.worker.cells import forwarding
from fennelq.worker.cells.frames import CHUNK, CLOSED, LEAVING, PROGRESS, Damaged, Frame, Reader

_logger = log.get("fennelq.worker")
_TO_REPORT: Final = 0.2
"""Seconds between the end of a connection and the report that its cell has ended."""
_TO_DIE: Final = 1.0
"""Seconds for the kernel to end a killed process."""
_CLOSED_IT: Final = "closed its connection to the executor"
_LOGGED: Final = (forwarding.RECORD, forwarding.LINE)
_REPORTS: Final = (LEAVING, PROGRESS)


class CellDied(Exception):
    """The process that ran a job has ended; the text is how."""


class Cell:
    """A process that runs one job at a time."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.pid = pid
        self.gone = asyncio.Event()
        """The process has ended."""
        self.idle_since = 0.0
        self._loop = asyncio.get_running_loop()
        self._socket, self._reader = connection, Reader()
        self._number = connection.fileno()
        self._answer: asyncio.Future[Frame] | None = None
        self._hear: Callable[[Frame], None] | None = None
        self._context = contextvars.copy_context()
        self._fate = ""
        self._open = self._usable = True
        self._loop.add_reader(self._number, self._receive)

    @property
    def is_usable(self) -> bool:
        """Whether it can run another job."""
        return self._usable

    def answers(self) -> bool:
        """Whether it can run a job now. An idle cell may have died a moment ago, and that must not cost a job its
        try."""
        return self._usable and self._is_connected()

    async def call(self, frame: bytes, hear: Callable[[Frame], None]) -> Frame:
        """Send a job and wait for its end. `hear` is called with what it reports before. Raises CellDied. When it is
        cancelled, it kills the cell, and waits for its end: the next try of the job does not begin before."""
        self._answer, self._context = self._loop.create_future(), contextvars.copy_context()
        self._hear = hear
        try:
            await self._send(frame)
            return await self._answer
        except asyncio.CancelledError:
            self.kill()
            await self.ended()
            raise
        finally:
            self._answer = self._hear = None

    def rest(self) -> None:
        """It has no job from now on."""
        self.idle_since = clock.monotonic()

    def kill(self, why: str = "") -> None:
        """Kill the process, and those that its task has started."""
        self._usable = False
        self._fate = self._fate or why
        if not self.gone.is_set():
            for kill in (os.killpg, os.kill):  # the second one before it has a group of its own
                with suppress(OSError):
                    kill(self.pid, signal.SIGKILL)

    def retire(self) -> None:
        """Ask an idle cell to end, by closing its connection."""
        self._usable = False
        self._close()

    async def ended(self, within: float = _TO_DIE) -> bool:
        """Wait for the end of the process; False when it takes too long."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.gone.wait(), within)
        return self.gone.is_set()

    def note_end(self, code: int | None) -> None:
        """The process has ended, with this exit code if that is known."""
        self._usable = False
        self._drain()
        self._close()
        self.gone.set()
        self._fail(self._fate or ended_with(code))

    async def _send(self, frame: bytes) -> None:
        try:
            sent = self._send_now(frame)
            if sent < len(frame):
                await self._loop.sock_sendall(self._socket, memoryview(frame)[sent:])
        except OSError:
            pass  # it has died: its end is reported

    def _send_now(self, frame: bytes) -> int:
        try:
            return self._socket.send(frame)
        except BlockingIOError:
            return 0

    def _receive(self) -> None:
        try:
            data = self._socket.recv(CHUNK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if data:
            self._read(data)
        else:
            self._at_end()

    def _read(self, data: bytes) -> None:
        try:
            for frame in self._reader.feed(data):
                self._take(frame)
        except Damaged as error:
            self._close()
            self.kill(f"was killed, because {error}")

    def _take(self, frame: Frame) -> None:
        kind = frame.head.get("kind")
        if kind in _LOGGED:
            self._context.run(forwarding.handle, frame)
        elif kind in _REPORTS:
            if self._hear is not None:
                self._hear(frame)
        elif self._answer is not None and not self._answer.done():
            self._answer.set_result(frame)

    def _at_end(self) -> None:
        """The connection is closed. In general the process has ended, and its end is about to be reported."""
        self._usable = False
        self._close()
        self._loop.call_later(_TO_REPORT, self._end_silent)

    def _end_silent(self) -> None:
        if not self.gone.is_set():
            self.kill(_CLOSED_IT)
            self._loop.call_later(_TO_DIE, self._give_up)

    def _give_up(self) -> None:
        if not self.gone.is_set():
            _logger.error("cell_goes_on", pid=self.pid, why="it was killed, and its end is not reported")
            self.note_end(None)

    def _is_connected(self) -> bool:
        try:
            return self._socket.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def _drain(self) -> None:
        """Read what the process has sent before its end."""
        while self._open:
            try:
                data = self._socket.recv(CHUNK)
            except OSError:
                return
            if not data:
                return
            self._read(data)

    def _fail(self, how: str) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(CellDied(how))

    def _close(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._number)
            self._socket.close()


def ended_with(code: int | None) -> str:
    """An exit code in words."""
    if code is None:
        return "has ended"
    if code == CLOSED:
        return _CLOSED_IT
    if code >= 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"
