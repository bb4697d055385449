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
from contextlib import suppress
from typing import Any, cast

import hiredis

from fennelq import crash
from fennelq.broker.connection import Address
from fennelq.broker.trouble import LinkDown as LinkDown
from fennelq.broker.trouble import NoReply, ReplyError, Trouble, WrongServer, classify, refuses_connection
from fennelq.broker.verb import Word

CONNECT_TIMEOUT = 5.0
_PROBE_TIMEOUT = 1.0
_REFUSED_WITHIN = 0.1
"""Seconds to listen before the greeting when the last connection was closed without a reply. A server that refuses a
connection says why, and closes it: a greeting that meets the closed connection makes that reply lost."""
_SHOWN = 40
_PING = b"PING\r\n"
_HANDSHAKE = (
    b"\x16\x03\x01\x0a\x00\x01\x00\x09\xfc\x03\x03"
    + bytes(32)
    + b"\x00\x00\x0c\xc0\x2b\xc0\x2f\xc0\x2c\xc0\x30\x00\x9c\x00\x2f\x01\x00\x09\xc7\x00\x15\x09\xc3"
    + bytes(0x9C3)
)
"""The first message of a TLS client: a TLS server replies with its own, or with an alert. It is padded so that the line
break in its length comes before any zero: to a Redis without TLS it begins with an unknown command."""
_READ_SIZE = 1 << 16
_NOT_YET = object()

# hiredis declares that it packs a tuple of one word, and says nothing of what comes out.
_packed: Callable[[tuple[Word, ...]], bytes] = cast("Any", hiredis).pack_command

Hear = Callable[[Any], None]


class Link:
    """A connection on an event loop. Calls are pipelined: any number may be under way, answers come in order.

    Cancelling a call abandons its answer and nothing else. A call that is not answered in time ends the
    connection, and with it every call under way: late answers must not be taken for those of other questions.

    An answer that shows that the server is a replica ends the connection as well. After a failover behind one
    name or one address the connection to the old primary is healthy, and only a new one leads to the new primary.
    """

    def __init__(
        self, address: Address, reconnected: Callable[[], None] = lambda: None, *, suspicious: bool = False
    ) -> None:
        """`reconnected` is called after every connection but the first. `suspicious` means that an earlier connection
        was closed without a reply: look for the reason."""
        self.address = address
        self._reconnected = reconnected
        self._connections = 0
        self._mute = suspicious
        self._wire: _Wire | None = None
        self._connecting: asyncio.Task[_Wire] | None = None

    @property
    def connected(self) -> bool:
        """Whether a call can be sent at once."""
        return self._wire is not None and self._wire.open

    @property
    def mute(self) -> bool:
        """Whether the server closed the last connection without a single reply."""
        return self._mute or (self._wire is not None and self._wire.mute)

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
            self._connecting = asyncio.create_task(_connected(self.address, suspicious=self.mute))
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
        wire.write(words)
        wire.hear = hear

    def drop(self) -> None:
        """End the connection, if there is one: the next call makes a new one."""
        if self._wire is not None:
            self._wire.abort(LinkDown("the server's role has changed"))

    def close(self) -> None:
        """End the connection, or the attempt to connect; calls under way end with LinkDown."""
        self._mute = self.mute
        if self._connecting is not None:
            self._connecting.cancel()
        if self._wire is not None:
            self._wire.abort(LinkDown("closed"))
            self._wire = None

    def _connect_ended(self, task: asyncio.Task[_Wire]) -> None:
        """Kept here and not by who asked: that one may have been cancelled meanwhile."""
        self._connecting = None
        if task.cancelled():
            return
        self._mute = isinstance(task.exception(), NoReply)
        if task.exception() is None:
            self._wire = task.result()
            self._connections += 1
            if self._connections > 1:
                self._reconnected()


