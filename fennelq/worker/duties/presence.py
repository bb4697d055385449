"""Publishes facts about this executor, and learns how many others are alive, how others ended, which queues are known.

The facts are for people and for other executors. They never decide which executor owns a job: only the lease does.
"""

from __future__ import annotations

import os
import socket

import orjson

from fennelq import __version__, clock
from fennelq.broker import verbs
from fennelq.broker.keys import LANES, AppKeys
from fennelq.broker.noting import noted
from fennelq.broker.verbs.executors import Present
from fennelq.executors import recent_of
from fennelq.worker.bus import ExecutorEnding, LoopWorksAgain, QueuesDiscovered, RedisReplies
from fennelq.worker.duties.service import Service
from fennelq.worker.duties.unserved import UnservedQueues
from fennelq.worker.memory import resident_bytes
from fennelq.worker.state import State

_QUEUES_NAMED = 20
"""Queues named in the facts of an executor that serves every queue, or all that fit a pattern."""
_LONG = 1.0
"""Seconds after which a running job is worth a fact: shorter ones have ended before a person reads it."""
_MOST_TEXT = 200
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
        self._unserved = UnservedQueues(state)
        self._known: set[str] = set()
        self._number = -1
        """How many queues were known when it last read or noted them."""
        self._read_at = self._not_before = 0.0
        self._before_its_first_read: str | None = None if state.connected else "starting"
        # A first job may block the loop before the first tick.
        state.vitals.note_facts({**self._facts(), "interval": self._interval})
        state.bus.subscribe(ExecutorEnding, lambda _: self.woken.set())
        state.bus.subscribe(LoopWorksAgain, lambda _: self.woken.set())
        state.bus.subscribe(RedisReplies, lambda _: self._has_begun())

    async def tick(self) -> float:
        """Publish facts. They contain the time of the server's clock, because the clocks of two machines may differ by
        hours."""
        interval = self._interval
        facts = {**self._facts(), "interval": interval}
        self._state.vitals.note_facts(facts)
        # In a very large fleet, executors count for two of their long intervals.
        recent_ms = max(recent_of(self._state.settings.lease), round(2000 * interval))
        present = await self._broker.run(
            verbs.executors.present(self._keys, self._executor, orjson.dumps(facts), recent_ms)
        )
        self._state.note_colleagues(present.living)
        self._state.note_deaths(present.deaths)
        if self._is_out_of_date(present):
            await (self._note_own_queues(present) if self._reads_nothing(present) else self._read_queues())
        await self._unserved.tick(self._known, watches=present.watcher)
        return interval

    @property
    def _interval(self) -> float:
        """Seconds until the next tick. From a thousand executors on, each of them reports less often, but at least once
        in two leases."""
        settings = self._state.settings
        longest = max(settings.beat, 2 * settings.lease)
        return min(settings.beat * max(1.0, self._state.colleagues / _OFTEN), longest)

    def _is_out_of_date(self, present: Present) -> bool:
        now = clock.monotonic()
        if now < self._not_before:
            return False
        begins_to_watch = present.watcher and not self._known
        return begins_to_watch or present.queues != self._number or now - self._read_at >= _READ_AGAIN

    def _reads_nothing(self, present: Present) -> bool:
        """True when this executor does not need the names of all queues: it serves fixed ones, and is not the
        watcher."""
        wanted = self._state.wanted
        return not (wanted.every or wanted.patterns or present.watcher)

    async def _note_own_queues(self, present: Present) -> None:
        own = {*self._state.own_queues, *self._state.routing.weights}
        added = await self._broker.converse(noted(self._keys.app, sorted(own)))
        self._number = present.queues + added
        self._read_at = clock.monotonic()

    async def _read_queues(self) -> None:
        self._known = await self._broker.ask(verbs.queues.known_queues(self._keys.app))
        missing = self._missing()
        await self._broker.converse(noted(self._keys.app, sorted(missing)))
        self._known |= missing
        self._number, self._read_at = len(self._known), clock.monotonic()
        self._not_before = self._read_at + len(self._known) * self._state.colleagues / _READ_PER_SECOND
        self._state.bus.publish(QueuesDiscovered(frozenset(self._known)))

    def _missing(self) -> set[str]:
        return {*self._state.own_queues, *self._state.routing.weights} - self._known

    def _facts(self) -> dict[str, object]:
        state = self._state
        facts: dict[str, object] = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "concurrency": state.slots.count,
            "running": state.slots.taken,
            "stuck": state.slots.stuck,
            "done": state.held.done,
            "uptime": round(clock.monotonic() - state.started, 1),
            "version": __version__,
            "rss": resident_bytes(),
            "lag": round(state.vitals.take_lag(), 3),
        }
        if how := state.ending or self._before_its_first_read:
            facts["state"] = how
        # No queues: otherwise commands, and executors of earlier versions, would believe that it takes their jobs.
        facts |= (
            self._served() if state.config.consumes else {"queues": [], "concurrency": 0, "consumes": False}
        )
        facts |= self._of_jobs()
        facts |= state.vitals.blockage()
        facts |= state.tally.facts()
        if too_old_for := state.unrunnable.facts():
            facts["too_old_for"] = too_old_for
        return facts

    def _has_begun(self) -> None:
        """Whether it has begun to work: Redis has replied to its first read."""
        if self._before_its_first_read:
            self._before_its_first_read = None
            self.woken.set()

    def _of_jobs(self) -> dict[str, object]:
        """The outcomes that are not written yet, and the job that has been running for longest."""
        held = list(self._state.held.by_token.values())
        facts: dict[str, object] = {}
        if unsettled := sum(one.outcome is not None for one in held):
            facts["unsettled"] = unsettled
        running = [one for one in held if one.begun and one.running]
        longest = min(running, key=lambda one: one.begun, default=None)
        if longest is not None and (seconds := clock.monotonic() - longest.begun) >= _LONG:
            job = longest.delivery
            facts["longest"] = {"job": job.id, "task": job.task[:_MOST_TEXT], "seconds": round(seconds, 1)}
        return facts

    def _served(self) -> dict[str, object]:
        """From where it takes jobs. Facts that are the same for nearly every executor are left out, because each
        executor writes its facts anew with every beat."""
        state = self._state
        queues = list(state.routing.weights)
        facts: dict[str, object] = {"queues": queues}
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
        return facts
