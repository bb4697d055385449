"""The log of `fennelq dev`: one for all processes."""

from __future__ import annotations

from typing import Final, TextIO

from fennelq.streams import LogStream, colours

_WIDTH: Final = 6
_COLOURS: Final = {"dev": 35, "web": 36, "worker": 32}
_LONGEST: Final = 65_536
"""Bytes of a line. A longer one is divided."""


class Log:
    """Writes lines with the name of a process before each. It never raises, even when its terminal is gone."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = LogStream()
        self._stream.aim(stream, f"{'dev':{_WIDTH}} | {{}} lines were lost\n".format)
        self._coloured = colours(stream)

    def write(self, name: str, text: str) -> None:
        """Write the lines of a text."""
        head = f"{name:{_WIDTH}} |"
        if self._coloured:
            head = f"\x1b[{_COLOURS.get(name, 0)}m{head}\x1b[0m"
        self._stream.write("".join(f"{head} {line}\n" for line in text.split("\n")))


class Lines:
    """Makes lines of the bytes that a process prints."""

    def __init__(self, log: Log, name: str) -> None:
        self._log, self._name = log, name
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Write the lines that are complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST:
            lines.append(self._rest)
            self._rest = b""
        if lines:
            self._write(b"\n".join(lines))

    def close(self) -> None:
        """Write what is left, although its line has no end."""
        if self._rest:
            self._write(self._rest)
            self._rest = b""

    def _write(self, data: bytes) -> None:
        self._log.write(self._name, data.decode("utf-8", "replace").replace("\r", ""))
