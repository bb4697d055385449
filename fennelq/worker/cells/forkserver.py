"""The main module of the process that forks cells: `python -m fennelq.worker.cells.forkserver PRELOAD`.

It imports the app once. After that, a cell costs a fork and not an import. It has one thread and runs no job.

The reasons why it is not the forkserver of `multiprocessing`: docs/adr/0013-a-forkserver-of-our-own.md
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn

import orjson

from fennelq import log, streams
from fennelq.app import App
from fennelq.context import job_facts
from fennelq.worker.cells import parentage
from fennelq.worker.cells.inside import live
from fennelq.worker.cells.preload import Preload

_LONGEST = 4000


def main(text: str) -> None:
    """Import the app, then fork a cell for each request, until the executor ends."""
    preload = Preload.from_text(text)
    parentage.end_with(preload.parent)
    streams.open_missing()
    control = socket.socket(fileno=preload.control)
    control.setblocking(True)
    control.set_inheritable(False)
    for number in (signal.SIGTERM, signal.SIGINT):
        # A stop of the whole group, by systemd or a terminal, is for the supervisor to handle: jobs may finish. Not
        # SIG_IGN, which the programs that a task starts would inherit.
        signal.signal(number, _left_to_executor)
    if preload.app:
        log.setup(
            preload.log_format,
            preload.log_level,
            config=preload.log_config,
            errors=preload.log_errors,
            about=job_facts,
        )
    server = Forkserver(control)
    try:
        app = preload.load()
        log.hide(app.redaction.fact)
    except BaseException as error:  # an import may raise SystemExit
        server.tell(failed=_cut(f"{type(error).__name__}: {error}"), traceback=_cut(traceback.format_exc()))
        return
    # What the import has printed, and waits in a buffer, would be written again by every cell.
    streams.flush(sys.stdout, sys.stderr)
    # The collector would write to every object, and so copy the pages that the cells share with this process.
    gc.collect()
    gc.freeze()
    server.tell(ready=True)
    server.serve(app)


class Forkserver:
    """Forks cells, and reports their ends."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._cells: set[int] = set()
        self._signals, self._signalled = os.pipe()

    def tell(self, **facts: Any) -> None:
        """Send a line to the executor."""
        with suppress(OSError):  # it has ended, and the next read tells
            self._control.sendall(orjson.dumps(facts) + b"\n")

    def serve(self, app: App) -> None:
        """Serve the requests of the executor until it closes the connection."""
        for end in (self._signals, self._signalled):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._signalled, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _left_to_executor)
        # Not epoll, whose descriptor the cells would share.
        ready = select.poll()
        ready.register(self._control, select.POLLIN)
        ready.register(self._signals, select.POLLIN)
        while True:
            for descriptor, _ in ready.poll():
                if descriptor == self._signals:
                    self._collect()
                elif not self._fork_one(app):
                    self._kill_cells()
                    return

    def _fork_one(self, app: App) -> bool:
        """Serve one request; False when the executor has closed the connection."""
        try:
            data, received, _, _ = socket.recv_fds(self._control, 1, 1)
        except OSError:  # it was killed before it had read all reports
            return False
        if not data:
            return False
        if not received:
            self.tell(refused="the table of descriptors is full")
            return True
        # Python leaves received descriptors inheritable: a program that a task starts would hold the connection open.
        os.set_inheritable(received[0], False)
        try:
            pid = os.fork()
        except OSError as error:  # no more processes or no more memory
            self.tell(refused=f"cannot fork: {error.strerror or error}")
        else:
            if pid == 0:
                self._become_cell(received[0], app)
            self._cells.add(pid)
            self.tell(pid=pid)
        os.close(received[0])
        return True

    def _become_cell(self, descriptor: int, app: App) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            server = os.getppid()
            for end in (self._signals, self._signalled):
                os.close(end)
            self._control.close()
            parentage.end_with(server)
            live(socket.socket(fileno=descriptor), app)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def _kill_cells(self) -> None:
        """The executor has ended. Where the kernel does not end the cells with it, this does, also those that compute
        in C and could not notice it themselves."""
        for pid in self._cells:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def _collect(self) -> None:
        """Report the cells that have ended."""
        with suppress(BlockingIOError):
            os.read(self._signals, 4096)
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self._cells.discard(ended[0])
                self.tell(gone=ended[0], code=os.waitstatus_to_exitcode(ended[1]))


def _left_to_executor(_: int, __: FrameType | None) -> None:
    """Does nothing. The executor ends its cells."""


def _cut(text: str) -> str:
    return text[-_LONGEST:].encode("utf-8", "replace").decode()


if __name__ == "__main__":
    main(sys.argv[1])
