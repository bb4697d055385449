"""A small HTTP server for probes and metrics. /live returns 200 while the loops run, /ready while Redis replies and
jobs are read, /metrics the metrics for Prometheus."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

from fennelq import log
from fennelq.errors import ConfigurationError
from fennelq.model.exposition import CONTENT_TYPE, Page

_logger = log.get("fennelq.supervisor")

PATIENCE = 5.0
LONGEST_REQUEST = 4096
MOST_PROBES = 32
_BACKLOG = 64
PAUSE_AFTER_ERROR = 1.0


class Health:
    """Answers probes with yes or no, and scrapes with a page.

    Every client that reaches the port can open connections, and the executors need the descriptors more than probes do.
    So at most `MOST_PROBES` connections are open, each for at most `PATIENCE` seconds. A further one closes the
    oldest. A real probe gets its answer within milliseconds, so the oldest connection is one without a request, and a
    client that holds connections open cannot block the probes.
    """

    def __init__(
        self,
        where: str,
        *,
        live: Callable[[], bool],
        ready: Callable[[], bool | Awaitable[bool]],
        metrics: Callable[[], Awaitable[Page]] | None = None,
        option: str = "--health-port",
    ) -> None:
        """`option` is the name by which errors call the port."""
        self._option, self._metrics = option, metrics
        self._host, self._port = _address(where, option)
        self._checks: dict[str, Callable[[], bool | Awaitable[bool]]] = {"/live": live, "/ready": ready}
        self._listening: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._probes: dict[asyncio.Task[None], None] = {}
        """The oldest first."""

    async def start(self) -> None:
        """Start to answer; raises ConfigurationError when the port cannot be opened."""
        try:
            await self._listen()
        except OSError as error:
            self.close()
            raise ConfigurationError(f"{self._option} {self._port} cannot be opened: {error}") from None
        self._accepting = [asyncio.create_task(self._accept(listening)) for listening in self._listening]

    @property
    def port(self) -> int:
        """The port in use: with port 0, the one that the system has chosen."""
        return int(self._listening[0].getsockname()[1]) if self._listening else self._port

    def close(self) -> None:
        """Stop answering, and close all connections."""
        for task in (*self._accepting, *self._probes):
            task.cancel()
        for listening in self._listening:
            asyncio.get_running_loop().remove_reader(listening)
            listening.close()
        self._listening.clear()

    async def _listen(self) -> None:
        found = await asyncio.get_running_loop().getaddrinfo(
            self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, address in dict.fromkeys((family, address) for family, *_, address in found):
            listening = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
            listening.setblocking(False)
            self._listening.append(listening)

    async def _accept(self, listening: socket.socket) -> None:
        # asyncio.Server is not used: it accepts any number of connections, and logs many tracebacks when descriptors
        # are used up.
        while True:
            try:
                connection, _ = await asyncio.get_running_loop().sock_accept(listening)
            except ConnectionAbortedError:  # the client has closed it before it was accepted
                await asyncio.sleep(0)
                continue
            except OSError as error:
                _logger.warning("probe_not_accepted", error=str(error))
                await asyncio.sleep(PAUSE_AFTER_ERROR)
                continue
            self._admit(connection)
            # A cancelled probe closes its connection in this turn of the loop, before the next one is accepted.
            await asyncio.sleep(0)

    def _admit(self, connection: socket.socket) -> None:
        if len(self._probes) >= MOST_PROBES:
            oldest = next(iter(self._probes))
            del self._probes[oldest]
            oldest.cancel()
        probe = asyncio.create_task(self._serve(connection))
        self._probes[probe] = None
        probe.add_done_callback(lambda _: connection.close())
        probe.add_done_callback(lambda _: self._probes.pop(probe, None))

    async def _serve(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            async with asyncio.timeout(PATIENCE):
                connection.setblocking(False)
                head = b""
                while b"\n" not in head:
                    head += await self._more(connection, head)
                await loop.sock_sendall(connection, await self._answer(head.partition(b"\n")[0]))
                connection.shutdown(socket.SHUT_WR)
                # Closing a connection with unread data resets it: the client might never see the answer.
                while not head.endswith((b"\r\n\r\n", b"\n\n")):
                    head += await self._more(connection, head)

    async def _more(self, connection: socket.socket, head: bytes) -> bytes:
        left = LONGEST_REQUEST - len(head)
        more = await asyncio.get_running_loop().sock_recv(connection, left) if left else b""
        if not more:
            raise ConnectionError
        return more

    async def _answer(self, line: bytes) -> bytes:
        parts = line.decode("latin-1").split()
        asks = len(parts) == 3 and parts[0] in ("GET", "HEAD")
        path = parts[1].partition("?")[0] if asks else ""
        if path == "/metrics" and self._metrics is not None:
            return _response("200 OK", (await self._metrics()).encoded(), CONTENT_TYPE)
        check = self._checks.get(path)
        if check is None:
            paths = "/live, /ready or /metrics" if self._metrics is not None else "/live or /ready"
            return _response("404 Not Found", f"ask for {paths}\n".encode())
        answer = check()
        yes = answer if isinstance(answer, bool) else await answer
        return _response("200 OK", b"yes\n") if yes else _response("503 Service Unavailable", b"no\n")


def _response(status: str, body: bytes, content_type: str = "text/plain") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    return f"{head}\r\n".encode() + body


def _address(where: str, option: str) -> tuple[str, int]:
    host, _, port = where.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise ConfigurationError(f"{option} {where!r} cannot be read: write 8081, or 127.0.0.1:8081")
    # Probes come from outside the container, so the default is to listen on every interface.
    return host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port)
