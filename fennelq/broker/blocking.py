"""Says verbs to Redis without an event loop: for scripts, Django, threads, forked processes."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Self, TypeVar

from fennelq import crash
from fennelq.broker.broker import ANSWER_TIMEOUT
from fennelq.broker.connection import Address
from fennelq.broker.link import BlockingLink
from fennelq.broker.trouble import ReplyError, Trouble, classify
from fennelq.broker.verb import Command, Verb

A = TypeVar("A")


class BlockingBroker:
    """Runs verbs from any thread. After a fork the child opens connections of its own: its parent's are
    not to be talked on."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._idle: list[BlockingLink] = []

    def run(self, verb: Verb[A], timeout: float = ANSWER_TIMEOUT) -> A:
        """Say a verb and read its answer. A server that has forgotten the script is taught it."""
        return self.run_all([verb], timeout)[0]

    def run_all(self, verbs: Sequence[Verb[A]], timeout: float = ANSWER_TIMEOUT) -> list[A]:
        """Send many verbs in one round trip; raises the first error among the replies."""
        out: list[A] = []
        for reply in self.run_each(verbs, timeout):
            if isinstance(reply, ReplyError):
                raise reply
            out.append(reply)
        return out

    def run_each(self, verbs: Sequence[Verb[A]], timeout: float = ANSWER_TIMEOUT) -> list[A | ReplyError]:
        """Send many verbs in one round trip. Errors of the server are among the replies."""
        what = verbs[0].script.name if verbs else ""
        if crash.at is not None:
            crash.at(f"before:{what}")
        with self._link() as link:
            replies = link.call_all([verb.by_sha() for verb in verbs], timeout, what)
            forgotten = [place for place, reply in enumerate(replies) if _is_forgotten(reply)]
            if forgotten:
                taught = link.call_all([verbs[place].by_source() for place in forgotten], timeout)
                for place, reply in zip(forgotten, taught, strict=True):
                    replies[place] = reply
        if crash.at is not None:
            crash.at(f"answered:{what}")
        return [
            reply if isinstance(reply, ReplyError) else verb.read(reply)
            for verb, reply in zip(verbs, replies, strict=True)
        ]

    def ask(self, command: Command[A], timeout: float = ANSWER_TIMEOUT) -> A:
        """Say a plain command, which may block for less than `timeout`."""
        with self._link() as link:
            return command.read(link.call(command.words, timeout))

    def subscription(self, channel: str) -> Subscription:
        """A connection of its own that listens to a channel."""
        return Subscription(BlockingLink(self.address), channel)

    def close(self) -> None:
        """End every idle connection."""
        with self._lock:
            for link in self._idle:
                link.close()
            self._idle.clear()

    @contextmanager
    def _link(self) -> Generator[BlockingLink]:
        link = self._taken()
        try:
            yield link
        finally:
            self._give_back(link)

    def _taken(self) -> BlockingLink:
        if self._pid != os.getpid():
            # The lock may have been held by a thread that does not exist here.
            self._lock, self._idle, self._pid = threading.Lock(), [], os.getpid()
        with self._lock:
            return self._idle.pop() if self._idle else BlockingLink(self.address)

    def _give_back(self, link: BlockingLink) -> None:
        with self._lock:
            self._idle.append(link)


def _is_forgotten(reply: object) -> bool:
    return isinstance(reply, ReplyError) and classify(reply) is Trouble.SCRIPT


class Subscription:
    """Listens to one channel. Opening it again after trouble is harmless; what was said meanwhile is lost."""

    def __init__(self, link: BlockingLink, channel: str) -> None:
        self._link, self._channel = link, channel
        self._subscribed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close()

    def open(self, timeout: float = ANSWER_TIMEOUT) -> None:
        """Listen, if it does not already."""
        if not self._subscribed:
            self._link.call(["SUBSCRIBE", self._channel], timeout)
            self._subscribed = True

    def message(self, timeout: float) -> bytes | None:
        """The next message, or None when none comes in time or the connection is lost."""
        try:
            reply = self._link.read(max(timeout, 0.001))
        except TimeoutError:
            return None
        except OSError:
            self._subscribed = False
            return None
        return reply[2] if reply[0] == b"message" else None
