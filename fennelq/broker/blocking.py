"""Runs verbs and conversations without an event loop: for scripts, Django, threads, forked processes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar, cast

from fennelq import crash
from fennelq.broker.blocking_link import BlockingLink
from fennelq.broker.broker import ANSWER_TIMEOUT
from fennelq.broker.connection import Address
from fennelq.broker.inbox import Inbox
from fennelq.broker.talk import Pause, Replies, Talk, Within
from fennelq.broker.trouble import ReplyError, Trouble, classify
from fennelq.broker.verb import Command, Step, Verb

A = TypeVar("A")


class BlockingBroker:
    """Runs verbs from any thread. After a fork the child opens connections of its own: on a connection that two
    processes share, each could read the replies of the other.

    When one connection fails or reaches a replica, the others are closed as well. An idle one may lead to a server that
    has become a replica, and a subscription to such a server stays connected and receives nothing.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.inbox = Inbox(address)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._idle: list[_Pooled] = []
        self._era = self._proven = 0
        """`_era` counts the failures so far. `_proven` is the value of `_era` at which a call last succeeded after a
        failure. A connection that was made before the last failure is closed when its caller returns it. The first
        success after a failure shows that new connections work again: then the subscription is made anew."""

    def run(self, verb: Verb[A], timeout: float = ANSWER_TIMEOUT) -> A:
        """Send a verb and read its reply. A server that has forgotten the script receives its source."""
        return self.run_all([verb], timeout)[0]

    def run_all(self, verbs: Sequence[Verb[A]], timeout: float = ANSWER_TIMEOUT) -> list[A]:
        """Send many verbs in one round trip; raises the first error among the replies."""
        return self.send_all(verbs, timeout)

    def send_all(self, steps: Sequence[Step[A]], timeout: float = ANSWER_TIMEOUT) -> list[A]:
        """Send many verbs or commands in one round trip; raises the first error among the replies."""
        out: list[A] = []
        for reply in self.run_each(steps, timeout):
            if isinstance(reply, Exception):
                raise reply
            out.append(reply)
        return out

    def run_each(self, steps: Sequence[Step[A]], timeout: float = ANSWER_TIMEOUT) -> list[A | Exception]:
        """Send many verbs or commands in one round trip. The error of a step is among the replies. Raises errors
        of the connection, and errors that show that another server is needed."""
        name = steps[0].name if steps else ""
        if crash.at is not None:
            crash.at(f"before:{name}")
        with self._link() as link:
            replies = link.call_all([step.by_sha() for step in steps], timeout, name)
            forgotten = [place for place, reply in enumerate(replies) if _is_forgotten(reply)]
            if forgotten:
                repeated = link.call_all([steps[place].by_source() for place in forgotten], timeout)
                for place, reply in zip(forgotten, repeated, strict=True):
                    replies[place] = reply
            for reply in replies:
                if isinstance(reply, ReplyError) and classify(reply) is Trouble.ROLE:
                    raise reply
        if crash.at is not None:
            crash.at(f"answered:{name}")
        return [_read(step, reply) for step, reply in zip(steps, replies, strict=True)]

    def converse(self, talk: Talk[A]) -> A:
        """Run a conversation: send each of its rounds once, in one round trip. Returns its value."""
        replies: Replies | None = None
        try:
            while True:
                asked = talk.send(replies)
                if isinstance(asked, Pause):
                    time.sleep(asked.seconds)
                    replies = None
                else:
                    replies = self._replies(asked)
        except StopIteration as end:
            return cast("A", end.value)
        finally:
            talk.close()

    def _replies(self, asked: Sequence[Step[Any]] | Within) -> Replies:
        steps, within = asked if isinstance(asked, Within) else (asked, ANSWER_TIMEOUT)
        try:
            return self.run_each(steps, min(within, ANSWER_TIMEOUT))
        except Exception as error:
            return [error] * len(steps)

    def ask(self, command: Command[A], timeout: float = ANSWER_TIMEOUT) -> A:
        """Send a plain command, which may block for less than `timeout`, and read its reply."""
        with self._link() as link:
            return command.read(link.call(command.words, timeout))

    def close(self) -> None:
        """Close every idle connection."""
        self._close_idle()
        self.inbox.renew()

    @contextmanager
    def _link(self) -> Generator[BlockingLink]:
        pooled = self._take()
        try:
            yield pooled.link
        except Exception as error:
            if classify(error) in (Trouble.CONNECTION, Trouble.ROLE):
                self._failed(pooled)
            raise
        else:
            if self._proven != self._era == pooled.era:
                self._proven = self._era
                self.inbox.renew()
        finally:
            self._give_back(pooled)

    def _take(self) -> _Pooled:
        if self._pid != os.getpid():
            # After a fork: a thread of the parent may have held the lock. It does not exist here, so it cannot release
            # it.
            self._lock, self._idle, self._pid = threading.Lock(), [], os.getpid()
        with self._lock:
            return self._idle.pop() if self._idle else _Pooled(BlockingLink(self.address), self._era)

    def _give_back(self, pooled: _Pooled) -> None:
        with self._lock:
            if pooled.era == self._era:
                self._idle.append(pooled)
                return
        pooled.link.close()

    def _failed(self, pooled: _Pooled) -> None:
        with self._lock:
            if pooled.era != self._era:
                return
            self._era += 1
        self._close_idle()

    def _close_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for pooled in idle:
            pooled.link.close()


def _read(step: Step[Any], reply: Any) -> Any:
    if isinstance(reply, ReplyError):
        return reply
    try:
        return step.read(reply)
    except Exception as error:  # the error of one step must not lose the replies of the others
        return error


def _is_forgotten(reply: object) -> bool:
    return isinstance(reply, ReplyError) and classify(reply) is Trouble.SCRIPT


class _Pooled(NamedTuple):
    """A connection, and the number of failures when it was made."""

    link: BlockingLink
    era: int
