"""A tiny HTTP server for probes: /live says whether the loops move, /ready whether Redis answers and jobs are read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fennelq.errors import ConfigurationError

_PATIENCE = 5.0
_MOST = 4096


class Health:
    """Answers probes. It says nothing but yes and no."""

    def __init__(self, where: str, *, live: Callable[[], bool], ready: Callable[[], bool]) -> None:
        self._host, self._port = _address(where)
        self._checks = {"/live": live, "/ready": ready}
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Begin to answer; raises ConfigurationError when the port cannot be had."""
        try:
            self._server = await asyncio.start_server(self._serve, self._host, self._port, limit=_MOST)
        except OSError as error:
            raise ConfigurationError(f"--health-port {self._port} cannot be opened: {error}") from None

    @property
    def port(self) -> int:
        """The port in use, also when 0 was asked for."""
        return int(self._server.sockets[0].getsockname()[1]) if self._server else self._port

    def close(self) -> None:
        """Answer no more."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                line = await reader.readline()
                writer.write(self._answer(line))
                await writer.drain()
        except (OSError, ValueError):
            pass
        finally:
            writer.close()

    def _answer(self, line: bytes) -> bytes:
        parts = line.decode("latin-1").split()
        check = (
            self._checks.get(parts[1].partition("?")[0])
            if len(parts) == 3 and parts[0] in ("GET", "HEAD")
            else None
        )
        if check is None:
            return _response("404 Not Found", "ask for /live or /ready")
        return _response("200 OK", "yes") if check() else _response("503 Service Unavailable", "no")


def _response(status: str, body: str) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body) + 1}\r\nConnection: close\r\n"
    return f"{head}\r\n{body}\n".encode()


def _address(where: str) -> tuple[str, int]:
    host, _, port = where.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise ConfigurationError(f"--health-port {where!r} cannot be read: write 8081, or 127.0.0.1:8081")
    # A probe comes from outside the container, so every interface is the default.
    return host or "0.0.0.0", int(port)
