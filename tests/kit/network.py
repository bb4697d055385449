"""The inside of a proxy: connections, what passes over them and when, and what gets lost.

All of it runs on one event loop, the proxy's, so a change of state always falls between two packets.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

from tests.kit.ports import Port
from tests.kit.resp import Framer, is_push, words

CHUNK = 65536
LANE_CHUNKS = 64  # what may be under way in one direction before the sender is held up


class Mode(Enum):
    UP = "up"
    REFUSE = "refuse"
    BLACKHOLE = "blackhole"
    HALF = "half"


@dataclass(frozen=True)
class Exchange:
    """A command and the server's answer to it, as they crossed the proxy."""

    request: bytes
    reply: bytes

    @cached_property
    def words(self) -> tuple[bytes, ...]:
        """The command and its arguments; empty for what no command asked for (messages of a subscription)."""
        return words(self.request) if self.request else ()

    @property
    def command(self) -> str:
        """`XADD`, `EVALSHA`…, in capitals, as sent: redis-py's `incr()` for one sends INCRBY."""
        return self.words[0].decode(errors="replace").upper() if self.words else ""


Choice = Callable[[Exchange], bool]


@dataclass(frozen=True)
class Counters:
    """What has happened since the proxy was made."""

    connections: int
    """Connections accepted."""
    open: int
    """Connections that exist now."""
    sent: int
    """Bytes passed on from clients to the server."""
    received: int
    """Bytes passed on from the server to clients."""
    dropped: int
    """Whole replies that were lost on purpose."""


class Losses:
    """Which replies get lost, and how the client learns of it."""

    def __init__(self, choice: Choice, *, cut: bool, only: int | None = None) -> None:
        self._choice = choice
        self._only = only
        self._seen = 0
        self.cut = cut

    def meant(self, exchange: Exchange) -> bool:
        if not self._choice(exchange):
            return False
        self._seen += 1
        return self._only is None or self._seen == self._only


class Network:
    """All connections of one proxy, and the state they are in."""

    def __init__(self, upstream: tuple[str, int], front: Port) -> None:
        self.upstream = upstream
        self.mode = Mode.REFUSE
        self.losses: Losses | None = None
        self.failures: list[BaseException] = []
        self.sent = self.received = self.dropped = self._connections = 0
        self._front = front
        self._listener: socket.socket | None = None
        self._links: set[Link] = set()
        self._passable = asyncio.Event()
        self._latency = 0.0

    @property
    def counters(self) -> Counters:
        return Counters(self._connections, len(self._links), self.sent, self.received, self.dropped)

    async def enter(self, mode: Mode, latency: float = 0.0) -> None:
        self.mode, self._latency, self.losses = mode, latency, None
        if mode is Mode.BLACKHOLE:
            self._passable.clear()
        else:
            self._passable.set()
        if mode is Mode.REFUSE:
            self._stop_listening()
            await self._cut(self._links)
        else:
            self._listen()
        if mode is Mode.UP:
            await self._cut({link for link in self._links if link.silent})

    async def lead_to(self, upstream: tuple[str, int]) -> None:
        self._accept()  # for their clients, those in the backlog are connected to the old one
        self.upstream = upstream

    async def lose(self, losses: Losses) -> None:
        self.losses = losses

    async def cut_all(self) -> int:
        self._accept()  # for their clients, those in the backlog are connected
        return await self._cut(self._links)

    async def shut_down(self) -> None:
        self._stop_listening()
        await self._cut(self._links)

    async def passage(self, came: float) -> None:
        """Returns when what came in at that time may go on; nothing may be awaited before passing it on."""
        loop = asyncio.get_running_loop()
        while True:
            if (remaining := came + self._latency - loop.time()) > 0:
                await asyncio.sleep(remaining)
            elif not self._passable.is_set():
                await self._passable.wait()
            else:
                return

    def forget(self, link: Link, failure: BaseException | None) -> None:
        self._links.discard(link)
        if failure is not None:
            self.failures.append(failure)

    def _listen(self) -> None:
        if self._listener is None:
            self._listener = self._front.listen()
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()  # resets the connections in its backlog
            self._listener = None

    def _accept(self) -> None:
        with suppress(BlockingIOError):
            while self._listener is not None:
                client, _ = self._listener.accept()
                client.setblocking(False)
                self._connections += 1
                self._links.add(Link(self, client))

    async def _cut(self, links: set[Link]) -> int:
        cut = list(links)
        for link in cut:
            link.cut()
        await asyncio.gather(*(link.ended() for link in cut))
        return len(cut)


