"""Hears what others want this executor to know at once: something is due sooner, a schedule has changed.

A lost message costs no more than the wait until the next look, so nothing here is repeated or kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fennelq.broker.broker import Broker
from fennelq.broker.keys import wake_patterns
from fennelq.broker.link import Link, LinkDown
from fennelq.broker.trouble import ReplyError
from fennelq.worker.service import Complaints

_LOOK_EVERY = 2.0


class Listener:
    """Keeps a subscription alive."""

    name = "listener"

    def __init__(
        self, app: str, broker: Broker, *, due: Callable[[float], None], schedules_changed: Callable[[], None]
    ) -> None:
        self._patterns, self._broker = wake_patterns(app), broker
        self._due, self._schedules_changed = due, schedules_changed
        self._link: Link | None = None
        self._heard = False
        self._complaints = Complaints("listening")
        self._down = asyncio.Event()
        self.woken = self._down

    async def tick(self) -> float:
        """Subscribe, if that is needed."""
        if self._link is None or not self._link.connected:
            self._heard = False
            self._link = await self._broker.listen(["PSUBSCRIBE", *self._patterns], self._hear)
        return _LOOK_EVERY

    @property
    def listening(self) -> bool:
        """Whether messages would be heard."""
        return self._heard and self._link is not None and self._link.connected

    def _hear(self, message: Any) -> None:
        if isinstance(message, LinkDown):
            self._down.set()
        elif isinstance(message, ReplyError):
            # A user who may not subscribe: executors look often enough by themselves.
            self._complaints.about(message)
        elif message[0] == b"pmessage":
            self._understand(message[3])
        elif message[0] == b"psubscribe":
            # From here on everything is heard; what was said before has to be looked up.
            self._heard = True
            self._due(0.0)
            self._schedules_changed()

    def _understand(self, said: bytes) -> None:
        if said == b"cron":
            self._schedules_changed()
            return
        try:
            self._due(float(said) / 1000)
        except ValueError:
            return
