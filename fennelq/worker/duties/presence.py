"""What people and colleagues want to know: which executors there are, how others ended, which queues exist.

Nothing here decides who owns a job: that is the lease, and nothing but the lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from fennelq.broker import verbs
from fennelq.broker.broker import Broker
from fennelq.executors import Executors, facts_of
from fennelq.worker.duties.unserved import UnservedQueues

Facts = Callable[[], dict[str, object]]

_FORGOTTEN_AFTER_MS = 3_600_000


class Presence:
    """Tells of this executor, and listens to what others tell."""

    name = "presence"

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
        self._unserved = UnservedQueues(app, executor, broker)
        self.deaths: dict[str, str] = {}
        """Executor → how its process ended, as its supervisor saw it."""

    async def tick(self) -> float:
        """Tell and listen. The server's clock dates what is told: those of two machines may be hours apart."""
        now = await self._broker.ask(verbs.server.now())
        facts = {**self._facts(), "beat_ms": now, "interval": self._interval}
        known, executors, _ = await asyncio.gather(
            self._broker.ask(verbs.queues.known_queues(self._app)),
            self._broker.ask(verbs.executors.known_executors(self._app)),
            self._broker.ask(verbs.executors.note_executor(self._app, self._executor, orjson.dumps(facts))),
        )
        if missing := self._queues() - known:
            await self._broker.ask(verbs.queues.note_queues(self._app, sorted(missing)))
        await self._hear({name: facts_of(raw) for name, raw in executors.items()}, now)
        await self._discovered(known)
        told = Executors({**executors, self._executor: orjson.dumps(facts)}, now)
        await self._unserved.look(known, told, now)
        return self._interval

    async def _hear(self, executors: dict[str, dict[str, Any]], now: int) -> None:
        self.deaths = {name: str(facts["died"]) for name, facts in executors.items() if "died" in facts}
        oldest = now - _FORGOTTEN_AFTER_MS
        if forgotten := [name for name, facts in executors.items() if int(facts.get("beat_ms", 0)) < oldest]:
            await self._broker.ask(verbs.executors.forget_executors(self._app, forgotten))
