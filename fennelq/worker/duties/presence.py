"""Publishes facts about this executor, and learns how many others are alive, how others ended, which queues are known.

The facts are for people and for other executors. They never decide which executor owns a job: only the lease does.
"""

from __future__ import annotations

import os
import socket

import orjson

from fennelq import clock
from fennelq.broker import verbs
from fennelq.broker.keys import LANES, AppKeys
from fennelq.broker.verbs.executors import Present
from fennelq.executors import recent_of
from fennelq.worker.bus import QueuesDiscovered
from fennelq.worker.duties.service import Service
from fennelq.worker.duties.unserved import UnservedQueues
from fennelq.worker.state import State

_QUEUES_NAMED = 20
"""Queues named in the facts of an executor that serves every queue, or all that fit a pattern."""
_READ_AGAIN = 60.0
_OFTEN = 1000
_READ_PER_SECOND = 1_000_000
"""Names of queues that all executors together read per second, at most."""


class Presence(Service):
    """Publishes facts. What it reads does not grow with the number of executors."""

    name = "presence"

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._keys, self._executor, self._broker = AppKeys(state.namespace), state.name, state.broker
        self._recent_ms = recent_of(state.settings.lease)
        self._unserved = UnservedQueues(state)
        self._known: set[str] = set()
        self._number = -1
        """How many queues were known when it last read or noted them."""
        self._read_at = self._not_before = 0.0

    async def tick(self) -> float:
        """Publish facts. They contain the time of the server's clock, because the clocks of two machines may differ by
        hours."""
        interval = self._interval
        facts = orjson.dumps({**self._facts(), "interval": interval})
        present = await self._broker.run(
            verbs.executors.present(self._keys, self._executor, facts, self._recent_ms)
        )
        self._state.note_colleagues(present.living)
        self._state.note_deaths(present.deaths)
        if self._is_out_of_date(present):
            await (self._note_own_queues(present) if self._reads_nothing(present) else self._read_queues())
        await self._unserved.tick(self._known, watches=present.watcher)
        return interval

    @property
    def _interval(self) -> float:
        """Seconds until the next tick. From a thousand executors on, each of them reports less often."""
        settings = self._state.settings
        return min(
            settings.beat * max(1.0, self._state.colleagues / _OFTEN), max(settings.beat, settings.lease)
        )

    def _is_out_of_date(self, present: Present) -> bool:
        now = clock.monotonic()
        if now < self._not_before:
            return False
        begins_to_watch = present.watcher and not self._known
        return begins_to_watch or present.queues != self._number or now - self._read_at >= _READ_AGAIN

    def _reads_nothing(self, present: Present) -> bool:
        """Whether the names of all queues do not matter to this executor: it serves fixed ones, and watches none."""
        wanted = self._state.wanted
        return not (wanted.every or wanted.patterns or present.watcher)

    async def _note_own_queues(self, present: Present) -> None:
        own = {*self._state.own_queues, *self._state.routing.weights}
        added = await self._broker.ask(verbs.queues.note_queues(self._keys.app, sorted(own)))
        self._number = present.queues + added
        self._read_at = clock.monotonic()

    async def _read_queues(self) -> None:
        self._known = await self._broker.ask(verbs.queues.known_queues(self._keys.app))
        if missing := self._missing():
            await self._broker.ask(verbs.queues.note_queues(self._keys.app, sorted(missing)))
            self._known |= missing
        self._number, self._read_at = len(self._known), clock.monotonic()
        self._not_before = self._read_at + len(self._known) * self._state.colleagues / _READ_PER_SECOND
        self._state.bus.publish(QueuesDiscovered(frozenset(self._known)))

    def _missing(self) -> set[str]:
        return {*self._state.own_queues, *self._state.routing.weights} - self._known

    def _facts(self) -> dict[str, object]:
        state = self._state
        queues = list(state.routing.weights)
        facts: dict[str, object] = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "concurrency": state.slots.count,
            "running": state.slots.taken,
            "stuck": state.slots.stuck,
            "done": state.held.done,
            "queues": queues,
            "uptime": round(clock.monotonic() - state.started, 1),
        }
        # Facts that are the same for nearly every executor are left out, because each executor writes its facts anew
        # with every beat.
        if state.wanted.every:
            facts["every_queue"] = True
        if state.wanted.patterns:
            facts["patterns"] = state.wanted.patterns
        if (state.wanted.every or state.wanted.patterns) and len(queues) > _QUEUES_NAMED:
            # Those that were named one by one are all there: others find out from here who serves them.
            named = [queue for queue in queues if queue in state.wanted.weights]
            rest = [queue for queue in queues if queue not in state.wanted.weights]
            facts["queues"] = [*named, *rest[:_QUEUES_NAMED]]
            facts["further_queues"] = max(0, len(rest) - _QUEUES_NAMED)
        if state.lanes != tuple(LANES.values()):
            facts["lanes"] = state.lanes
        if too_old_for := state.unrunnable.facts():
            facts["too_old_for"] = too_old_for
        return facts
