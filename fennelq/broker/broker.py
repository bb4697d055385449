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
from fennelq.broker.trouble import Trouble, classify
from fennelq.broker.verb import Command, Step, Verb, Word

A = TypeVar("A")

ANSWER_TIMEOUT = 5.0


class Broker:
    """Runs verbs, on one pipelined connection. It retries nothing: errors of the server and of the connection reach the
    caller, and only the caller knows whether a repeated call is harmless.

    When a server becomes a replica, its subscriptions stay connected and receive nothing, without an error. So each
    time the command connection is made anew, the broker closes the subscriptions, and their owners open them again.
    """

    def __init__(self, address: Address, *, timeout: float = ANSWER_TIMEOUT) -> None:
        self.address, self._timeout = address, timeout
        self._link = Link(address, self._close_listening)
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
        for link in (self._link, *self._listening):
            link.close()
        self._listening.clear()

    def _close_listening(self) -> None:
        for link in list(self._listening):
            link.close()
