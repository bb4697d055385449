"""A connection to one server without an event loop. Like `Link`, it sends a command once and never retries it."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from fennelq import crash
from fennelq.broker.connection import Address
from fennelq.broker.resp import (
    CONNECT_TIMEOUT,
    NOT_YET,
    PING,
    PROBE_TIMEOUT,
    REFUSED_WITHIN,
    SHOWN,
    TLS_HELLO,
    ProtocolError,
    is_tls,
    packed,
    parser,
    tls_could_help,
    unreadable,
)
from fennelq.broker.trouble import (
    LinkDown,
    NoReply,
    ReplyError,
    Trouble,
    WrongServer,
    classify,
    refuses_connection,
)
from fennelq.broker.verb import Word

_READ_SIZE = 1 << 16


class BlockingLink:
    """A connection for code without an event loop: one call at a time."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._socket: socket.socket | None = None
        self._replied = False
        self._mute = False
        """Whether the server closed the last connection without any reply."""
        self._feed, self._gets = parser()

    def call(self, words: Sequence[Word], timeout: float, what: str = "") -> Any:
        """Send a command and return its reply; raises an error of the server. `what` names it for crash points."""
        (reply,) = self.call_all([words], timeout, what)
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def call_all(self, calls: Sequence[Sequence[Word]], timeout: float, what: str = "") -> list[Any]:
        """Send many commands in one write; errors of the server are among the replies. Raises the reply that refuses
        the connection.

        As with `Link`, the connection ends after the reply of a replica."""
        try:
            if self._socket is None:
                self._connect(min(timeout, CONNECT_TIMEOUT))
            replies = self._exchange(calls, timeout, what)
        except OSError as error:
            mute = self._socket is not None and not self._replied
            # As with `Link`, an attempt that has looked for a reason in vain is followed by one that does not look.
            self._mute = mute and not self._mute
            self.close()
            if mute and classify(error) is Trouble.CONNECTION and not isinstance(error, TimeoutError):
                raise self._without_reply(error) from error
            raise
        except BaseException:
            self.close()
            raise
        if any(isinstance(reply, ReplyError) and classify(reply) is Trouble.ROLE for reply in replies):
            self.close()
        return replies

    def read(self, timeout: float) -> Any:
        """The next message of a subscription. After a TimeoutError the connection can still be used."""
        return self._next(self._connected(), timeout)

    def interrupt(self) -> None:
        """End the connection while another thread may be reading from it; that read then fails."""
        sock = self._socket
        if sock is not None:
            try:
                # `SSLSocket.shutdown` would discard the TLS state that the reading thread still uses.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
            except OSError:
                pass  # the connection has ended already

    def close(self) -> None:
        """End the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self, timeout: float) -> None:
        self._socket = self._opened(timeout)
        self._feed, self._gets = parser()
        self._replied = False
        if self._mute:
            self._listen_for_refusal(self._socket)
        for words in self.address.greeting:
            (reply,) = self._exchange([words], timeout)
            if isinstance(reply, ReplyError):
                raise reply

    def _opened(self, timeout: float) -> socket.socket:
        address = self.address
        if address.path:
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(timeout)
            sock.connect(address.path)
            return sock
        if address.tls is None:
            return self._dialled(timeout)
        try:
            return self._encrypted(address.tls, min(timeout, PROBE_TIMEOUT))
        except TimeoutError:
            # A Redis without TLS does not reply to a handshake, because it waits for more bytes: test whether it
            # replies to a PING.
            if reply := self._reply_to(PING):
                raise WrongServer(reply) from None
            return self._encrypted(address.tls, timeout)

    def _dialled(self, timeout: float) -> socket.socket:
        sock = socket.create_connection((self.address.host, self.address.port), timeout)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def _encrypted(self, tls: ssl.SSLContext, timeout: float) -> socket.socket:
        sock = self._dialled(timeout)
        try:
            return tls.wrap_socket(sock, server_hostname=self.address.host)
        except BaseException:
            sock.close()
            raise

    def _listen_for_refusal(self, sock: socket.socket) -> None:
        with suppress(TimeoutError):
            reply = self._next(sock, REFUSED_WITHIN)
            if isinstance(reply, ReplyError):
                raise reply

    def _without_reply(self, error: OSError) -> LinkDown:
        if tls_could_help(self.address) and is_tls(self._reply_to(TLS_HELLO)):
            return WrongServer()
        return NoReply(str(error))

    def _reply_to(self, probe: bytes) -> bytes:
        with suppress(OSError), self._dialled(PROBE_TIMEOUT) as sock:
            sock.sendall(probe)
            return sock.recv(SHOWN)
        return b""

    def _exchange(self, calls: Sequence[Sequence[Word]], timeout: float, what: str = "") -> list[Any]:
        sock = self._connected()
        sock.settimeout(timeout)
        try:
            sock.sendall(b"".join(packed(words) for words in calls))
        except ConnectionError:
            # If the server has refused the connection, the reason has arrived and was not read.
            with suppress(OSError):
                self._next(sock, timeout)
            raise
        if crash.at is not None:
            crash.at(f"sent:{what}")
        return [self._next(sock, timeout) for _ in calls]

    def _next(self, sock: socket.socket, timeout: float) -> Any:
        sock.settimeout(timeout)
        data = b""
        try:
            while (reply := self._gets()) is NOT_YET:
                data = sock.recv(_READ_SIZE)
                if not data:
                    raise LinkDown("the server closed the connection")
                self._feed(data)
        except ProtocolError:
            raise unreadable(data, replied=self._replied) from None
        self._replied, self._mute = True, False
        if isinstance(reply, ReplyError) and refuses_connection(reply):
            # The server closes the connection: waiting for further replies would hide the reason.
            raise reply
        return reply

    def _connected(self) -> socket.socket:
        if self._socket is None:
            raise LinkDown("not connected")
        return self._socket
