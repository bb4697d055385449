"""Publishes and reads facts: which executors exist, how others ended, which queues are known.

The facts are for people and for other executors. They never decide which executor owns a job: only the lease does.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import orjson

from fennelq import clock
from fennelq.broker import verbs
from fennelq.broker.keys import LANES
from fennelq.executors import Executors, facts_of
from fennelq.worker.bus import QueuesDiscovered
from fennelq.worker.duties.service import Service
from fennelq.worker.duties.unserved import UnservedQueues
from fennelq.worker.state import State

_FORGOTTEN_AFTER_MS = 3_600_000


class Presence(Service):
    """Publishes facts about this executor, and reads those of the others."""

    name = "presence"

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._app, self._executor, self._broker = state.namespace, state.name, state.broker
        self._interval = state.settings.beat
        self._unserved = UnservedQueues(state)

    async def tick(self) -> float:
        """Publish and read facts. They contain the time of the server's clock, because the clocks of two machines may
        differ by hours."""
        now = await self._broker.ask(verbs.server.now())
        facts = {**self._facts(), "beat_ms": now, "interval": self._interval}
        known, executors, _ = await asyncio.gather(
            self._broker.ask(verbs.queues.known_queues(self._app)),
            self._broker.ask(verbs.executors.known_executors(self._app)),
            self._broker.ask(verbs.executors.note_executor(self._app, self._executor, orjson.dumps(facts))),
        )
        if missing := self._queues() - known:
            await self._broker.ask(verbs.queues.note_queues(self._app, sorted(missing)))
        await self._read({name: facts_of(raw) for name, raw in executors.items()}, now)
        self._state.bus.publish(QueuesDiscovered(frozenset(known)))
        present = Executors({**executors, self._executor: orjson.dumps(facts)}, now)
        await self._unserved.look(known, present, now)
        return self._interval

    def _queues(self) -> set[str]:
        return self._state.own_queues | {keys.queue for keys in self._state.queues}

    def _facts(self) -> dict[str, object]:
        state = self._state
        facts: dict[str, object] = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "concurrency": state.slots.count,
            "running": state.slots.taken,
            "stuck": state.slots.stuck,
            "done": state.held.done,
            "queues": [keys.queue for keys in state.queues],
            "uptime": round(clock.monotonic() - state.started, 1),
        }
        # Facts that are the same for nearly every executor are left out, because each executor writes its facts anew
        # with every beat.
        if state.wanted.every:
            facts["every_queue"] = True
        if state.lanes != tuple(LANES.values()):
            facts["lanes"] = state.lanes
        if too_old_for := state.unrunnable.facts():
            facts["too_old_for"] = too_old_for
        return facts

    async def _read(self, executors: dict[str, dict[str, Any]], now: int) -> None:
        self._state.note_deaths(
            {name: str(facts["died"]) for name, facts in executors.items() if "died" in facts}
        )
        oldest = now - _FORGOTTEN_AFTER_MS
        if forgotten := [name for name, facts in executors.items() if int(facts.get("beat_ms", 0)) < oldest]:
            await self._broker.ask(verbs.executors.forget_executors(self._app, forgotten))