class _Wire(asyncio.Protocol):
    """One connected socket: what is asked on it and what it answers. Never used again once it is down."""

    def __init__(self) -> None:
        self.hear: Hear | None = None
        self._heard = False
        self.mute = False
        """Whether the server closed the connection before its first reply."""
        self._asked: deque[asyncio.Future[Any]] = deque()
        self._transport: asyncio.Transport | None = None
        self._feed, self._gets = _parser()
        self._refusal: ReplyError | None = None
        self._end: Exception = LinkDown("not connected")
        self._ended = asyncio.Event()

    @property
    def open(self) -> bool:
        return self._transport is not None

    async def refusal(self, within: float) -> None:
        """Returns as soon as the server has refused the connection, at the latest after so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._ended.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        try:
            self._feed(data)
            if not self._heard:
                self._hear_first()
            while (reply := self._gets()) is not _NOT_YET:
                self._take(reply)
        except hiredis.ProtocolError:
            self.abort(_unreadable(data, heard=self._heard))

    def _hear_first(self) -> None:
        """A server that refuses a connection says why, perhaps before the first question, and closes it."""
        reply = self._gets()
        if reply is _NOT_YET:
            return
        self._heard = True
        if isinstance(reply, ReplyError) and (not self._asked or refuses_connection(reply)):
            self._refusal = reply
        self._take(reply)

    def _take(self, reply: Any) -> None:
        if self.hear is not None:
            self.hear(reply)
        elif self._asked:
            answer = self._asked.popleft()
            if not answer.done():
                answer.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self.mute = not self._heard
        why = str(exc) if exc else "the server closed the connection"
        down = NoReply(why) if self.mute else LinkDown(why)
        down.__cause__ = exc
        self.abort(down)

    def ask(self, words: Sequence[Word]) -> asyncio.Future[Any]:
        self.write(words)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked.append(answer)
        return answer

    def write(self, words: Sequence[Word]) -> None:
        if self._refusal is not None:
            # The server has said why it closes this connection, perhaps before anything listened.
            raise self._refusal
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

    def abort(self, why: LinkDown) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
            self._end = self._refusal or why
            self._ended.set()
        asked, self._asked = self._asked, deque()
        for answer in asked:
            if not answer.done():
                answer.set_exception(self._end)
        if self.hear is not None:
            hear, self.hear = self.hear, None
            hear(why)


async def _connected(address: Address, *, suspicious: bool) -> _Wire:
    """Connect and greet. `suspicious` means that the server closed the last connection without a reply."""
    wire = _Wire()
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            if suspicious and _tls_could_help(address) and _is_tls(await _reply_to(_HANDSHAKE, address)):
                raise WrongServer
            await _open(wire, address)
            if suspicious:
                await wire.refusal(_REFUSED_WITHIN)
            for words in address.greeting:
                reply = await wire.ask(words)
                if isinstance(reply, ReplyError):
                    raise reply
    except BaseException:
        wire.abort(LinkDown("could not connect"))
        raise
    return wire


async def _open(wire: _Wire, address: Address) -> None:
    loop = asyncio.get_running_loop()
    if address.path:
        await loop.create_unix_connection(lambda: wire, address.path)
    elif address.tls is None:
        await loop.create_connection(lambda: wire, address.host, address.port)
    else:
        await _open_tls(wire, address)


async def _open_tls(wire: _Wire, address: Address) -> None:
    """A Redis without TLS does not reply to a handshake, and waits for more: when it takes long, look for one."""
    loop = asyncio.get_running_loop()

    async def connect() -> None:
        await loop.create_connection(
            lambda: wire, address.host, address.port, ssl=address.tls, server_hostname=address.host
        )

    try:
        async with asyncio.timeout(_PROBE_TIMEOUT):
            await connect()
    except TimeoutError:
        if reply := await _reply_to(_PING, address):
            raise WrongServer(reply) from None
        await connect()


async def _reply_to(probe: bytes, address: Address) -> bytes:
    """How the server replies to these bytes on a connection of their own; empty when it does not."""
    with suppress(OSError):
        async with asyncio.timeout(_PROBE_TIMEOUT):
            reading, writing = await asyncio.open_connection(address.host, address.port)
            try:
                writing.write(probe)
                return await reading.read(_SHOWN)
            finally:
                writing.close()
    return b""


class BlockingLink:
    """A connection for code without an event loop: one call at a time."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._socket: socket.socket | None = None
        self._heard = False
        self._mute = False
        """Whether the server closed the last connection without a single reply."""
        self._feed, self._gets = _parser()

    def call(self, words: Sequence[Word], timeout: float, what: str = "") -> Any:
        """Send the words and return the answer; an error of the server is raised. `what` names it for crash points."""
        (reply,) = self.call_all([words], timeout, what)
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def call_all(self, calls: Sequence[Sequence[Word]], timeout: float, what: str = "") -> list[Any]:
        """Send many commands at once; errors of the server are among the answers.

        As with `Link`, an answer of a replica ends the connection, and one that refuses it does."""
        try:
            if self._socket is None:
                self._connect(min(timeout, CONNECT_TIMEOUT))
            replies = self._exchange(calls, timeout, what)
        except OSError as error:
            self._mute = self._socket is not None and not self._heard
            self.close()
            if self._mute and classify(error) is Trouble.CONNECTION and not isinstance(error, TimeoutError):
                raise self._without_reply(error) from error
            raise
        except BaseException:
            self.close()
            raise
        if any(isinstance(reply, ReplyError) and _ends_connection(reply) for reply in replies):
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
        self._heard = False
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
            return self._encrypted(address.tls, min(timeout, _PROBE_TIMEOUT))
        except TimeoutError:
            # As with `Link`.
            if reply := self._reply_to(_PING):
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
            reply = self._next(sock, _REFUSED_WITHIN)
            if isinstance(reply, ReplyError):
                raise reply

    def _without_reply(self, error: OSError) -> LinkDown:
        if _tls_could_help(self.address) and _is_tls(self._reply_to(_HANDSHAKE)):
            return WrongServer()
        return NoReply(str(error))

    def _reply_to(self, probe: bytes) -> bytes:
        with suppress(OSError), self._dialled(_PROBE_TIMEOUT) as sock:
            sock.sendall(probe)
            return sock.recv(_SHOWN)
        return b""

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
                    raise LinkDown("the server closed the connection")
                self._feed(data)
        except hiredis.ProtocolError:
            raise _unreadable(data, heard=self._heard) from None
        self._heard, self._mute = True, False
        return reply

    def _connected(self) -> socket.socket:
        if self._socket is None:
            raise LinkDown("not connected")
        return self._socket


def _parser() -> tuple[Callable[[bytes], Any], Callable[[], Any]]:
    reader = hiredis.Reader(replyError=ReplyError, notEnoughData=_NOT_YET)
    return reader.feed, reader.gets


def _unreadable(data: bytes, *, heard: bool) -> LinkDown:
    return LinkDown("the server sent what is not a reply") if heard else WrongServer(data[:_SHOWN])


def _tls_could_help(address: Address) -> bool:
    return address.tls is None and not address.path


def _is_tls(reply: bytes) -> bool:
    """Whether it begins with a handshake or an alert of TLS."""
    return reply[:2] in (b"\x16\x03", b"\x15\x03")


def _ends_connection(error: ReplyError) -> bool:
    return classify(error) is Trouble.ROLE or refuses_connection(error)
