"""Warns, once a minute, of queues in which jobs wait although no worker serves them."""

from __future__ import annotations

import asyncio
import random

from fennelq import clock, log
from fennelq.broker import verbs
from fennelq.broker.keys import STREAMS, AppKeys, queue_keys
from fennelq.broker.verb import Command
from fennelq.executors import Executors, number
from fennelq.worker.state import State

_logger = log.get("fennelq.worker")

_QUIET_FOR = 60.0
_PATIENCE = 10.0
"""Seconds without a worker that are not reported, because a restart may take this long."""
_MOST_QUEUES = 10
_MOST_FORGOTTEN = 100
_LOOK_EVERY = 15.0
_PER_EXECUTOR = 4.0
"""Seconds between two looks, per executor of the app: the fleet reads all facts at most every two seconds."""


class UnservedQueues:
    """Warns of such queues. Only one executor per machine logs the warning, so that each log contains it once."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._app, self._executor, self._broker = state.namespace, state.name, state.broker
        self._looked, self._first = clock.monotonic(), random.random()
        self._has_looked = False
        self._hosts = 0
        """The machines that run executors, when this executor logs for its machine."""
        self._since: dict[str, float] = {}
        self._quiet_until = 0.0

    async def tick(self, known: set[str]) -> None:
        """Look when it is time: the more executors there are, the less often each reads the facts of all others."""
        if clock.monotonic() - self._looked < self._pause:
            return
        self._looked, self._has_looked = clock.monotonic(), True
        now_ms = await self._broker.ask(verbs.server.now())
        reported = await self._broker.ask(verbs.executors.known_executors(self._app))
        executors = Executors(reported, now_ms)
        await self._forget(executors)
        self._hosts = len(executors.hosts) if executors.is_first_of_its_host(self._executor) else 0
        await self.look(known, executors, now_ms)

    @property
    def _pause(self) -> float:
        """Seconds from one look to the next. It follows the number of executors, which may grow or shrink meanwhile.

        The first look comes after a random part of it. Otherwise a fleet that starts would read the facts of all
        executors once for each of them: at ten thousand, ten gigabytes within seconds. A single executor looks at once.
        """
        if not self._has_looked:
            return self._first * _PER_EXECUTOR * (self._state.colleagues - 1)
        # Of each machine, the executor that logs for all looks more often. The others look in case it has ended.
        return max(_LOOK_EVERY, _PER_EXECUTOR * (self._hosts or self._state.colleagues))

    async def _forget(self, executors: Executors) -> None:
        """Delete the facts of executors of an earlier version that have ended: those of this version expire."""
        oldest = executors.now_ms - verbs.executors.FORGOTTEN_AFTER_MS
        old = [name for name, facts in executors.facts.items() if number(facts, "beat_ms") < oldest]
        if old:
            await self._broker.run(verbs.executors.absent(AppKeys(self._app), old[:_MOST_FORGOTTEN]))

    async def look(self, known: set[str], executors: Executors, now_ms: int) -> None:
        """Warn if jobs wait in known queues that no executor has served for a while."""
        now = clock.monotonic()
        self._since = {
            queue: self._since.get(queue, now) for queue in sorted(known) if not executors.serving(queue)
        }
        lasting = [queue for queue, since in self._since.items() if now - since >= _PATIENCE]
        if not lasting or now < self._quiet_until or not executors.is_first_of_its_host(self._executor):
            return
        self._quiet_until = now + _QUIET_FOR
        counts = await asyncio.gather(*(self._waiting(queue, now_ms) for queue in lasting[:_MOST_QUEUES]))
        found = {queue: count for queue, count in zip(lasting, counts, strict=False) if count}
        if found:
            _logger.warning(
                "queues_unserved",
                waiting=", ".join(f"{queue}: {count:,}" for queue, count in found.items()),
                why="jobs wait in these queues, and no worker serves them",
                how=f"start a worker with -q {','.join(found)}, or one without -q, which serves every queue",
            )

    async def _waiting(self, queue: str, now_ms: int) -> int:
        """The number of jobs that are ready or due in a queue. A queue that cannot be read counts as empty."""
        keys = queue_keys(self._app, queue)
        asked: list[Command[int]] = [verbs.queues.length(keys, lane) for lane in STREAMS]
        asked += [verbs.queues.overdue(keys, place, now_ms) for place in ("sched", "retry")]
        replies = await asyncio.gather(*map(self._broker.ask, asked), return_exceptions=True)
        return sum(reply for reply in replies if isinstance(reply, int))
