"""Receives messages for the waiting threads of this process, over one connection and one channel.

It uses no background thread, which would have to survive forks and to be stopped at the exit. Instead, one of the
waiting threads reads the connection and passes messages to the others. When its own message has arrived, another
waiting thread goes on reading.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable
from typing import Any, Self

from fennelq import clock
from fennelq.broker.connection import Address
from fennelq.broker.trouble import LinkDown, ReplyError, refuses_to_publish

REFUSED_FOR = 30.0
_names: dict[int, str] = {}


def process_name() -> str:
    """The name of this process in its channels. All its threads and event loops share it; a forked child gets a new
    one."""
    return _names.get(os.getpid()) or _names.setdefault(os.getpid(), os.urandom(9).hex())


class Inbox:
    """Messages on one channel, by topic: the text before the first line break."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._desks: dict[int, _Desk] = {}

    def wait_for(self, channel: str, *topics: str, newest: Iterable[str] = ()) -> Ticket:
        """A ticket for one waiting thread, to be used as a context manager. Of the topics in `newest`, only the newest
        message waits for the thread."""
        return Ticket(self._desk(), channel, topics, newest)

    def renew(self) -> None:
        """Make the connection anew: it may lead to a server that has become a replica and no longer publishes messages.
        Every waiting thread subscribes again."""
        self._desk().renew()

    @property
    def waiting(self) -> int:
        """How many threads wait for a message now: one of them reads the connection, the others sleep."""
        return self._desk().waiting

    def _desk(self) -> _Desk:
        # A fork copies connections, and locks that a thread of the parent may hold. The child makes its own.
        pid = os.getpid()
        desk = self._desks.get(pid) or self._desks.setdefault(pid, _Desk(self._address))
        if len(self._desks) > 1:
            for other in [known for known in list(self._desks) if known != pid]:
                self._desks.pop(other, None)
        return desk


