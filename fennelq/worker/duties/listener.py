"""Receives the messages that an executor should act on at once: something is due sooner, a schedule has changed.

A lost message costs no more than the wait until the next look, so nothing here is repeated or kept.
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
        """Subscribe, if that is needed."""
        if self._link is None or not self._link.connected:
            self._state.note_listening(False)
            self._link = await self._state.broker.listen(["PSUBSCRIBE", *self._patterns], self._hear)
        return _LOOK_EVERY

    def _hear(self, message: Any) -> None:
        if isinstance(message, LinkDown):
            self._state.note_listening(False)
            self.woken.set()
        elif isinstance(message, ReplyError):
            # A user who may not subscribe: executors look often enough by themselves.
            self._log.warn(message)
        elif message[0] == b"pmessage":
            self._understand(message[2], message[3])
        elif message[0] == b"psubscribe":
            # From here on every message arrives; what earlier ones announced has to be looked up.
            self._state.note_listening(True)
            self._state.bus.publish(JobDue(0.0))
            self._state.bus.publish(SchedulesChanged())
            self._state.bus.publish(MessagesArrive())

    def _understand(self, channel: bytes, text: bytes) -> None:
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
