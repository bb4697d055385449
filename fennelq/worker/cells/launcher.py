"""The executor's side of the process that forks cells: starts it, and asks it for cells."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections import deque
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple

import orjson

from fennelq import clock, log
from fennelq.worker.cells.cell import Cell
from fennelq.worker.cells.frames import CHUNK
from fennelq.worker.cells.preload import REDIS_URL, Preload

_logger = log.get("fennelq.worker")
_PAUSE: Final = 5.0
"""Seconds after an import of the app that has failed, until the next one."""
_REQUEST: Final = b"f"


class NoCell(Exception):
    """No cell can be made now; the text is the reason. It is not the job's fault."""


class _Birth(NamedTuple):
    """A cell that was asked for."""

    connection: socket.socket
    cell: asyncio.Future[Cell]


class Launcher:
    """Starts the forkserver when a cell is needed, and again after its end."""

    def __init__(self, preload: Preload, redis_url: str | None) -> None:
        self._preload, self._redis_url = preload, redis_url
        self.cells: dict[int, Cell] = {}
        """The living cells by their process ids."""
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._loaded: asyncio.Future[None] | None = None
        self._lines = b""
        self._births: deque[_Birth] = deque()
        self._next_start, self._why = 0.0, ""

    async def ready(self) -> None:
        """Wait until the app is imported there. Raises NoCell."""
        if self._loaded is None:
            self._start()
        assert self._loaded is not None
        await asyncio.shield(self._loaded)

    async def fork(self) -> Cell:
        """A new cell. Raises NoCell."""
        await self.ready()
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise NoCell(f"no connection to a new process: {error.strerror or error}") from None
        ours.setblocking(False)
        birth = _Birth(ours, asyncio.get_running_loop().create_future())
        try:
            self._ask(theirs)
        except OSError as error:
            ours.close()
            raise NoCell(f"the forkserver takes no request: {error.strerror or error}") from None
        finally:
            theirs.close()
        self._births.append(birth)
        try:
            return await birth.cell
        except asyncio.CancelledError:
            if birth.cell.done() and not birth.cell.cancelled():  # it was born just before
                _retire(birth.cell)
            raise

    def close(self) -> None:
        """End the forkserver, and with it the cells that are left."""
        for cell in list(self.cells.values()):
            cell.kill()
        self._end("it was closed")

    # Its start

    def _start(self) -> None:
        if clock.monotonic() < self._next_start:
            raise NoCell(self._why)
        ours, theirs = self._pair()
        try:
            ours.setblocking(False)
            preload = replace(self._preload, control=theirs.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fennelq.worker.cells.forkserver", preload.to_text()],
                stdin=subprocess.DEVNULL,
                env=self._environment(),
                pass_fds=[theirs.fileno()],
            )
        except (OSError, subprocess.SubprocessError) as error:
            ours.close()
            raise self._refusal(f"the forkserver cannot be started: {error}") from None
        finally:
            theirs.close()
        loop = asyncio.get_running_loop()
        self._control, self._lines, self._loaded = ours, b"", loop.create_future()
        loop.add_reader(ours.fileno(), self._receive)

    def _environment(self) -> dict[str, str] | None:
        if self._preload.app or self._redis_url is None:
            return None
        return {**os.environ, REDIS_URL: self._redis_url}

    def _pair(self) -> tuple[socket.socket, socket.socket]:
        try:
            return socket.socketpair()
        except OSError as error:
            raise self._refusal(f"the forkserver cannot be started: {error.strerror or error}") from None

    def _refusal(self, why: str) -> NoCell:
        self._why = why
        _logger.error("cells_not_started", why=why)
        return NoCell(why)

    def _ask(self, theirs: socket.socket) -> None:
        if self._control is None:
            raise OSError("it has ended")
        socket.send_fds(self._control, [_REQUEST], [theirs.fileno()])

    # Its reports

    def _receive(self) -> None:
        if self._control is None:
            return
        try:
            data = self._control.recv(CHUNK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._end("it has ended")
            return
        *lines, self._lines = (self._lines + data).split(b"\n")
        for line in lines:
            self._take(orjson.loads(line))

    def _take(self, facts: dict[str, Any]) -> None:
        if "pid" in facts:
            self._born(facts["pid"])
        elif "gone" in facts:
            if (cell := self.cells.pop(facts["gone"], None)) is not None:
                cell.note_end(facts["code"])
        elif "refused" in facts:
            connection, cell_to_be = self._births.popleft()
            connection.close()
            _fail(cell_to_be, NoCell(facts["refused"]))
        elif "failed" in facts:
            _logger.error("cells_not_started", why=facts["failed"], traceback=facts["traceback"])
            self._end(f"the app cannot be imported for cells: {facts['failed']}")
        elif self._loaded is not None and not self._loaded.done():
            self._loaded.set_result(None)

    def _born(self, pid: int) -> None:
        birth = self._births.popleft()
        cell = self.cells[pid] = Cell(birth.connection, pid)
        if birth.cell.cancelled():  # the run was asked to stop in the meantime
            cell.retire()
        else:
            birth.cell.set_result(cell)

    def _end(self, why: str) -> None:
        """The forkserver has ended, or ends now. No more ends of cells are reported: so they end as well."""
        if self._control is None:
            return
        asyncio.get_running_loop().remove_reader(self._control.fileno())
        self._control.close()
        self._control = None
        loaded, self._loaded = self._loaded, None
        if loaded is not None and not loaded.done():
            self._next_start, self._why = clock.monotonic() + _PAUSE, why
            _fail(loaded, NoCell(why))
        while self._births:
            connection, cell_to_be = self._births.popleft()
            connection.close()
            _fail(cell_to_be, NoCell(why))
        cells, self.cells = self.cells, {}
        for cell in cells.values():
            cell.kill("was killed, because the forkserver had ended")
            cell.note_end(None)
        if self._process is not None:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)


def _retire(born: asyncio.Future[Cell]) -> None:
    if born.exception() is None:
        born.result().retire()


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # a run that was cancelled does not ask for it