class Ticket:
    """One thread that waits for messages of one topic or several."""

    def __init__(self, desk: _Desk, channel: str, topics: Iterable[str], newest: Iterable[str] = ()) -> None:
        self._newest = frozenset(topic.encode() for topic in newest)
        self.channel, self.topics = channel, {topic.encode() for topic in topics} | self._newest
        self.messages: deque[bytes] = deque()
        self.wakes = threading.Condition(desk.lock)
        self.subscription = 0
        """The number of the subscription when the ticket was opened. If the desk has another number now, the connection
        was lost in between, and perhaps a message with it."""
        self._desk = desk

    def __enter__(self) -> Self:
        self._desk.enter(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._desk.leave(self)

    def open(self, timeout: float) -> None:
        """Subscribe, unless another thread has done so. Earlier messages are lost, so look at the state afterwards.

        Raises ReplyError when the server refuses the subscription, OSError when it cannot be reached.
        """
        self._desk.open(self, timeout)

    def receive(self, topic: bytes, message: bytes) -> None:
        """A message has arrived; called with the lock of the desk."""
        if topic in self._newest:
            self.messages = deque(one for one in self.messages if one.partition(b"\n")[0] != topic)
        self.messages.append(message)
        self.wakes.notify()

    def message(self, timeout: float) -> bytes | None:
        """The next message; None when none arrives in time, or when the connection is lost and must be opened again."""
        return self._desk.message(self, timeout)


class _Desk:
    """The connection of one process, and the threads that wait for its messages."""

    def __init__(self, address: Address) -> None:
        self.lock = threading.Lock()
        from fennelq.broker.blocking_link import BlockingLink

        self._link = BlockingLink(address)
        self._tickets: dict[bytes, set[Ticket]] = {}
        self._sleeping: set[Ticket] = set()
        self._busy = False
        """Whether a thread is using the connection. It does so without holding the lock, which the others need."""
        self._subscribed = False
        self._subscriptions = 0
        self._refused: tuple[float, str] | None = None

    @property
    def waiting(self) -> int:
        return len(self._sleeping) + (self._busy and self._subscribed)

    def enter(self, ticket: Ticket) -> None:
        with self.lock:
            for topic in ticket.topics:
                self._tickets.setdefault(topic, set()).add(ticket)

    def leave(self, ticket: Ticket) -> None:
        with self.lock:
            for topic in ticket.topics:
                tickets = self._tickets[topic]
                tickets.discard(ticket)
                if not tickets:
                    del self._tickets[topic]
            if not self._tickets:
                # The connection stays open, but no thread reads it. The next thread subscribes again, and skips the
                # messages that arrived in between.
                self._subscribed = False

    def renew(self) -> None:
        with self.lock:
            self._lost()
            if self._busy:
                self._link.interrupt()
            else:
                self._link.close()

    def open(self, ticket: Ticket, timeout: float) -> None:
        deadline = clock.monotonic() + timeout
        with self.lock:
            try:
                if self._is_open(ticket, deadline):
                    return
                self._busy = True
                self._subscriptions += 1
                ticket.subscription = self._subscriptions
            finally:
                self._pass_on()
        self._subscribe(ticket, deadline)

    def message(self, ticket: Ticket, timeout: float) -> bytes | None:
        deadline = clock.monotonic() + timeout
        with self.lock:
            try:
                while not ticket.messages and self._is_current(ticket):
                    if not self._busy:
                        self._busy = True
                        self._read_for(ticket, deadline)
                        break
                    if not self._sleep(ticket, deadline):
                        break
            finally:
                # Even when this thread is interrupted: it may be the thread that was woken to go on reading.
                self._pass_on()
            return ticket.messages.popleft() if ticket.messages else None

    # Using the connection, which one thread does at a time

    def _subscribe(self, ticket: Ticket, deadline: float) -> None:
        refused: ReplyError | None = None
        confirmed = False
        try:
            reply = self._link.call(["SUBSCRIBE", ticket.channel], max(deadline - clock.monotonic(), 0.001))
            while reply[0] != b"subscribe":
                # This message arrived while no thread was waiting: skip it.
                reply = self._read(deadline)
            confirmed = True
        except ReplyError as error:
            refused = error if refuses_to_publish(error) else None
            raise
        finally:
            with self.lock:
                self._busy = False
                self._refused = None if refused is None else (clock.monotonic(), str(refused))
                # Otherwise another thread has called `renew` in between: this connection is the old one.
                self._subscribed = confirmed and ticket.subscription == self._subscriptions
                if not self._subscribed:
                    self._link.close()
                self._wake_all()

    def _read_for(self, ticket: Ticket, deadline: float) -> None:
        """Read messages and pass them on until one is for this ticket, the time is over, or the connection is lost."""
        alive = False
        self.lock.release()
        try:
            while not ticket.messages:
                self._hand_out(self._read(deadline))
            alive = True
        except TimeoutError:
            alive = True
        except OSError:
            pass
        finally:
            self.lock.acquire()
            self._busy = False
            if ticket.subscription != self._subscriptions:
                self._link.close()
            elif not alive:
                self._link.close()
                self._lost()

    def _read(self, deadline: float) -> Any:
        # Not zero: a socket with a timeout of zero does not block, and raises another error than a TimeoutError.
        reply = self._link.read(max(deadline - clock.monotonic(), 0.001))
        if isinstance(reply, ReplyError):
            raise LinkDown(str(reply))
        return reply

    def _hand_out(self, reply: Any) -> None:
        if reply[0] != b"message":
            return
        topic = reply[2].partition(b"\n")[0]
        with self.lock:
            for ticket in self._tickets.get(topic, ()):
                ticket.receive(topic, reply[2])

    # With the lock held

    def _is_open(self, ticket: Ticket, deadline: float) -> bool:
        """Whether another thread has subscribed; waits for one that is subscribing. Raises its error after a
        refusal."""
        while not self._subscribed and self._busy:
            if not self._sleep(ticket, deadline):
                raise TimeoutError("not subscribed in time")
        if not self._subscribed and clock.monotonic() >= deadline:
            # Waiting for the other thread's attempt has used up the time.
            raise TimeoutError("not subscribed in time")
        if self._subscribed:
            ticket.subscription = self._subscriptions
        elif self._refused is not None and clock.monotonic() - self._refused[0] < REFUSED_FOR:
            raise ReplyError(self._refused[1])
        return self._subscribed

    def _is_current(self, ticket: Ticket) -> bool:
        """Whether the ticket has received, or will receive, every message since it was opened."""
        return self._subscribed and ticket.subscription == self._subscriptions

    def _sleep(self, ticket: Ticket, deadline: float) -> bool:
        """Wait until another thread wakes this one; False when the time is over."""
        left = deadline - clock.monotonic()
        if left <= 0:
            return False
        self._sleeping.add(ticket)
        try:
            ticket.wakes.wait(left)
        finally:
            self._sleeping.discard(ticket)
        return True

    def _pass_on(self) -> None:
        """Wake another thread to read the connection, when this one stops reading."""
        if not self._busy:
            for ticket in self._sleeping:
                ticket.wakes.notify()
                break

    def _lost(self) -> None:
        self._subscribed = False
        self._subscriptions += 1
        self._wake_all()

    def _wake_all(self) -> None:
        for ticket in self._sleeping:
            ticket.wakes.notify()
