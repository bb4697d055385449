"""Serves the dashboard in a process of its own: `fennelq web`."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

import uvicorn
from starlette.types import Receive, Scope, Send

from fennelq.web.reading import Reading

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_IDLE: Final = 30
"""Seconds after which an idle connection is closed. Programs keep theirs for further calls."""
_GRACE: Final = 10
"""Seconds that requests get to finish when the process is stopped. Most need some milliseconds."""


class Served(Protocol):
    """The dashboard, or the API alone."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        ...

    def end_streams(self) -> None:
        """End the streams and the waits, which would go on for long. Other requests go on."""
        ...

    async def close(self) -> None:
        """End everything that is under way."""
        ...


def url_of(listening: socket.socket) -> str:
    """Where a browser finds it."""
    host, port = listening.getsockname()[:2]
    shown = (
        "127.0.0.1"
        if host == "0.0.0.0"
        else "[::1]"
        if host == "::"
        else f"[{host}]"
        if ":" in host
        else host
    )
    return f"http://{shown}:{port}/"


def serve(dashboard: Served, sockets: Sequence[socket.socket], started: Callable[[], None]) -> None:
    """Serve until a signal stops the process. `started` is called when requests are answered."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(serving(dashboard, sockets, started))


async def serving(dashboard: Served, sockets: Sequence[socket.socket], started: Callable[[], None]) -> None:
    """The same, beside other work on the loop of this process."""
    config = uvicorn.Config(
        dashboard,
        http=Reading,
        log_level="warning",
        access_log=False,
        log_config=None,
        proxy_headers=False,  # `Proxy` must see the address of the proxy, and not what a header says
        server_header=False,
        lifespan="on",
        ws="none",
        timeout_keep_alive=_IDLE,
        timeout_graceful_shutdown=_GRACE,
    )
    await _Server(config, dashboard, started).serve([*sockets])


def new_loop() -> asyncio.AbstractEventLoop:
    """An event loop of uvloop when it is installed: it takes a third less time per request."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class _Server(uvicorn.Server):
    """Ends the streams before it waits for the requests under way: a stream would never end."""

    def __init__(self, config: uvicorn.Config, dashboard: Served, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._dashboard, self._started = dashboard, started

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """End in order after a signal. uvicorn would let the signal kill the process in the end."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets)
        self._started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End. The requests under way are answered before everything is closed that they need."""
        self._dashboard.end_streams()
        await super().shutdown(sockets)
        await self._dashboard.close()
