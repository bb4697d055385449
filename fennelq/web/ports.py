"""Ports: the socket of a dashboard, and the process that has a port already."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from fennelq.errors import ConfigurationError
from fennelq.streams import clean

PORT: Final = 3367
_TRIED: Final = 100
_LISTENS: Final = "0A"
_SHOWN: Final = 60
"""Characters of the command of another process."""


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises ConfigurationError when it cannot."""
    try:
        return _bound(host, port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise ConfigurationError(f"{host}, port {port} cannot be used: {error.strerror}") from None
    by = owner(port)
    raise ConfigurationError(
        f"port {port} of {host} is in use{f' by {by}' if by else ', perhaps by another `fennelq web`'}: "
        "pass --port 0 for a free one"
    )


def next_free(host: str, first: int = PORT) -> socket.socket:
    """A socket that listens on the first free port from this one on. Raises ConfigurationError."""
    for port in range(first, min(first + _TRIED, 65536)):
        with suppress(OSError):
            return _bound(host, port)
    return bound(host, 0)


def owner(port: int) -> str:
    """The process that listens on a port of this machine, as `process 812 (python -m http.server)`; empty when it is
    not known: only Linux tells, and not about processes of other users."""
    inodes = set(_listening(port))
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if inodes and any(str(one.readlink()) in inodes for one in (process / "fd").iterdir()):
                return f"process {process.name} ({_command(process)})"
    return ""


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind)
    except OSError as error:
        raise ConfigurationError(f"{host!r} is not an address of this machine: {error.strerror}") from None
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it. Otherwise the body of a page waits up to 40 ms for the acknowledgement of its headers:
        # asyncio sets it for sockets only that it makes itself.
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.bind(address)
        made.listen(512)
    except OSError:
        made.close()
        raise
    return made


def _listening(port: int) -> Iterator[str]:
    """What the descriptors of listening sockets lead to: `socket:[4711]`."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS and fields[1].endswith(f":{port:04X}"):
                    yield f"socket:[{fields[9]}]"


def _command(process: Path) -> str:
    words = (process / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    text = clean(" ".join([Path(words[0]).name, *words[1:]]).strip())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
