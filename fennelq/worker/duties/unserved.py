"""Warns, once a minute, of queues in which jobs wait although no worker serves them."""

from __future__ import annotations

import asyncio

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


class UnservedQueues:
    """Warns of such queues. Only one executor of the app, the watcher, reads the facts of all others."""

    def __init__(self, state: State) -> None:
        self._app, self._broker = state.namespace, state.broker
        self._next = self._quiet_until = 0.0
        self._since: dict[str, float] = {}

    async def tick(self, known: set[str], *, watches: bool) -> None:
        """Look when it is time, if this executor watches."""
        now = clock.monotonic()
        if not watches:
            self._since = {}
        elif now >= self._next:
            self._next = now + _LOOK_EVERY
            now_ms = await self._broker.ask(verbs.server.now())
            reported = await self._broker.ask(verbs.executors.known_executors(self._app))
            executors = Executors(reported, now_ms)
            await self._forget(executors)
            await self.look(known, executors, now_ms)

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
        if not lasting or now < self._quiet_until:
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
