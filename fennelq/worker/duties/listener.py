"""Receives messages on which an executor should act at once: a job is due sooner, a schedule has changed.

A lost message only delays a job until the executor looks by itself, so messages are neither repeated nor stored.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from fennelq.broker.keys import queue_of_channel, wake_patterns
from fennelq.broker.link import Link, LinkDown
from fennelq.broker.trouble import ReplyError
from fennelq.worker.bus import HandOverWaits, JobDue, MessagesArrive, SchedulesChanged
from fennelq.worker.duties.service import Service
from fennelq.worker.outage import LogThrottle
from fennelq.worker.state import State

_LOOK_EVERY = 2.0


class Listener(Service):
    """Keeps a subscription alive."""

    name = "listener"

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._patterns = wake_patterns(state.namespace)
        self._link: Link | None = None
        self._log = LogThrottle("listening")

    async def tick(self) -> float:
        """Subscribe, unless the subscription works already."""
        if self._link is None or not self._link.connected:
            self._state.note_listening(False)
            self._link = await self._state.broker.listen(["PSUBSCRIBE", *self._patterns], self._on_message)
        return _LOOK_EVERY

    def _on_message(self, message: Any) -> None:
        if isinstance(message, LinkDown):
            self._state.note_listening(False)
            self.woken.set()
        elif isinstance(message, ReplyError):
            # The user of Redis may lack the permission to subscribe. Without messages the executor looks more often.
            self._log.warn(message)
        elif message[0] == b"pmessage":
            self._publish(message[2], message[3])
        elif message[0] == b"psubscribe":
            # From now on every message arrives. Earlier ones may be lost, so every part looks once.
            self._state.note_listening(True)
            self._state.bus.publish(JobDue(0.0))
            self._state.bus.publish(SchedulesChanged())
            self._state.bus.publish(MessagesArrive())

    def _publish(self, channel: bytes, text: bytes) -> None:
        # Any client may publish anything on such a channel. An error would end the connection, and with it the
        # subscription, so a message that cannot be read is dropped.
        with suppress(ValueError):
            self._state.bus.publish(_fact_of(channel, text))


def _fact_of(channel: bytes, text: bytes) -> SchedulesChanged | HandOverWaits | JobDue:
    """The fact that a message announces; raises ValueError for a text that is none, and for a channel whose name is not
    UTF-8."""
    if text == b"cron":
        return SchedulesChanged()
    if text == b"out":
        return HandOverWaits(queue_of_channel(channel.decode()))
    return JobDue(float(text) / 1000)
