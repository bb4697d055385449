"""Runs verbs and conversations on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar, cast
from weakref import WeakSet

from fennelq import crash
from fennelq.broker.connection import Address
from fennelq.broker.link import Link, OnMessage
from fennelq.broker.talk import Pause, Replies, Talk, Within
from fennelq.broker.trouble import ReplyError, Trouble, classify
from fennelq.broker.verb import Command, Step, Verb, Word

A = TypeVar("A")

ANSWER_TIMEOUT = 5.0
_SOON = 0.01


class Broker:
    """Runs verbs, on one pipelined connection. It retries nothing: errors of the server and of the connection reach the
    caller, and only the caller knows whether a repeated call is harmless.

    When a server becomes a replica, its subscriptions stay connected and receive nothing, without an error. So each
    time the command connection is made anew, the broker closes the subscriptions, and their owners open them again.
    """

    def __init__(self, address: Address, *, timeout: float = ANSWER_TIMEOUT) -> None:
        self.address, self._timeout = address, timeout
        self._link = Link(address, self._close_listening)
        self._doorbells: WeakSet[Link] = WeakSet()
        self._listening: WeakSet[Link] = WeakSet()
        self._latest: Link | None = None
        """The newest subscription, even if it could not connect: the next one must know whether it got a reply."""

    async def run(self, verb: Verb[A], within: float = ANSWER_TIMEOUT) -> A:
        """Send a verb and read its reply. A server that has forgotten the script receives its source."""
        within = min(within, self._timeout)
        if crash.at is not None:
            crash.at(f"before:{verb.script.name}")
        try:
            reply = await self._link.call(verb.by_sha(), within, verb.script.name)
        except Exception as error:
            if classify(error) is not Trouble.SCRIPT:
                raise
            reply = await self._link.call(verb.by_source(), within)
        if crash.at is not None:
            crash.at(f"answered:{verb.script.name}")
        return verb.read(reply)

    async def ask(self, command: Command[A], within: float = ANSWER_TIMEOUT) -> A:
        """Send a plain command and read its reply."""
        return command.read(await self._link.call(command.words, min(within, self._timeout)))

    async def run_all(self, verbs: Sequence[Verb[A]]) -> list[A]:
        """Send many verbs in one round trip."""
        return await asyncio.gather(*map(self.run, verbs))

    async def run_each(self, verbs: Sequence[Verb[A]]) -> list[A | BaseException]:
        """Send many verbs in one round trip. The error of a verb is among the replies."""
        return await asyncio.gather(*map(self.run, verbs), return_exceptions=True)

    async def converse(self, talk: Talk[A]) -> A:
        """Run a conversation: send each of its rounds once, in one round trip. Returns its value."""
        replies: Replies | None = None
        try:
            while True:
                asked = talk.send(replies)
                if isinstance(asked, Pause):
                    await asyncio.sleep(asked.seconds)
                    replies = None
                else:
                    replies = await self._replies(asked)
        except StopIteration as end:
            return cast("A", end.value)
        finally:
            talk.close()

    async def _replies(self, asked: Sequence[Step[Any]] | Within) -> Replies:
        steps, within = asked if isinstance(asked, Within) else (asked, ANSWER_TIMEOUT)
        if len(steps) != 1:
            # One call per step is still one round trip: the link sends all calls of one turn of the loop together.
            return await asyncio.gather(*(self._send(step, within) for step in steps), return_exceptions=True)
        try:
            return [await self._send(steps[0], within)]
        except Exception as error:
            return [error]

    def _send(self, step: Step[A], within: float) -> Coroutine[Any, Any, A]:
        return self.run(step, within) if isinstance(step, Verb) else self.ask(step, within)

    def doorbell(self) -> Doorbell:
        """Open another connection for blocking reads. On the command connection, other calls would wait behind them."""
        link = Link(self.address)
        self._doorbells.add(link)
        return Doorbell(self, link)

    async def listen(self, words: Sequence[Word], on_message: OnMessage) -> Link:
        """Open another connection that only listens, until it fails or the command connection is made anew."""
        if not self._link.connected:
            # The command connection comes first: if it were made later, it would close this one.
            await self._link.connect()
        link = self._latest = Link(self.address, suspicious=self._latest is not None and self._latest.mute)
        self._listening.add(link)
        await link.listen(words, on_message)
        return link

    async def close(self) -> None:
        """End every connection."""
        for link in (self._link, *self._doorbells, *self._listening):
            link.close()
        self._doorbells.clear()
        self._listening.clear()

    def distrust(self) -> None:
        """Connect anew with the next call, because another connection to this address has reached a replica."""
        self._link.drop()

    def _close_listening(self) -> None:
        for link in list(self._listening):
            link.close()


class Doorbell:
    """Blocks until something is sent to one of several streams, and can be woken from outside."""

    def __init__(self, broker: Broker, link: Link) -> None:
        self._broker, self._link = broker, link
        self._id: int | None = None
        self._waiting = False

    async def wait(self, words: Sequence[Word], block_ms: int, within: float = ANSWER_TIMEOUT) -> Any:
        """The reply to a blocking command, which may take `block_ms` and then `within` seconds."""
        if not self._link.connected:
            # The server gives each connection a new id.
            self._id = None
        self._waiting = True
        try:
            if self._id is None:
                self._id = int(await self._link.call(["CLIENT", "ID"], within))
            return await self._link.call(words, block_ms / 1000 + within)
        except ReplyError as error:
            if classify(error) is Trouble.ROLE:
                self._broker.distrust()
            raise
        finally:
            self._waiting = False

    async def wake(self) -> None:
        """Make a waiting `wait` return now, with an empty reply. Cancelling it would strand an entry that the server
        may have delivered to it already."""
        while self._waiting and not await self._unblocked():  # noqa: ASYNC110 - a server's state has no event
            # The server does not block yet: the connection is being made, or the command is on its way.
            await asyncio.sleep(_SOON)

    async def _unblocked(self) -> bool:
        if self._id is None or not self._link.connected:
            return False
        return await self._broker.ask(Command(["CLIENT", "UNBLOCK", self._id], bool))
