"""Receives messages on which an executor should act at once: a job has arrived or is due, a schedule has changed, a run
is to stop.

A lost message only delays that until the executor looks by itself, so messages are neither repeated nor stored.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from fennelq import clock, log
from fennelq.broker.dispatch import pages
from fennelq.broker.keys import AppKeys, queue_keys, wake_channel
from fennelq.broker.link import Link, LinkDown
from fennelq.broker.trouble import ReplyError
from fennelq.worker.bus import (
    BellConnected,
    CancelRequested,
    HandOverWaits,
    JobArrived,
    JobDue,
    MessagesArrive,
    QuestionAsked,
    RoutingChanged,
    RunOutrun,
    SchedulesChanged,
)
from fennelq.worker.duties.service import Service
from fennelq.worker.outage import LogThrottle
from fennelq.worker.state import State

_LOOK_EVERY = 5.0
_RETRY_EVERY = 30.0
_REPLY_WITHIN = 2.0
_AT_ONCE = 500
"""Subscriptions sent before other work of the loop gets a turn."""


_logger = log.get("fennelq.worker")


class Listener(Service):
    """Keeps a connection for messages: one channel of the app, one for questions of people to this executor, and one
    per queue, the executor's bell there.

    Except for the first one, they are sharded channels, so that on Redis Cluster a message does not go to every server.
    """

    name = "listener"

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._app_channel = wake_channel(state.namespace).encode()
        self._questions = AppKeys(state.namespace).questions(state.name).encode()
        self._asks_for_questions = False
        """Whether it has sent the subscription to them."""
        self._questions_refused = False
        self._queue_of: dict[bytes, str] = {}
        """The bells to which this executor has subscribed or is about to."""
        self._left: set[str] = set()
        """Queues that it does not serve any more, and whose bells it has not left yet."""
        self._connected: list[str] = []
        """Queues whose subscription was confirmed since the last turn of the loop."""
        self._link: Link | None = None
        self._refused = False
        """Whether the server has refused a subscription since it was last sent."""
        self._retry_at = 0.0
        self._pinged: float | None = None
        """When a PING was sent after which the server has sent nothing."""
        self._log = LogThrottle("listening")
        state.bus.subscribe(RoutingChanged, self._leave)

    async def tick(self) -> float:
        """Subscribe to what is missing: everything, when the connection was lost."""
        self._check_connection()
        if self._link is None or not self._link.connected:
            self._lost()
            self._link = await self._state.broker.listen(["SUBSCRIBE", self._app_channel], self._on_message)
        elif self._refused and clock.monotonic() >= self._retry_at:
            self._retry(self._link)
        self._unsubscribe()
        await self._subscribe(self._link)
        self._take_questions(self._link)
        return _LOOK_EVERY

    def _check_connection(self) -> None:
        """Close a connection on which the server has not replied to the last PING. Otherwise jobs would wake this
        executor in vain, until TCP notices that the connection is dead."""
        if self._link is not None and self._link.connected:
            now = clock.monotonic()
            if self._pinged is None:
                self._pinged = now
                self._link.post(["PING"])
            elif now - self._pinged >= _REPLY_WITHIN:  # a tick may follow the last one at once
                self._link.close()

    def _retry(self, link: Link) -> None:
        """Send the refused subscriptions again, from time to time: the permissions may have changed."""
        self._refused, self._retry_at = False, clock.monotonic() + _RETRY_EVERY
        if not self._state.listening:
            link.post(["SUBSCRIBE", self._app_channel])
        heard = self._state.bells
        self._queue_of = {bell: queue for bell, queue in self._queue_of.items() if queue in heard}

    async def _subscribe(self, link: Link) -> None:
        known = set(self._queue_of.values())
        missing = [queue for queue in (*self._state.routing.weights, *self._left) if queue not in known]
        for page in pages(missing, _AT_ONCE):
            for queue in page:
                bell = self._bell(queue)
                self._queue_of[bell] = queue
                # A command per bell: on Redis Cluster, the channels of a command must be in one slot.
                link.post(["SSUBSCRIBE", bell])
            await asyncio.sleep(0)

    def _take_questions(self, link: Link) -> None:
        """Subscribe to the channel for questions, after everything else was confirmed: then an error is about this
        subscription. An older ACL may not permit it, and the executor can run jobs without it."""
        if not self._asks_for_questions and self._all_confirmed and clock.monotonic() >= self._retry_at:
            self._asks_for_questions = True
            link.post(["SSUBSCRIBE", self._questions])

    @property
    def _all_confirmed(self) -> bool:
        return self._state.listening and self._state.bells >= set(self._queue_of.values())

    def _refuse(self, error: ReplyError) -> None:
        if self._asks_for_questions and self._all_confirmed:
            self._asks_for_questions, self._retry_at = False, clock.monotonic() + _RETRY_EVERY
            if not self._questions_refused:
                self._questions_refused = True
                _logger.info("questions_refused", error=str(error))
            return
        # The user of Redis may lack the permission to subscribe. Without messages the executor looks more often.
        self._refused = True
        self._log.warn(error)

    def _leave(self, change: RoutingChanged) -> None:
        self._left |= change.left
        self._state.note_unheard(change.left)
        self._unsubscribe()
        self.woken.set()

    def _unsubscribe(self) -> None:
        """Leave the bells of queues that this executor does not serve any more. While it has a job of such a queue, a
        message may ask to stop that job, so a later tick leaves the bell."""
        if not self._left:
            return
        again = self._left.intersection(self._state.routing.weights)
        held = {queue for queue, _, _ in self._state.held.tokens()}
        for queue in self._left - held | again:
            self._left.discard(queue)
            subscribed = self._queue_of.pop(self._bell(queue), None) is not None
            # A bell of a queue that it serves again is subscribed to once more: the reply tells that it is heard.
            if subscribed and queue not in again and self._link is not None and self._link.connected:
                self._link.post(["SUNSUBSCRIBE", self._bell(queue)])

    def _lost(self) -> None:
        self._pinged = None
        self._asks_for_questions = False
        self._queue_of.clear()
        self._connected.clear()
        self._state.note_listening(False)
        self._state.note_unheard(set(self._state.bells))

    def _bell(self, queue: str) -> bytes:
        return queue_keys(self._state.namespace, queue).bell(self._state.name).encode()

    def _on_message(self, message: Any) -> None:
        self._pinged = None
        if isinstance(message, LinkDown):
            self._lost()
            self.woken.set()
        elif isinstance(message, ReplyError):
            self._refuse(message)
        elif message[0] == b"smessage":
            self._rung(message[1], message[2])
        elif message[0] == b"ssubscribe":
            self._confirmed(message[1])
        elif message[0] == b"message" and message[2] == b"cron":
            self._state.bus.publish(SchedulesChanged())
        elif message[0] == b"message" and message[2] == b"out":
            self._state.bus.publish(HandOverWaits())
        elif message[0] == b"subscribe":
            # From now on every message arrives. Earlier ones may be lost, so every part looks once.
            self._state.note_listening(True)
            self._state.bus.publish(SchedulesChanged())
            self._state.bus.publish(MessagesArrive())
        elif message[0] == b"sunsubscribe" and (queue := self._queue_of.pop(message[1], None)):
            # The server has ended the subscription, for example because the slot has moved. The next tick subscribes.
            self._state.note_unheard([queue])
            self.woken.set()
        elif message[0] == b"sunsubscribe" and message[1] == self._questions:
            self._asks_for_questions = False
            self.woken.set()

    def _confirmed(self, bell: bytes) -> None:
        """Publish one fact for all subscriptions that were confirmed in this turn of the loop."""
        if queue := self._queue_of.get(bell):
            if not self._connected:
                asyncio.get_running_loop().call_soon(self._publish_connected)
            self._connected.append(queue)

    def _publish_connected(self) -> None:
        queues, self._connected = self._connected, []
        if not queues:  # the connection was lost in the meantime
            return
        self._state.note_heard(queues)
        self._state.bus.publish(BellConnected(queues))
        if self._link is not None:
            self._take_questions(self._link)

    def _rung(self, bell: bytes, text: bytes) -> None:
        # Any client may publish anything on such a channel. An error would end the connection, and with it the
        # subscription, so a message that cannot be read is dropped.
        queue = self._queue_of.get(bell)
        with suppress(ValueError):
            if bell == self._questions:
                self._state.bus.publish(QuestionAsked(text.decode()))
            elif queue is not None:
                self._state.bus.publish(_fact_of(queue, text.decode()))


def _fact_of(queue: str, text: str) -> JobArrived | JobDue | CancelRequested | RunOutrun | HandOverWaits:
    """The fact that a message on a bell announces; raises ValueError for a text that is none."""
    what, _, value = text.partition(" ")
    if what == "look":
        return JobArrived(queue, value)
    if what == "due":
        return JobDue(float(value) / 1000, queue, announced=True)
    if what == "stop":
        lane, entry, why = value.split(" ", 2)
        return CancelRequested((queue, lane, entry), why)
    if what == "outrun":
        lane, entry = value.split(" ")
        return RunOutrun((queue, lane, entry))
    if text == "out":
        return HandOverWaits(queue)
    raise ValueError(text)
