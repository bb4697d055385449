"""The standard streams of a process: they may be closed, full, broken or blocked, and may lead to a terminal.

A worker must be able to run without a log: a line that cannot be written is counted and dropped; writing never raises.
"""

from __future__ import annotations

import os
import select
import stat
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol, TextIO

PATIENCE_MS: Final = 500
"""Milliseconds that one write waits for a reader that does not read."""
_SAFE_SIZE: Final = 4096
"""The number of bytes that can be written without blocking to a pipe, a socket or a terminal that is ready."""


# Standard streams


def open_missing() -> None:
    """Open /dev/null for each standard stream that this process was started without.

    Otherwise the next file or connection that is opened gets the number of the missing stream. Then a child process or
    a library in C that writes to "stderr" would write into it. A number that is in use already is left alone.
    """
    streams = ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w"))
    missing = [stream for stream in streams if getattr(sys, stream[1]) is None]
    for number, _, _ in missing:
        _occupy(number)
    for _, name, mode in missing:
        setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115


def _occupy(number: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        null = os.open(os.devnull, os.O_RDWR)
        if null == number:
            os.set_inheritable(number, True)
            return
        os.dup2(null, number)
        os.close(null)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person can see this stream; False for a stream that is missing or closed."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def colours(stream: TextIO | None) -> bool:
    """Whether to write colours and bold text: to a terminal, unless NO_COLOR is set or TERM is `dumb`."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def flush(*streams: TextIO | None) -> None:
    """Write the buffered text; text that cannot be written is dropped."""
    for stream in streams:
        with suppress(Exception):
            if stream is not None:
                stream.flush()


# Texts


def clean(text: str) -> str:
    """The text, with every character escaped that controls a terminal or reverses the order of the text."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def clean_lines(text: str) -> str:
    """The same for a text of several lines: newlines and tabs stay."""
    return "\n".join("\t".join(map(clean, line.split("\t"))) for line in text.split("\n"))


# Logs


class LogStream:
    """The destination of log lines. Writing never raises, and never waits for long.

    * A line that cannot be written is dropped and counted. When writing works again, the first line has the number of
      lost lines: `notice` makes its text.
    * When a reader (of a pipe, a terminal or a socket) stops reading, one write waits for half a second. After that,
      lines are dropped until it reads again. A slow reader may slow a worker down, but one that stops must not stop it.
    """

    def __init__(self) -> None:
        self._notice: Callable[[int], str] = "{} log lines were lost\n".format
        self._sink: _Sink = _Text(None)
        self._lost = 0
        self._after_fork()
        os.register_at_fork(after_in_child=self._after_fork)

    def aim(self, stream: TextIO | None, notice: Callable[[int], str]) -> None:
        """Write to this stream from now on."""
        with self._lock:
            self._sink.close()
            self._sink, self._notice = _sink_of(stream), notice

    def write(self, text: str) -> int:
        """Write whole lines, all or none of them."""
        with self._lock:
            try:
                # Send the notice and the text in one piece: the short notice alone might fit where the line does not.
                self._sink.send(self._notice(self._lost) + text if self._lost else text)
                self._lost = 0
            except Exception:
                self._lost += 1
        return len(text)

    def flush(self) -> None:
        """Does nothing, because this stream has no buffer."""

    def missed(self) -> None:
        """Count a line that failed before it could be written."""
        with self._lock:
            self._lost += 1

    def _after_fork(self) -> None:
        # Another thread may have held the lock at the moment of the fork. The lock is reentrant, because a signal
        # handler may log.
        self._lock = threading.RLock()


class _Sink(Protocol):
    def send(self, text: str) -> None: ...
    def close(self) -> None: ...


class _Text:
    """A stream without a file descriptor: a stream in memory, or none."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def send(self, text: str) -> None:
        if self._stream is not None:
            self._stream.write(text)
            self._stream.flush()

    def close(self) -> None:
        """Does nothing, because other code owns the stream."""


class _File:
    """A file or a device that does not block. It uses a duplicate of the descriptor: number 2 may be closed and reused
    for a connection to Redis, and a log line in the middle of its commands would break that connection."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._torn = False

    def send(self, text: str) -> None:
        data = text.encode("utf-8", "backslashreplace")
        # If only a part of the last line was written, end that line first: the next one must not continue it.
        rest = memoryview(b"\n" + data if self._torn else data)
        while rest:
            rest = rest[self._write(rest) :]
            self._torn = bool(rest)

    def close(self) -> None:
        os.close(self._descriptor)

    def _write(self, data: memoryview) -> int:
        return os.write(self._descriptor, data)


class _Patient(_File):
    """A pipe, a terminal or a socket, which blocks when its reader does not read."""

    _stuck = False

    def send(self, text: str) -> None:
        super().send(text)
        self._stuck = False

    def _wait(self) -> None:
        ready = select.poll()
        ready.register(self._descriptor, select.POLLOUT)
        if not ready.poll(0 if self._stuck else PATIENCE_MS):
            self._stuck = True
            raise BlockingIOError


class _NonBlocking(_Patient):
    """A pipe or a terminal that was opened a second time. The flag O_NONBLOCK belongs to an open file, and other
    processes share stderr itself and do not expect it to be non-blocking."""

    def _write(self, data: memoryview) -> int:
        try:
            return super()._write(data)
        except BlockingIOError:
            self._wait()
            return super()._write(data)


class _Blocking(_Patient):
    """A stream that cannot be opened a second time. Another process may fill the pipe between the poll and the write;
    then the write blocks. A socket, the usual case, has room for more than one such line."""

    def _write(self, data: memoryview) -> int:
        self._wait()
        return super()._write(data[:_SAFE_SIZE])


def _sink_of(stream: TextIO | None) -> _Sink:
    try:
        number = stream.fileno() if stream is not None else -1
        mode = os.fstat(number).st_mode
    except (OSError, ValueError, AttributeError):
        return _Text(stream)
    if stat.S_ISFIFO(mode) or os.isatty(number):
        with suppress(OSError):
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY
            return _NonBlocking(os.open(f"/proc/self/fd/{number}", flags))
        return _Blocking(os.dup(number))
    return _Blocking(os.dup(number)) if stat.S_ISSOCK(mode) else _File(os.dup(number))
