"""The network between a client and a server, in the hands of the test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

from tests.kit.network import Choice, Counters, Losses, Mode, Network
from tests.kit.ports import HOST, Port

T = TypeVar("T")

HANDSHAKE = frozenset({"HELLO", "AUTH", "CLIENT", "SELECT"})
CONTROL_TIMEOUT = 10.0


class Proxy:
    """A TCP proxy on a port of its own, in front of the server at `upstream` (a `redis(s)://` URL).

    Every control method may be called from any thread, with or without an event loop, and its effect is
    complete when it returns: what the proxy had not passed on by then is subject to the new rule. The proxy
    lives in a thread of its own.

    `up`, `latency`, `refuse`, `blackhole` and `half` replace each other. Replies are lost whole and never
    from the middle of a conversation: after a lost one the connection stays silent, as with TCP, until its
    client gives it up or the proxy is `up` again, which cuts it.
    """

    def __init__(self, upstream: str) -> None:
        self._upstream = urlsplit(upstream)
        self._held_port = Port()
        self.port = self._held_port.number
        self._loop = asyncio.SelectorEventLoop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy-{self.port}", daemon=True)
        address = (self._upstream.hostname or HOST, self._upstream.port or 6379)
        self._network = Network(address, self._held_port)

    @property
    def url(self) -> str:
        """The upstream's URL, through this proxy."""
        credentials, at, _ = self._upstream.netloc.rpartition("@")
        return urlunsplit(self._upstream._replace(netloc=f"{credentials}{at}{HOST}:{self.port}"))

    @property
    def mode(self) -> Mode:
        return self._network.mode

    @property
    def counters(self) -> Counters:
        return self._network.counters

    # -- its life ----------------------------------------------------------------------------------

    def start(self) -> Self:
        """Begin to pass everything on."""
        self._thread.start()
        self.up()
        return self

    def close(self) -> None:
        """Cut everything and end the thread; raises what a `choice` of the test raised, if one did."""
        if self._thread.is_alive():
            self._do(self._network.shut_down())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CONTROL_TIMEOUT)
        self._loop.close()
        self._held_port.release()
        if self._network.failures:
            raise self._network.failures.pop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- the network's states ----------------------------------------------------------------------

    def up(self) -> None:
        """Everything passes at once: what a black hole held arrives, lost replies end their connections."""
        self._do(self._network.enter(Mode.UP))

    def latency(self, milliseconds: float) -> None:
        """Everything passes, this much later in each direction (a round trip takes twice as long)."""
        self._do(self._network.enter(Mode.UP, milliseconds / 1000))

    def refuse(self) -> None:
        """As after the server's death: open connections are reset, new ones refused."""
        self._do(self._network.enter(Mode.REFUSE))

    def blackhole(self) -> None:
        """Nothing passes in either direction and no end notices; `up()` delivers what was sent meanwhile.

        New connections are accepted (the kernel cannot be kept from it) and held like the others.
        """
        self._do(self._network.enter(Mode.BLACKHOLE))

    def half(self) -> None:
        """What clients send arrives; what the server sends is lost, without an error."""
        self._do(self._network.enter(Mode.HALF))

    def cut_all(self) -> int:
        """Reset every connection, once, and return how many; the state stays and new ones are welcome."""
        return self._do(self._network.cut_all())

    def lead_to(self, upstream: str) -> None:
        """New connections go to this URL from now on, as when a name or an address moves; open ones stay."""
        where = urlsplit(upstream)
        self._do(self._network.lead_to((where.hostname or HOST, where.port or 6379)))

    # -- single replies ----------------------------------------------------------------------------

    def drop_replies(
        self, choice: Choice | None = None, *, command: str | None = None, cut: bool = False
    ) -> None:
        """Let commands arrive and lose their replies, until the next `drop_…`, `up()` or other state.

        `command` restricts it to one command, `choice` to exchanges it is true for (it is called in the
        proxy's thread, once per candidate, in order). With neither, everything but a connection's first words
        (HELLO, AUTH, CLIENT, SELECT) is meant, so that clients can come back and lose the next reply. With
        `cut` the client's connection ends instead of staying silent, which spares the test a timeout.
        """
        self._do(self._network.lose(Losses(_chosen(choice, command), cut=cut)))

    def drop_reply(
        self, nth: int = 1, choice: Choice | None = None, *, command: str | None = None, cut: bool = False
    ) -> None:
        """Lose only the `nth`, from now, of the replies `drop_replies` with these arguments would lose."""
        self._do(self._network.lose(Losses(_chosen(choice, command), cut=cut, only=nth)))

    def _do(self, action: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(action, self._loop).result(CONTROL_TIMEOUT)


def _chosen(choice: Choice | None, command: str | None) -> Choice:
    if command is None:
        return choice or (lambda exchange: exchange.command not in HANDSHAKE)
    return lambda exchange: exchange.command == command.upper() and (choice is None or choice(exchange))
