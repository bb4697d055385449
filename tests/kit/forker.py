"""Starts modules as processes, in a copy of an interpreter that has imported fennelq already.

A new interpreter needs 0.4 s of CPU time before it has imported fennelq, and the suite starts a thousand of them. The
forker is an interpreter beside the test process. It has one thread, imports fennelq once, and forks for each process
that a test starts: this takes 20 ms. The new process has its own session, its own environment, folder and streams, and
runs the module as `python -m` does. It is a child of the test process and not of the forker: the test process waits for
it, and signals it, as it does with any other child.

Linux only. Elsewhere, and where a process depends on the start of its interpreter, use `subprocess`: `can_start`
says so.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import platform
import runpy
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, NoReturn

PROJECT: Final = Path(__file__).parents[2]
FORKED: Final = ("fennelq", "tests")
"""Packages whose modules run in copies of the forker."""
IMPORTED: Final = (
    "fennelq.cli",
    "fennelq.blocking",
    "fennelq.embedded.user",
    "fennelq.manage.dead.dead",
    "fennelq.manage.queues.queue",
    "fennelq.manage.dead.replaying",
    "fennelq.worker.executor",
    "fennelq.worker.processes.supervisor",
)
"""What workers and commands import, but for the main modules of processes."""
OF_INTERPRETER: Final = ("PYTHON", "LC_", "LANG")
"""Variables which the interpreter reads when it starts."""
_CLONE: Final = {"x86_64": 56, "aarch64": 220}
"""The number of the system call on each kind of machine."""
_CLONE_PARENT: Final = 0x8000
_LONGEST: Final = 1 << 17


def can_start(module: str, environment: Mapping[str, str], folder: Path) -> bool:
    """Whether a copy of the forker is what a new interpreter would be."""
    return (
        sys.platform == "linux"
        and platform.machine() in _CLONE
        and module.partition(".")[0] in FORKED
        and environment.get("PYTHONPATH", str(PROJECT)) == str(PROJECT)
        and _of_interpreter(environment) == _of_interpreter(os.environ)
        # In the folder of another version, `python -m fennelq` is that version.
        and (folder == PROJECT or not any((folder / name).exists() for name in FORKED))
    )


def _of_interpreter(environment: Mapping[str, str]) -> dict[str, str]:
    names = [name for name in environment if name.startswith(OF_INTERPRETER) and name != "PYTHONPATH"]
    return {name: environment[name] for name in names}


class Forked:
    """A child that the forker has started: what `subprocess.Popen` offers for its own children."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """The exit code, minus the number of the signal that killed it; None while it lives."""
        with self._lock:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises `subprocess.TimeoutExpired`."""
        if self.poll() is None:
            ends = os.pidfd_open(self.pid)
            select.select([ends], [], [], timeout)
            os.close(ends)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Signal it, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


class Forker:
    """The side of the test process."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with theirs:
            self._process = (
                subprocess.Popen(  # it ends when the socket is closed, at the latest with this process
                    [sys.executable, __file__, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    env=environment,
                    start_new_session=True,
                )
            )

    def start(
        self,
        module: str,
        *arguments: str,
        streams: tuple[int, int, int],
        environment: Mapping[str, str],
        folder: Path,
        unbuffered: bool = False,
        terminal: bool = False,
        waits: bool = False,
    ) -> Forked:
        """`python -m module arguments…` with these file descriptors as stdin, stdout and stderr.

        With `terminal`, stdin is a terminal and becomes that of the new session. With `waits`, the process reads a
        line from stdin before it begins, and ends when there is none.
        """
        order = {
            "module": module,
            "arguments": arguments,
            "environment": dict(environment),
            "folder": str(folder),
            "unbuffered": unbuffered,
            "terminal": terminal,
            "waits": waits,
        }
        with self._lock:
            socket.send_fds(self._ours, [json.dumps(order).encode()], list(streams))
            answer = self._ours.recv(64)
        if not answer:
            raise RuntimeError("the forker has ended: its traceback is above")
        return Forked(int(answer))


@cache
def forker() -> Forker:
    """The one of this process, started when first needed."""
    return Forker()


# From here on: the forker's own side.


def serve(orders: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Fork for each order. Returns the order in each copy, and None in the forker when the test process has ended."""
    while True:
        message, streams, _, _ = socket.recv_fds(orders, _LONGEST, 3)
        if not message:
            return None
        pid = fork_for_parent()
        if pid == 0:
            orders.close()
            return json.loads(message), streams
        for stream in streams:
            os.close(stream)
        with suppress(BrokenPipeError):
            orders.send(b"%d" % pid)


def fork_for_parent() -> int:
    """`os.fork()`, but the new process is a child of our parent.

    `os.fork()` does the same before and after its system call. This process has one thread, so that no lock of the
    C library is held.
    """
    api, libc = (
        ctypes.pythonapi,
        ctypes.PyDLL(None),
    )  # PyDLL keeps the lock of the interpreter during the call
    api.PyOS_BeforeFork()
    pid: int = libc.syscall(_CLONE[platform.machine()], _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        api.PyOS_AfterFork_Child()
    else:
        api.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError("the forker cannot fork")
    return pid


def become(order: dict[str, Any], streams: list[int]) -> NoReturn:
    """What `python -m` is when it begins to run the module."""
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    if order["terminal"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    if order["waits"] and not read_line(0):
        os._exit(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background ignores it
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    time.tzset()
    sys.path[:0] = [order["folder"], *filter(None, [os.environ.get("PYTHONPATH")])]
    sys.argv = [order["module"], *order["arguments"]]
    open_streams(unbuffered=order["unbuffered"] or bool(os.environ.get("PYTHONUNBUFFERED")))
    importlib.reload(sys.modules["fennelq.crash"])  # it reads its variable when it is imported
    gc.enable()
    runpy.run_module(order["module"], run_name="__main__", alter_sys=True)
    raise SystemExit


def read_line(stream: int) -> bytes:
    """A line, without reading what follows it; what there was at the end of the stream."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(stream, 1)):
        line += byte
    return line if line.endswith(b"\n") else b""


def open_streams(*, unbuffered: bool) -> None:
    """As the interpreter opens them when it starts."""
    reader = io.BufferedReader(io.FileIO(0, "r", closefd=False))
    streams = {
        "stdin": io.TextIOWrapper(reader, sys.stdin.encoding, sys.stdin.errors),
        "stdout": writer(1, sys.stdout, unbuffered=unbuffered),
        "stderr": writer(2, sys.stderr, unbuffered=unbuffered),
    }
    for name, stream in streams.items():
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def writer(number: int, like: Any, *, unbuffered: bool) -> io.TextIOWrapper:
    """A text stream to this file descriptor."""
    raw = io.FileIO(number, "w", closefd=False)
    to: Any = raw if unbuffered else io.BufferedWriter(raw)
    by_line = not unbuffered and (number == 2 or raw.isatty())
    return io.TextIOWrapper(to, like.encoding, like.errors, "\n", by_line, write_through=unbuffered)


def main() -> None:
    """Serve the test process, which has the other end of this socket."""
    del sys.path[0]  # the folder of this file
    gc.disable()
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    assert threading.active_count() == 1, "another thread may hold a lock"
    begun = serve(socket.socket(fileno=int(sys.argv[1])))
    if begun is not None:
        become(*begun)


if __name__ == "__main__":
    main()
