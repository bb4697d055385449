"""One connection to one server: `Link` on an event loop, `BlockingLink` without one.

They do what they are told once: no silent retries, because one lost reply must not become two jobs. They
speak through hiredis on a bare transport, which takes half the time of redis-py's asyncio connection
(docs/adr/0002).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import hiredis

from fennelq import crash
from fennelq.broker.connection import Address
from fennelq.broker.trouble import NoReply, ReplyError, Trouble, WrongServer, classify, tls_reason
from fennelq.broker.verb import Word

CONNECT_TIMEOUT = 5.0
_PROBE_TIMEOUT = 1.0
_SHOWN = 40
_HELLO: tuple[Word, ...] = ("CLIENT", "ID")
"""Ends a greeting: the reply shows that a Redis is there. It is answered while the server loads its data, too."""
_READ_SIZE = 1 << 16
_NOT_YET = object()

# hiredis declares that it packs a tuple of one word, and says nothing of what comes out.
_packed: Callable[[tuple[Word, ...]], bytes] = cast("Any", hiredis).pack_command

Hear = Callable[[Any], None]


class LinkDown(ConnectionError):
    """The connection is gone; what was asked and not answered may or may not have been done."""


class Link:
    """A connection on an event loop. Calls are pipelined: any number may be under way, answers come in order.

    Cancelling a call abandons its answer and nothing else. A call that is not answered in time ends the
    connection, and with it every call under way: late answers must not be taken for those of other questions.

    An answer that shows that the server is a replica ends the connection as well. After a failover behind one
    name or one address the connection to the old primary is healthy, and only a new one leads to the new primary.
    """

    def __init__(self, address: Address, reconnected: Callable[[], None] = lambda: None) -> None:
        """`reconnected` is called after every connection but the first."""
        self.address = address
        self._reconnected = reconnected
        self._connections = 0
        self._wire: _Wire | None = None
        self._connecting: asyncio.Task[_Wire] | None = None

    @property
    def connected(self) -> bool:
        """Whether a call can be sent at once."""
        return self._wire is not None and self._wire.open

    async def call(self, words: Sequence[Word], timeout: float, what: str = "") -> Any:
        """Send the words and return the answer; an error of the server is raised. `what` names it for crash points."""
        wire = self._wire
        if wire is None or not wire.open:
            async with asyncio.timeout(timeout):
                wire = await self.connect()
        answer = wire.ask(words)
        if crash.at is not None:
            crash.at(f"sent:{what}")
        late = answer.get_loop().call_later(timeout, wire.give_up, answer, timeout)
        try:
            reply = await answer
        finally:
            late.cancel()
        if isinstance(reply, ReplyError):
            if classify(reply) is Trouble.ROLE:
                wire.abort(LinkDown(f"the server is a replica: {reply}"))
            raise reply
        return reply

    async def connect(self) -> _Wire:
        """Connect and greet, once for all who wait for it."""
        if self._connecting is None:
            self._connecting = asyncio.create_task(_connected(self.address))
            self._connecting.add_done_callback(self._connect_ended)
        connecting = self._connecting
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            if connecting.cancelled():
                raise LinkDown("closed while connecting") from None
            raise

    async def listen(self, words: Sequence[Word], hear: Hear) -> None:
        """Make this a connection that only listens: every message, at last the LinkDown, goes to `hear`."""
        wire = await self.connect()
        wire.hear = hear
        wire.write(words)

    def drop(self) -> None:
        """End the connection, if there is one: the next call makes a new one."""
        if self._wire is not None:
            self._wire.abort(LinkDown("the server's role has changed"))

    def close(self) -> None:
        """End the connection, or the attempt to connect; calls under way end with LinkDown."""
        if self._connecting is not None:
            self._connecting.cancel()
        if self._wire is not None:
            self._wire.abort(LinkDown("closed"))
            self._wire = None

    def _connect_ended(self, task: asyncio.Task[_Wire]) -> None:
        """Kept here and not by who asked: that one may have been cancelled meanwhile."""
        self._connecting = None
        if not task.cancelled() and task.exception() is None:
            self._wire = task.result()
            self._connections += 1
            if self._connections > 1:
                self._reconnected()


class _Wire(asyncio.Protocol):
    """One connected socket: what is asked on it and what it answers. Never used again once it is down."""

    def __init__(self) -> None:
        self.hear: Hear | None = None
        self.greeted = False
        self._asked: deque[asyncio.Future[Any]] = deque()
        self._transport: asyncio.Transport | None = None
        self._feed, self._gets = _parser()
        self._refusal: ReplyError | None = None
        self._end: Exception = LinkDown("not connected")

    @property
    def open(self) -> bool:
        return self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        try:
            self._feed(data)
            while (reply := self._gets()) is not _NOT_YET:
                self._take(reply)
        except hiredis.ProtocolError:
            self.abort(_unreadable(data, greeted=self.greeted))

    def _take(self, reply: Any) -> None:
        if self.hear is not None:
            self.hear(reply)
        elif self._asked:
            answer = self._asked.popleft()
            if not answer.done():
                answer.set_result(reply)
        elif isinstance(reply, ReplyError):
            # Before it closes a connection that it refuses, the server says why, perhaps before the first question.
            self._refusal = reply

    def connection_lost(self, exc: Exception | None) -> None:
        down = LinkDown(str(exc) if exc else "the server closed the connection")
        down.__cause__ = exc
        self.abort(down)

    def ask(self, words: Sequence[Word]) -> asyncio.Future[Any]:
        self.write(words)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked.append(answer)
        return answer

    def write(self, words: Sequence[Word]) -> None:
        if self._transport is None:
            raise self._end
        self._transport.write(_packed(tuple(words)))

    def give_up(self, answer: asyncio.Future[Any], timeout: float) -> None:
        late = TimeoutError(f"no answer within {timeout:g} s")
        if not answer.done():
            answer.set_exception(late)
        down = LinkDown(str(late))
        down.__cause__ = late
        self.abort(down)

    def abort(self, why: Exception) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
            self._end = self._refusal or why
        asked, self._asked = self._asked, deque()
        for answer in asked:
            if not answer.done():
                answer.set_exception(self._end)
        if self.hear is not None:
            hear, self.hear = self.hear, None
            hear(why)


async def _connected(address: Address) -> _Wire:
    wire = _Wire()
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            await _open(wire, address)
            await _greet(wire, address)
    except BaseException:
        wire.abort(LinkDown("could not connect"))
        raise
    return wire


async def _open(wire: _Wire, address: Address) -> None:
    loop = asyncio.get_running_loop()
    if address.path:
        await loop.create_unix_connection(lambda: wire, address.path)
    else:
        name = address.host if address.tls else None
        await loop.create_connection(
            lambda: wire, address.host, address.port, ssl=address.tls, server_hostname=name
        )


async def _greet(wire: _Wire, address: Address) -> None:
    try:
        for words in (*address.greeting, _HELLO):
            _check(words, await wire.ask(words))
    except OSError as error:
        if _explains_itself(error):
            raise
        raise (WrongServer() if await _expects_tls(address) else NoReply(str(error))) from error
    wire.greeted = True


async def _expects_tls(address: Address) -> bool:
    """Whether a server that closed a connection without a reply did so because it expects TLS."""
    if address.tls is not None or address.path:
        return False
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT):
            _, probe = await asyncio.open_connection(address.host, address.port, ssl=_lenient())
    except (OSError, EOFError) as error:
        return _answered_in_tls(error)
    probe.close()
    return True


class BlockingLink:
    """A connection for code without an event loop: one call at a time."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._socket: socket.socket | None = None
        self._greeted = False
        self._feed, self._gets = _parser()

    def call(self, words: Sequence[Word], timeout: float, what: str = "") -> Any:
        """Send the words and return the answer; an error of the server is raised. `what` names it for crash points."""
        (reply,) = self.call_all([words], timeout, what)
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def call_all(self, calls: Sequence[Sequence[Word]], timeout: float, what: str = "") -> list[Any]:
        """Send many commands at once; errors of the server are among the answers.

        As with `Link`, an answer of a replica ends the connection."""
        try:
            if self._socket is None:
                self._connect(min(timeout, CONNECT_TIMEOUT))
            replies = self._exchange(calls, timeout, what)
        except BaseException:
            self.close()
            raise
        if any(isinstance(reply, ReplyError) and classify(reply) is Trouble.ROLE for reply in replies):
            self.close()
        return replies

    def read(self, timeout: float) -> Any:
        """The next message of a subscription; after a TimeoutError the connection is as good as before."""
        return self._next(self._connected(), timeout)

    def interrupt(self) -> None:
        """End the connection while another thread may be reading from it: that read fails at once."""
        sock = self._socket
        if sock is not None:
            try:
                # `SSLSocket.shutdown` takes the TLS state from under the thread that reads.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
            except OSError:
                pass  # it has ended meanwhile

    def close(self) -> None:
        """End the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self, timeout: float) -> None:
        self._socket = self._opened(timeout)
        self._feed, self._gets = _parser()
        self._greeted = False
        self._greet(timeout)
        self._greeted = True

    def _greet(self, timeout: float) -> None:
        try:
            for words in (*self.address.greeting, _HELLO):
                (reply,) = self._exchange([words], timeout)
                _check(words, reply)
        except OSError as error:
            if _explains_itself(error):
                raise
            raise (WrongServer() if self._expects_tls() else NoReply(str(error))) from error

    def _expects_tls(self) -> bool:
        address = self.address
        if address.tls is not None or address.path:
            return False
        try:
            with socket.create_connection((address.host, address.port), _PROBE_TIMEOUT) as sock:
                _lenient().wrap_socket(sock).close()
        except (OSError, EOFError) as error:
            return _answered_in_tls(error)
        return True

    def _opened(self, timeout: float) -> socket.socket:
        address = self.address
        if address.path:
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(timeout)
            sock.connect(address.path)
            return sock
        sock = socket.create_connection((address.host, address.port), timeout)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return address.tls.wrap_socket(sock, server_hostname=address.host) if address.tls else sock

    def _exchange(self, calls: Sequence[Sequence[Word]], timeout: float, what: str = "") -> list[Any]:
        sock = self._connected()
        sock.settimeout(timeout)
        sock.sendall(b"".join(_packed(tuple(words)) for words in calls))
        if crash.at is not None:
            crash.at(f"sent:{what}")
        return [self._next(sock, timeout) for _ in calls]

    def _next(self, sock: socket.socket, timeout: float) -> Any:
        sock.settimeout(timeout)
        data = b""
        try:
            while (reply := self._gets()) is _NOT_YET:
                data = sock.recv(_READ_SIZE)
                if not data:
                    self.close()
                    raise LinkDown("the server closed the connection")
                self._feed(data)
        except hiredis.ProtocolError:
            raise _unreadable(data, greeted=self._greeted) from None
        return reply

    def _connected(self) -> socket.socket:
        if self._socket is None:
            raise LinkDown("not connected")
        return self._socket


def _parser() -> tuple[Callable[[bytes], Any], Callable[[], Any]]:
    reader = hiredis.Reader(replyError=ReplyError, notEnoughData=_NOT_YET)
    return reader.feed, reader.gets


def _check(words: tuple[Word, ...], reply: Any) -> None:
    """Raise an error of the greeting. Not every user may send the last command; then the reply shows a Redis, too."""
    if isinstance(reply, ReplyError) and (words is not _HELLO or _refuses_every_command(reply)):
        raise reply


def _refuses_every_command(error: ReplyError) -> bool:
    return error.word in ("NOAUTH", "DENIED") or "max number of clients" in str(error)


def _explains_itself(error: OSError) -> bool:
    return isinstance(error, TimeoutError) or classify(error) is Trouble.FATAL


def _unreadable(data: bytes, *, greeted: bool) -> ConnectionError:
    return LinkDown("the server sent what is not a reply") if greeted else WrongServer(data[:_SHOWN])


def _lenient() -> ssl.SSLContext:
    """For finding out whether a server speaks TLS: nothing is sent to it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _answered_in_tls(error: Exception) -> bool:
    return "ALERT" in tls_reason(error)
