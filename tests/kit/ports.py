"""A loopback port that stays ours, also while nothing listens on it."""

from __future__ import annotations

import socket
import sys

HOST = "127.0.0.1"


class Port:
    """A free port of 127.0.0.1, reserved until `release()`.

    A server that is killed and started again needs its port back, and a proxy that refuses must refuse on the
    port it had. A bound socket that never listens keeps the kernel from giving the port to another process that asks
    for *a* port, while connecting to it is refused. Linux lets a server that sets SO_REUSEADDR listen beside
    it (as redis, valkey and `listen()` do); macOS does not, so there the port is only found, not held.
    """

    def __init__(self) -> None:
        self._holder = bound_socket(0)
        self.number: int = self._holder.getsockname()[1]
        if sys.platform != "linux":
            self._holder.close()

    def listen(self, backlog: int = 1024) -> socket.socket:
        """A new non-blocking socket that listens on this port."""
        listener = bound_socket(self.number)
        listener.setblocking(False)
        listener.listen(backlog)
        return listener

    def release(self) -> None:
        """Give the port back; does no harm a second time."""
        self._holder.close()


def bound_socket(number: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((HOST, number))
    return bound
