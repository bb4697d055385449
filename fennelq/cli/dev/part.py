"""A process of `fennelq dev`, as its parent sees it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from fennelq.cli.dev.log import Lines, Log
from fennelq.cli.dev.tie import READY

_LOOK_EVERY: Final = 1.0
_LAST_LINES: Final = 3.0
"""Seconds for the executors of a worker that was killed: they hand their jobs back, and hold its output open."""
_AT_ONCE: Final = 65_536


class Part:
    """Starts a process, passes on what it prints, and waits for its end.

    It is started without an `await`, so that no signal can arrive while it is half started. A Ctrl-C in the terminal
    does not reach it, because it has a session of its own: only the parent ends it.
    """

    def __init__(self, name: str, log: Log, environment: Mapping[str, str]) -> None:
        self.name = name
        self.ready, self.ended = asyncio.Event(), asyncio.Event()
        self._environment = environment
        self._lines = Lines(log, name)
        self._silent = asyncio.Event()
        self._dead = asyncio.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._stops, self._why = 0, ""

    def start(self, module: str, words: Sequence[str], inherited: Sequence[int] = ()) -> None:
        """Start `python -m module TIE words…`. Raises OSError."""
        output, printing = os.pipe()
        ours, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno()), *words],
                stdin=subprocess.DEVNULL,
                stdout=printing,
                stderr=printing,
                pass_fds=[theirs.fileno(), *inherited],
                env=self._environment,
                start_new_session=True,
            )
        except BaseException:
            os.close(output)
            ours.close()
            raise
        finally:
            os.close(printing)
            theirs.close()
        os.set_blocking(output, False)
        loop = asyncio.get_running_loop()
        loop.add_reader(output, self._print, output)
        loop.add_reader(ours, self._hear, ours)
        self._watching = loop.create_task(self._watch(self._process, output, ours))

    def fail(self, why: str) -> None:
        """It could not be started."""
        self._why = f"not started: {why}"
        self.ended.set()

    @property
    def code(self) -> int | None:
        """Its exit code, negative for a signal; None while it lives."""
        return self._process.returncode if self._process is not None else None

    @property
    def fate(self) -> str:
        """How it ended, in words."""
        if self._why:
            return self._why
        code = self.code or 0
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    def stop(self) -> None:
        """Ask it to end. The second call asks it to end at once, the third kills it."""
        self._stops += 1
        self._signal(signal.SIGTERM if self._stops < 3 else signal.SIGKILL)

    def kill(self) -> None:
        """End it without asking."""
        self._signal(signal.SIGKILL)

    def collect(self) -> None:
        """Check whether it has ended. Called when any child of the parent has ended."""
        if self._process is not None and self._process.poll() is not None:
            self._dead.set()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    async def _watch(self, process: subprocess.Popen[bytes], output: int, ours: socket.socket) -> None:
        try:
            while process.poll() is None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._dead.wait(), _LOOK_EVERY)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._silent.wait(), _LAST_LINES)
        finally:
            loop = asyncio.get_running_loop()
            loop.remove_reader(output)
            loop.remove_reader(ours)
            os.close(output)
            ours.close()
            self._lines.close()
            self.ended.set()

    def _print(self, output: int) -> None:
        try:
            data = os.read(output, _AT_ONCE)
        except BlockingIOError:
            return
        self._lines.feed(data)
        if not data:
            asyncio.get_running_loop().remove_reader(output)
            self._silent.set()

    def _hear(self, ours: socket.socket) -> None:
        with suppress(OSError):
            if (heard := ours.recv(64)) and READY in heard:
                self.ready.set()
            elif not heard:
                asyncio.get_running_loop().remove_reader(ours)