class Link:
    """One client's connection and the one to the server that belongs to it."""

    def __init__(self, network: Network, client: socket.socket) -> None:
        self.silent = False  # a reply was lost: nothing may follow it
        self._network = network
        self._client = client
        self._writers: list[asyncio.StreamWriter] = []
        self._requests, self._replies = Framer(), Framer()
        self._unanswered: deque[bytes] = deque()
        self._life = asyncio.get_running_loop().create_task(self._live())
        self._life.add_done_callback(self._buried)

    def cut(self) -> None:
        """Reset both connections; what was under way is lost."""
        for writer in self._writers:
            reset_on_close(writer.get_extra_info("socket"))
            writer.transport.abort()
        if not self._writers:
            reset_on_close(self._client)
        self._life.cancel()

    async def ended(self) -> None:
        """Returns when both sockets are closed."""
        await asyncio.wait([self._life])
        await asyncio.sleep(0)  # an aborted transport closes its socket one turn of the loop later

    async def _live(self) -> None:
        try:
            # A black hole holds the first packet, too.
            await self._network.passage(asyncio.get_running_loop().time())
            near_in, near_out = await self._connect(sock=self._client)
            far_in, far_out = await self._connect(*self._network.upstream)
            await first_to_end(
                self._carry(near_in, far_out, self._pass_requests),
                self._carry(far_in, near_out, self._pass_replies),
            )
        except OSError:
            pass  # one side went away: so does the other

    async def _connect(
        self, *address: Any, **given: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*address, **given)
        self._writers.append(writer)
        return reader, writer

    async def _carry(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        pass_on: Callable[[bytes, asyncio.StreamWriter], bool],
    ) -> None:
        """Move one direction's bytes, as late as the network has them, until `pass_on` has had enough."""
        lane: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(LANE_CHUNKS)
        filling = asyncio.create_task(fill(lane, source))
        try:
            while True:
                came, data = await lane.get()
                await self._network.passage(came)
                if not pass_on(data, sink):
                    return
                await sink.drain()
        finally:
            filling.cancel()

    def _pass_requests(self, data: bytes, server: asyncio.StreamWriter) -> bool:
        if not data:
            return False
        self._unanswered.extend(self._requests.feed(data))
        self._network.sent += len(data)
        server.write(data)
        return True

    def _pass_replies(self, data: bytes, client: asyncio.StreamWriter) -> bool:
        if not data:
            self.silent = self.silent or self._network.mode is Mode.HALF
            return self.silent  # then even the end is lost
        passed, go_on = list[bytes](), True
        for reply in self._replies.feed(data):
            if go_on and not self._is_lost(reply):
                passed.append(reply)
            else:
                self._network.dropped += 1
                self.silent = True
                go_on = go_on and not self._losing_cuts
        self._network.received += sum(map(len, passed))
        client.write(b"".join(passed))
        return go_on

    def _is_lost(self, reply: bytes) -> bool:
        request = b"" if is_push(reply) or not self._unanswered else self._unanswered.popleft()
        if self.silent or self._network.mode is Mode.HALF:
            return True
        losses = self._network.losses
        return losses is not None and losses.meant(Exchange(request, reply))

    @property
    def _losing_cuts(self) -> bool:
        return self._network.losses is not None and self._network.losses.cut

    def _buried(self, life: asyncio.Task[None]) -> None:
        # Not in a `finally` of `_live`: a task that is cancelled before its first step never gets there.
        for writer in self._writers:
            writer.close()
        if not self._writers:
            self._client.close()
        self._network.forget(self, None if life.cancelled() else life.exception())


async def fill(lane: asyncio.Queue[tuple[float, bytes]], source: asyncio.StreamReader) -> None:
    """Put everything that arrives into the lane with its time; an empty piece is the end, however it came."""
    loop = asyncio.get_running_loop()
    data = b"?"
    while data:
        try:
            data = await source.read(CHUNK)
        except OSError:
            data = b""
        await lane.put((loop.time(), data))


async def first_to_end(*directions: Coroutine[Any, Any, None]) -> None:
    """Run both until one of them ends, end the other, raise what went wrong."""
    tasks = [asyncio.create_task(direction) for direction in directions]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome


def reset_on_close(connection: Any) -> None:
    """Closing it will send a reset instead of a polite end."""
    with suppress(OSError):  # closed already
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
