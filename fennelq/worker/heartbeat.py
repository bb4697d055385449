"""Signs of life: tells people about this executor, and keeps the list of queues."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import orjson

from fennelq import clock
from fennelq.broker.broker import Broker
from fennelq.broker.verbs import presence

Facts = Callable[[], dict[str, object]]


class Heartbeat:
    """Writes what people want to know of an executor; looks for queues that have turned up."""

    name = "heartbeat"

    def __init__(
        self,
        *,
        app: str,
        executor: str,
        broker: Broker,
        interval: float,
        facts: Facts,
        queues: Callable[[], set[str]],
        discovered: Callable[[set[str]], Awaitable[None]],
    ) -> None:
        self._app, self._executor, self._broker, self._interval = app, executor, broker, interval
        self._facts, self._queues, self._discovered = facts, queues, discovered

    async def tick(self) -> float:
        """One sign of life."""
        facts = {**self._facts(), "beat_ms": clock.wall_ms(), "interval": self._interval}
        known, _ = await asyncio.gather(
            self._broker.ask(presence.known_queues(self._app)),
            self._broker.ask(presence.note_executor(self._app, self._executor, orjson.dumps(facts))),
        )
        if missing := self._queues() - known:
            await self._broker.ask(presence.note_queues(self._app, sorted(missing)))
        await self._discovered(known)
        return self._interval
