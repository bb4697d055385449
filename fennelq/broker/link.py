"""A connection to one server on an event loop. `blocking_link` has the connection for code without an event loop.

A link sends a command once and never retries it: a retry after a lost reply could run a command twice. It uses hiredis
on a bare transport, which takes half the time of redis-py's asyncio connection (docs/adr/0002).
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, cast

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
from fennelq.broker.trouble import LinkDown as LinkDown
from fennelq.broker.trouble import NoReply, ReplyError, Trouble, WrongServer, classify, refuses_connection
from fennelq.broker.verb import Word

OnMessage = Callable[[Any], None]


class Link:
    """A connection on an event loop. Calls are pipelined: any number may be under way, replies come in order.

    Cancelling a call abandons its reply and nothing else. A call that times out ends the connection, and with it every
    call under way: replies have no ids, so a late one would be taken for the reply to the next call.

    A reply that shows that the server is a replica ends the connection as well. After a failover, the connection to the
    old primary still works, and only a new connection to the same name or address leads to the new primary.
    """

    def __init__(
        self, address: Address, reconnected: Callable[[], None] = lambda: None, *, suspicious: bool = False
    ) -> None:
        """The link calls `reconnected` after every connection except the first. `suspicious` means that the server
        closed an earlier connection without a reply: then `connect` looks for the reason."""
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
        """Whether the server closed the last connection without any reply."""
        return self._mute or (self._wire is not None and self._wire.mute)

    async def call(self, words: Sequence[Word], timeout: float, what: str = "") -> Any:
        """Send a command and return its reply; raises an error of the server. `what` names it for crash points."""
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
                down = LinkDown(f"the server is a replica: {reply}")
                down.__cause__ = reply
                wire.abort(down)
            raise reply
        return reply

    async def connect(self) -> _Wire:
        """Connect and send the greeting, once for all calls that wait for it."""
        if self._connecting is None:
            suspicious = self.mute
            self._connecting = asyncio.create_task(_connected(self.address, suspicious=suspicious))
            self._connecting.add_done_callback(partial(self._connect_ended, suspicious=suspicious))
        connecting = self._connecting
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            if connecting.cancelled():
                raise LinkDown("closed while connecting") from None
            raise

    async def listen(self, words: Sequence[Word], on_message: OnMessage) -> None:
        """Make this a connection that only listens: `on_message` gets every message, and at the end a LinkDown."""
        wire = await self.connect()
        wire.write(words)
        wire.on_message = on_message

    def post(self, words: Sequence[Word]) -> None:
        """Send a command on a connection that listens: `on_message` gets its reply. Without a connection it does
        nothing."""
        if self._wire is not None and self._wire.open:
            self._wire.write(words)

    def drop(self) -> None:
        """End the connection, if it is open. The next call makes a new one."""
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

    def _connect_ended(self, task: asyncio.Task[_Wire], *, suspicious: bool) -> None:
        """Store the new connection. `connect` does not, because all its callers may have been cancelled."""
        self._connecting = None
        if task.cancelled():
            return
        # An attempt that has looked for a reason in vain is followed by one that does not look. Looking takes time, and
        # on a network that cuts connections soon after they are made, no attempt that looks would succeed.
        self._mute = isinstance(task.exception(), NoReply) and not suspicious
        if task.exception() is None:
            self._wire = task.result()
            self._connections += 1
            if self._connections > 1:
                self._reconnected()


class _Wire(asyncio.Protocol):
    """One connected socket: the commands sent on it and their replies. After its end it is not used again."""

    def __init__(self) -> None:
        self.on_message: OnMessage | None = None
        self._written = self._replied = False
        self._held: list[bytes] = []
        """What was to be written between the first command and its reply. A write on a connection that the server has
        refused fails, and asyncio then closes it without reading the reason."""
        self.mute = False
        """Whether the server closed the connection before its first reply."""
        self._asked: deque[asyncio.Future[Any]] = deque()
        self._transport: asyncio.Transport | None = None
        self._feed, self._gets = parser()
        self._refusal: ReplyError | None = None
        self._end: Exception = LinkDown("not connected")
        self._ended = asyncio.Event()

    @property
    def open(self) -> bool:
        return self._transport is not None

    async def refusal(self, within: float) -> None:
        """Returns when the server has refused the connection, or after `within` seconds."""
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
            if not self._replied:
                self._take_first()
            while (reply := self._gets()) is not NOT_YET:
                self._take(reply)
        except ProtocolError:
            self.abort(unreadable(data, replied=self._replied))

    def _take_first(self) -> None:
        """Take the first reply. A server that refuses a connection sends the reason, perhaps before the first command,
        and then closes the connection. The reason is kept, because it explains the end of the connection."""
        reply = self._gets()
        if reply is NOT_YET:
            return
        self._replied = True
        if isinstance(reply, ReplyError) and (not self._written or refuses_connection(reply)):
            self._refusal = reply
        elif self._held and self._transport is not None:
            self._transport.write(b"".join(self._held))
        self._held.clear()
        self._take(reply)

    def _take(self, reply: Any) -> None:
        if self.on_message is not None:
            self.on_message(reply)
        elif self._asked:
            answer = self._asked.popleft()
            if not answer.done():
                answer.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self.mute = not self._replied
        why = str(exc) if exc else "the server closed the connection"
        down = NoReply(why) if self.mute else LinkDown(why)
        down.__cause__ = exc
        self.abort(down)

    def ask(self, words: Sequence[Word]) -> asyncio.Future[Any]:
        self.write(words)
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked.append(reply)
        return reply

    def write(self, words: Sequence[Word]) -> None:
        if self._refusal is not None:
            # The server has refused this connection. The reason may have arrived before any call was waiting for it.
            raise self._refusal
        if self._transport is None:
            raise self._end
        data = packed(words)
        if self._written and not self._replied:
            self._held.append(data)
        else:
            self._written = True
            self._transport.write(data)

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
        if self.on_message is not None:
            on_message, self.on_message = self.on_message, None
            on_message(why)


async def _connected(address: Address, *, suspicious: bool) -> _Wire:
    """Connect and send the greeting. `suspicious`: the server closed the last connection without a reply."""
    wire = _Wire()
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            if suspicious and tls_could_help(address) and is_tls(await _reply_to(TLS_HELLO, address)):
                raise WrongServer
            await _open(wire, address)
            if suspicious:
                await wire.refusal(REFUSED_WITHIN)
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
    """Connect with TLS. A Redis without TLS does not reply to a handshake, because it waits for more bytes. So after a
    timeout, test whether the server replies to a PING without TLS."""
    loop = asyncio.get_running_loop()

    async def connect() -> None:
        await loop.create_connection(
            lambda: wire, address.host, address.port, ssl=address.tls, server_hostname=address.host
        )

    try:
        async with asyncio.timeout(PROBE_TIMEOUT):
            await connect()
    except TimeoutError:
        if reply := await _reply_to(PING, address):
            raise WrongServer(reply) from None
        await connect()


async def _reply_to(probe: bytes, address: Address) -> bytes:
    """The reply of the server to these bytes, on another connection; empty when it does not reply."""
    with suppress(OSError):
        async with asyncio.timeout(PROBE_TIMEOUT):
            reading, writing = await asyncio.open_connection(address.host, address.port)
            try:
                writing.write(probe)
                return await reading.read(SHOWN)
            finally:
                writing.close()
    return b""
