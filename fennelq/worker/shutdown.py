"""Ends an executor: gracefully, with its jobs finished or handed back, or at once, when it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any, Literal

from fennelq import clock, log
from fennelq.broker import verbs
from fennelq.broker.diagnosis import diagnose
from fennelq.broker.dispatch import by_queues, pages
from fennelq.broker.keys import AppKeys, QueueKeys, queue_keys
from fennelq.broker.verb import Verb
from fennelq.worker.bus import JobHandedBack
from fennelq.worker.duties.service import Service
from fennelq.worker.outage import LogThrottle
from fennelq.worker.per_queue import run_per_queue
from fennelq.worker.running.consumer import Consumer
from fennelq.worker.running.held import Token
from fennelq.worker.running.workbench import Workbench
from fennelq.worker.state import State
from fennelq.worker.threads.deputy import Deputy
from fennelq.worker.threads.heartbeat import Heartbeat
from fennelq.worker.threads.watchdog import Watchdog

_logger = log.get("fennelq.worker")
_QUEUES_AT_ONCE = 500
_LAST_WRITES = 5.0
"""Seconds for the outcomes that are not written yet."""
LAST_REPORT = 5.0
"""Seconds for a report of the deputy that is under way."""


class Shutdown:
    """Ends the parts of an executor."""

    def __init__(
        self,
        state: State,
        consumer: Consumer,
        workbench: Workbench,
        threads: tuple[Heartbeat, Watchdog, Deputy],
        duties: Sequence[Service],
    ) -> None:
        self._state, self._consumer, self._workbench = state, consumer, workbench
        self._threads, self._deputy, self._duties = threads, threads[2], duties
        self._hurry = asyncio.Event()

    def hurry(self) -> None:
        """Do not wait for the jobs that run."""
        self._hurry.set()

    async def in_order(self, reading: asyncio.Task[None], duties: list[asyncio.Task[None]]) -> None:
        """Stop reading, finish the running jobs, hand the rest back, and remove this executor from Redis."""
        await self._consumer.stop(reading)
        await self._finish_running()
        await _cancelled(duties)
        await self._end_duties()
        await self._leave()

    async def at_once(self, parts: list[asyncio.Task[None]]) -> None:
        """Hand nothing back: the running jobs are recovered when their leases have run out, which counts as a delivery,
        because one of them may be the reason. Outcomes are still written."""
        self._end_threads()
        self._consumer.halt()
        await _cancelled(parts)
        self._workbench.settle_again()
        await self._settle_the_rest()
        await self._end_duties()
        self._workbench.stop_all()
        await self._state.broker.close()

    async def _finish_running(self) -> None:
        """Wait for the running jobs, at most the grace period; then stop the rest and hand them back untouched."""
        hurry: asyncio.Task[Any] = asyncio.create_task(self._hurry.wait())
        deadline = clock.monotonic() + self._state.grace
        while (running := self._state.held.tasks()) and not hurry.done() and clock.monotonic() < deadline:
            left = deadline - clock.monotonic()
            await self._state.held.one_ended([hurry, *running], left)
        hurry.cancel()
        if rest := self._workbench.stop_all():
            # With a timeout: a handler may swallow its cancellation, and a thread cannot be stopped.
            await asyncio.wait(rest, timeout=1.0)
        await self._settle_the_rest()
        await self._hand_back()

    async def _settle_the_rest(self) -> None:
        with suppress(TimeoutError):
            # Without Redis no outcome can be written, and the exit cannot wait for ever: these jobs run again.
            async with asyncio.timeout(_LAST_WRITES):
                await self._workbench.settled()

    async def _end_duties(self) -> None:
        await asyncio.gather(*(duty.end() for duty in self._duties))

    async def _hand_back(self) -> None:
        held = self._state.held
        # By the queues of the jobs, which may include some that this executor does not serve any more.
        for queue, tokens in by_queues(held.tokens(), itemgetter(0)).items():
            keys = queue_keys(self._state.namespace, queue)
            begun = [token for token in tokens if held.entered(token)]
            stopped = [held.by_token[token].delivery for token in begun]
            await self._release(keys, begun, "stopped")
            for delivery in stopped:
                self._state.bus.publish(JobHandedBack(delivery))
            await self._release(keys, [token for token in tokens if not held.entered(token)], "unstarted")

    async def _release(
        self, keys: QueueKeys, tokens: list[Token], why: Literal["stopped", "unstarted"]
    ) -> None:
        left, released = len(tokens), 0
        try:
            for page in pages(tokens):
                entries = [(lane, entry) for _, lane, entry in page]
                released += await self._state.broker.run(verbs.runs.release(keys, entries, why))
                left -= len(page)
        except Exception as error:
            # This must not fail the shutdown: the jobs are recovered when their leases have run out.
            problem = diagnose(self._state.broker.address, error).sentence
            _logger.warning("not_handed_back", queue=keys.queue, jobs=left, error=problem)
        if left < len(tokens):
            _logger.info("handed_back", queue=keys.queue, jobs=released)

    def _end_threads(self) -> None:
        for thread in self._threads:
            thread.end()

    async def _leave(self) -> None:
        self._end_threads()
        # It has a connection of its own. Its report could arrive after `absent`, and the executor would look silent.
        await self._deputy.gone(LAST_REPORT)
        state, throttle = self._state, LogThrottle("leaving", self._state.outage)
        try:
            await state.broker.run(verbs.executors.absent(AppKeys(state.namespace), [state.name]))
            for page in pages(sorted(state.read), _QUEUES_AT_ONCE):
                keys = [queue_keys(state.namespace, queue) for queue in page]
                await run_per_queue(state.broker, keys, self._close_consumer, throttle)
        except Exception as error:
            throttle.warn(error)
        await state.broker.close()

    def _close_consumer(self, keys: QueueKeys) -> Verb[int]:
        return verbs.executors.close_consumer(keys, self._state.name)


async def _cancelled(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
