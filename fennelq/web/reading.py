"""Reads requests within limits: uvicorn waits for the head of a request for ever, and keeps all of it."""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LARGEST_HEAD: Final = 64 << 10
"""Bytes of the first line and the headers of a request."""
HEAD_WITHIN: Final = 30.0
"""Seconds within which they must have arrived."""


class Reading(HttpToolsProtocol):
    """A connection. It is closed when the head of a request is too large or too slow."""

    _reads_head, _head = True, 0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on."""
        if self._reads_head and self._timer is None:
            self._await_head()
        self._head += len(data)
        super().data_received(data)
        # A part of a body may come together with the head, so this looks only at a head that is not complete.
        if self._reads_head and self._head > LARGEST_HEAD and not self.transport.is_closing():
            self.send_400_response(f"The headers of a request may have {LARGEST_HEAD:,} bytes.")

    def on_headers_complete(self) -> None:
        """The head of a request is complete."""
        self._stop_timer()
        self._reads_head, self._head = False, 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """A request is complete; another one may follow."""
        self._reads_head, self._head = True, 0
        super().on_message_complete()

    def _await_head(self) -> None:
        self._timer = self.loop.call_later(HEAD_WITHIN, self._give_up)

    def _give_up(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
