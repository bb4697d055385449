"""One process that runs jobs: a consumer, a runner, a settler and the services, composed."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

from fennelq import clock, log
from fennelq.app import App
from fennelq.broker.broker import Broker
from fennelq.broker.keys import LANES
from fennelq.broker.verbs import lifecycle, presence
from fennelq.broker.verbs.lifecycle import Settled
from fennelq.model import outcome as outcomes
from fennelq.model.job import Delivery
from fennelq.model.outcome import Outcome
from fennelq.model.routing import Routing
from fennelq.service import Service, tend
from fennelq.worker.consumer import Consumer
from fennelq.worker.heartbeat import Heartbeat
from fennelq.worker.invoke import Invoker
from fennelq.worker.janitor import Janitor
from fennelq.worker.promoter import Promoter
from fennelq.worker.runner import Runner
from fennelq.worker.settler import Answer, Settler
from fennelq.worker.slots import Slots

_logger = log.get("fennelq.worker")


class Executor:
    """Runs the jobs of an app until it is stopped."""

    def __init__(
        self,
        app: App,
        *,
        concurrency: int | None = None,
        routing: Routing | None = None,
        priorities: tuple[str, ...] = tuple(LANES),
        burst: bool = False,
        grace: float | None = None,
    ) -> None:
        settings = app.settings
        self.app, self.name = app, f"{socket.gethostname()[:40]}.{os.getpid()}.{os.urandom(3).hex()}"
        self._routing = routing or Routing.parse(None)
        self._burst = burst
        self._grace = settings.grace_period if grace is None else grace
        self._held: dict[tuple[str, str, str], asyncio.Task[None]] = {}
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._started = clock.monotonic()
        self._done = 0
        self._log_ends = log.wanted("info")
        self.slots = Slots(concurrency or settings.concurrency)
        self.broker = Broker(app.address)
        self._settler = Settler(app.namespace, self.broker, app.lifetimes, self._settled)
        self._runner = Runner(
            app.tasks,
            Invoker(self.slots.count),
            failure_ttl_ms=app.lifetimes.failure_ms,
            most_bytes=settings.max_payload_bytes,
        )
        self._promoter = Promoter(self.broker, lambda: self.consumer.queues, settings.schedule_interval)
        self.consumer = Consumer(
            app=app.namespace,
            name=self.name,
            broker=self.broker,
            lanes=[LANES[priority] for priority in LANES if priority in priorities],
            lifetimes=app.lifetimes,
            slots=self.slots,
            start=self._start,
            due=self._promoter.expect,
            block_ms=max(100, min(5000, round(settings.lease * 250))),
        )

    @property
    def services(self) -> list[Service]:
        """The background duties."""
        settings = self.app.settings
        heartbeat = Heartbeat(
            app=self.app.namespace,
            executor=self.name,
            broker=self.broker,
            interval=settings.beat,
            facts=self._facts,
            queues=self._own_queues,
            discovered=self._discovered,
        )
        return [heartbeat, self._promoter, Janitor(self.broker, lambda: self.consumer.queues, settings)]

    async def run(self) -> None:
        """Run jobs until `stop` is called, or in a burst until nothing is left to run."""
        await self.consumer.serve(self._routing.including(self._own_queues()))
        reading = asyncio.create_task(self.consumer.run(), name="consumer")
        duties = [
            asyncio.create_task(tend(service, woken=getattr(service, "woken", None)), name=service.name)
            for service in self.services
        ]
        ending = asyncio.create_task(self._until_told(), name="ending")
        try:
            # A loop that dies by a bug must take the process down loudly, not leave it half alive.
            await asyncio.wait([reading, ending, *duties], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self._wind_down(reading, [ending, *duties])
        for task in (reading, *duties):
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    def stop(self, *, now: bool = False) -> None:
        """Take no more jobs, let those that run finish within the grace period. `now` skips the wait."""
        self._stop.set()
        if now:
            self._hurry.set()

    # Running

    def _start(self, delivery: Delivery) -> None:
        self.slots.take()
        self._held[delivery.token] = asyncio.create_task(self._run(delivery))

    async def _run(self, delivery: Delivery) -> None:
        began = clock.monotonic()
        try:
            outcome = await self._runner.run(delivery)
        except asyncio.CancelledError:
            self.slots.give_back()
            return
        self.slots.give_back()
        self._report(delivery, outcome, clock.monotonic() - began)
        self._settler.settle(delivery, outcome)

    def _settled(self, settled: Settled, answer: Answer) -> None:
        self._held.pop(settled.delivery.token, None)
        self._done += 1
        if answer is Answer.LOST:
            delivery = settled.delivery
            _logger.warning("lease_lost", job_id=delivery.id, task=delivery.task, queue=delivery.queue)

    def _report(self, delivery: Delivery, outcome: Outcome, seconds: float) -> None:
        """One line about the end of a run. Nothing is worked out for a line that is not written."""
        kind = outcome.kind
        if kind in (outcomes.SUCCESS, outcomes.SUCCESS_WITHOUT_VALUE) and not self._log_ends:
            return
        say: Any = _logger.error if kind == outcomes.DEAD else _logger.info
        facts = {"reason": outcome.reason} if outcome.reason else {}
        say(
            _WORDS[kind],
            job_id=delivery.id,
            task=delivery.task[:200],
            queue=delivery.queue,
            tries=delivery.tries + 1,
            seconds=round(seconds, 4),
            **facts,
        )

    # Queues

    def _own_queues(self) -> set[str]:
        return {task.queue for task in self.app.tasks.values()} | {self.app.settings.default_queue}

    async def _discovered(self, known: set[str]) -> None:
        await self.consumer.serve(self._routing.including(known | self._own_queues()))

    def _facts(self) -> dict[str, object]:
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "concurrency": self.slots.count,
            "running": self.slots.taken,
            "done": self._done,
            "queues": [keys.queue for keys in self.consumer.queues],
            "uptime": round(clock.monotonic() - self._started, 1),
        }

    # Stopping

    async def _until_told(self) -> None:
        if not self._burst:
            await self._stop.wait()
            return
        told = asyncio.create_task(self._stop.wait())
        while not told.done():
            await self.consumer.drained.wait()
            if not self._held:
                break
            await asyncio.wait([told, *self._held.values()], return_when=asyncio.FIRST_COMPLETED)
            await self._settler.drain()
        told.cancel()

    async def _wind_down(self, reading: asyncio.Task[None], duties: list[asyncio.Task[None]]) -> None:
        await self.consumer.stop(reading)
        await self._finish_running()
        await self._settler.drain()
        for duty in duties:
            duty.cancel()
        await asyncio.gather(*duties, return_exceptions=True)
        await self._leave()

    async def _finish_running(self) -> None:
        """Wait for what runs, at most the grace period; then cancel the rest and hand it back untouched."""
        hurry = asyncio.create_task(self._hurry.wait())
        deadline = clock.monotonic() + self._grace
        while (running := self._running()) and not hurry.done() and clock.monotonic() < deadline:
            left = deadline - clock.monotonic()
            await asyncio.wait([hurry, *running], timeout=left, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        for task in self._running():
            task.cancel()
        if rest := self._running():
            # A handler may swallow its cancellation, a thread cannot be stopped: neither may hold up the exit.
            await asyncio.wait(rest, timeout=1.0)
        await self._settler.drain()
        await self._hand_back()

    def _running(self) -> list[asyncio.Task[None]]:
        return [task for task in self._held.values() if not task.done()]

    async def _hand_back(self) -> None:
        for keys in self.consumer.queues:
            entries = [(lane, entry) for queue, lane, entry in self._held if queue == keys.queue]
            if entries:
                released = await self.broker.run(lifecycle.release(keys, entries))
                _logger.info("handed_back", queue=keys.queue, jobs=released)

    async def _leave(self) -> None:
        try:
            for keys in self.consumer.queues:
                await self.broker.run(presence.close_consumer(keys, self.name))
            await self.broker.ask(presence.forget_executors(self.app.namespace, [self.name]))
        except OSError as error:
            _logger.warning("left_without_farewell", error=str(error))
        await self.broker.close()
        await self.app.close()


_WORDS = {
    outcomes.SUCCESS: "job_succeeded",
    outcomes.SUCCESS_WITHOUT_VALUE: "job_succeeded",
    outcomes.RETRY: "job_retries",
    outcomes.SNOOZE: "job_snoozes",
    outcomes.DEAD: "job_died",
    outcomes.CANCELLED: "job_cancelled",
}
