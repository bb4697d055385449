"""Listens to one channel without an event loop, for a thread that has a connection of its own for it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from fennelq import clock
from fennelq.broker.blocking_link import BlockingLink
from fennelq.broker.connection import Address
from fennelq.broker.trouble import LinkDown, ReplyError

_SUBSCRIBE_WITHIN = 5.0


class Ear(AbstractContextManager["Ear"]):
    """A subscription to a sharded channel, for one thread."""

    def __init__(self, address: Address, channel: str) -> None:
        self._link, self._channel = BlockingLink(address), channel

    def __enter__(self) -> Ear:
        """Subscribe. Raises ReplyError when the server refuses it, and OSError when it cannot be reached."""
        self._link.call(["SSUBSCRIBE", self._channel], _SUBSCRIBE_WITHIN)
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close()

    def message(self, timeout: float) -> bytes | None:
        """The next message; None when none arrives in time. Raises LinkDown when the subscription has ended."""
        deadline = clock.monotonic() + timeout
        while (left := deadline - clock.monotonic()) > 0:
            try:
                reply: Any = self._link.read(left)
            except TimeoutError:
                return None
            if isinstance(reply, ReplyError):
                raise LinkDown(str(reply))
            if reply[0] == b"smessage":
                message: bytes = reply[2]
                return message
            if reply[0] == b"sunsubscribe":
                raise LinkDown("the server has ended the subscription")
        return None
