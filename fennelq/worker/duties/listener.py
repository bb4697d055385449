"""Receives messages on which an executor should act at once: a job is due sooner, a schedule has changed.

A lost message only delays a job until the executor looks by itself, so messages are neither repeated nor stored.
"""

from __future__ import annotations

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
        if text == b"cron":
            self._state.bus.publish(SchedulesChanged())
            return
        if text == b"out":
            self._state.bus.publish(HandOverWaits(queue_of_channel(channel.decode())))
            return
        try:
            due = JobDue(float(text) / 1000)
        except ValueError:
            return
        self._state.bus.publish(due)
