"""One process that runs jobs: a consumer, a workbench and the duties, composed."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from fennelq import clock, log, loops
from fennelq.app import App
from fennelq.broker import verbs
from fennelq.broker.blocking import BlockingBroker
from fennelq.broker.broker import ANSWER_TIMEOUT, Broker
from fennelq.broker.diagnosis import diagnose
from fennelq.broker.keys import LANES, QueueKeys
from fennelq.broker.verb import Verb
from fennelq.model.routing import Routing
from fennelq.worker.duties.courier import Courier
from fennelq.worker.duties.janitor import Janitor
from fennelq.worker.duties.listener import Listener
from fennelq.worker.duties.per_queue import run_per_queue
from fennelq.worker.duties.presence import Presence
from fennelq.worker.duties.promoter import Promoter
from fennelq.worker.duties.recovery import Recovery
from fennelq.worker.duties.recycler import Recycler
from fennelq.worker.duties.ticker import Ticker
from fennelq.worker.processes import signs
from fennelq.worker.running.consumer import Consumer
from fennelq.worker.running.invoke import Invoker
from fennelq.worker.running.runner import Runner
from fennelq.worker.running.settler import Settler
from fennelq.worker.running.slots import Slots
from fennelq.worker.running.strangers import Strangers
from fennelq.worker.running.workbench import Workbench
from fennelq.worker.service import Complaints, Outage, Service, tend
from fennelq.worker.threads.heartbeat import Findings, Heartbeat, answer_within
from fennelq.worker.threads.watchdog import Watchdog

_logger = log.get("fennelq.worker")
_FAREWELL = 5.0
_LOOK_AGAIN = 0.5
_UNSETTLED_PER_SLOT = 2
"""Outcomes that may wait to be written, per slot: enough to run jobs while a batch is on its way."""


def executor_name() -> str:
    """A name that no other executor has or will have. Short: with it no field of a plain record is longer than the 64
    bytes up to which Redis keeps small hashes packed."""
    return f"{socket.gethostname()[:28]}.{os.getpid()}.{os.urandom(3).hex()}"


class Executor:
    """Runs the jobs of an app until it is stopped."""

    def __init__(
        self,
        app: App,
        *,
        name: str | None = None,
        concurrency: int | None = None,
        routing: Routing | None = None,
        lanes: Sequence[str] = tuple(LANES.values()),
        burst: bool = False,
        grace: float | None = None,
        max_jobs: int | None = None,
        max_rss: int | None = None,
        tell: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        """`tell` says signs to the supervisor: see `worker.signs`."""
        self.app, self.name = app, name or executor_name()
        self._routing, self._burst, self._tell = routing or Routing.parse(None), burst, tell
        self._max_rss, self._lanes = max_rss, tuple(lanes)
        self._grace = app.settings.grace_period if grace is None else grace
        self._stop, self._hurry = asyncio.Event(), asyncio.Event()
        self._started = clock.monotonic()
        self._given_up = False
        self.recycled = False
        """Whether it has ended itself to make room for a fresh one."""
        self.slots = Slots(concurrency or app.settings.concurrency, max_jobs)
        self.broker = Broker(app.address)
        self.strangers = Strangers(app.tasks, app.service.partition(":")[0])
        self._outage = Outage(app.address)
        self.workbench = self._workbench()
        self._promoter = Promoter(self.broker, self._queues, self._longest_sleep)
        self._courier = Courier(app.namespace, self.broker)
        self._ticker = Ticker(
            app.namespace,
            app.service,
            self.broker,
            declared=lambda: app.declared.schedules,
            hand=self._courier.woken.set,
            longest=self._longest_sleep,
            outage=self._outage,
        )
        self._listener = Listener(
            app.namespace,
            self.broker,
            due=self._promoter.expect,
            schedules_changed=self._ticker.woken.set,
        )
        self.consumer = self._consumer(lanes)
        self.heartbeat = self._heartbeat()
        self.watchdog = self._watchdog()

    async def run(self) -> None:
        """Run jobs until `stop` is called, or in a burst until nothing is left to run.

        Raises when it falls over: when a part of it, or this very call, ends otherwise. What ran then keeps its lease:
        a job that makes its executor fall over spends a delivery each time, and is dead in the end.
        """
        self.workbench.begin()
        await self.consumer.serve(self._routing.including(self._own_queues()))
        self.watchdog.start()
        self.heartbeat.start()
        reading = asyncio.create_task(self.consumer.run(), name="consumer")
        duties = [
            asyncio.create_task(tend(service, outage=self._outage), name=service.name)
            for service in self._services()
        ]
        ending = asyncio.create_task(self._until_told(), name="ending")
        parts = [reading, ending, *duties]
        in_order = False
        loops.executing.add(asyncio.get_running_loop())
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            in_order = not self._given_up and (self._stop.is_set() or _has_ended_well(ending))
            if in_order:
                await self._wind_down(reading, [ending, *duties])
        except BaseException:
            await self._fall(parts)
            raise
        finally:
            loops.executing.discard(asyncio.get_running_loop())
        if not in_order:
            await self._fall(parts)
            raise GivenUp if self._given_up else _why(parts)

    def stop(self, *, now: bool = False) -> None:
        """Take no more jobs, let those that run finish within the grace period. `now` skips the wait."""
        self._stop.set()
        self.consumer.halt()
        if now:
            self._hurry.set()

    def recycle(self) -> None:
        """Stop, to make room for a fresh executor."""
        self.recycled = True
        self.stop()

    # What it is made of

    def _workbench(self) -> Workbench:
        app = self.app
        runner = Runner(
            app.tasks,
            Invoker(self.slots.count, app.settings.stop_grace),
            failure_ttl_ms=app.lifetimes.failure_ms,
            most_bytes=app.settings.max_payload_bytes,
        )
        most = _UNSETTLED_PER_SLOT * self.slots.count
        settler = Settler(app.namespace, self.broker, app.lifetimes, most, self._outage)
        bench = Workbench(self.slots, runner, settler, self.strangers, stop_grace=app.settings.stop_grace)
        settler.tell = bench.settle_answered
        return bench

    def _consumer(self, lanes: Sequence[str]) -> Consumer:
        return Consumer(
            app=self.app.namespace,
            name=self.name,
            broker=self.broker,
            lanes=lanes,
            lifetimes=self.app.lifetimes,
            slots=self.slots,
            start=self.workbench.start,
            holds=self.workbench.holds,
            due=self._promoter.expect,
            too_new=self.strangers.too_new,
            block_ms=max(100, min(5000, round(self.app.settings.lease * 250))),
            patience=min(ANSWER_TIMEOUT, answer_within(self.app.settings.lease)),
            outage=self._outage,
        )

    def _heartbeat(self) -> Heartbeat:
        return Heartbeat(
            broker=BlockingBroker(self.app.address),
            executor=self.name,
            lease=self.app.settings.lease,
            interval=self.app.settings.beat,
            queues=self._queues,
            held=self.workbench.tokens,
            report=self._found,
            outage=self._outage,
        )

    def _watchdog(self) -> Watchdog:
        return Watchdog(
            stall_timeout=self.app.settings.stall_timeout,
            running=self.workbench.job_of,
            alive=self._say_alive,
            stalled=self._stalled,
            heartless=lambda: self.heartbeat.dead,
        )

    def _services(self) -> list[Service]:
        app, settings = self.app, self.app.settings
        here = Presence(
            app=app.namespace,
            executor=self.name,
            broker=self.broker,
            interval=settings.beat,
            facts=self._facts,
            queues=lambda: self._own_queues() | {keys.queue for keys in self._queues()},
            discovered=self._discovered,
        )
        recovery = Recovery(
            self.broker,
            self._queues,
            settings=settings,
            lifetimes=app.lifetimes,
            steady=lambda: self.heartbeat.steady,
            beaten=self.heartbeat.beaten,
            deaths=lambda: here.deaths,
        )
        recycler = Recycler(
            self.slots, max_stuck=settings.max_stuck, max_rss=self._max_rss, recycle=self.recycle
        )
        timing: list[Service] = [self._listener, self._promoter, self._ticker, self._courier]
        return [here, *timing, recovery, recycler, Janitor(self.broker, self._queues, settings)]

    def _longest_sleep(self) -> float:
        """A message tells when a job becomes due sooner; while messages cannot arrive, look more often."""
        settings = self.app.settings
        return (
            max(settings.beat, settings.schedule_interval)
            if self._listener.listening
            else settings.schedule_interval
        )

    # What the threads report

    def _found(self, found: Findings) -> None:
        """Called by the heartbeat's thread."""
        if found.quarantined:
            self._tell(signs.QUARANTINE)
        if found.lost or found.stranded:
            self.watchdog.loop.call_soon_threadsafe(self._act_on, found)

    def _act_on(self, found: Findings) -> None:
        self.workbench.lose(found.lost)
        self.consumer.suspect(found.stranded)

    def _say_alive(self) -> None:
        ready = self.consumer.connected and self.heartbeat.answered
        self._tell(signs.ALIVE + (signs.READY if ready else signs.NOT_READY))

    def _stalled(self, sign: bytes) -> None:
        """The executor is given up: let the leases run out, and ask for a successor. Should the loop still move, the
        executor falls over by itself, because a supervisor may not have received the sign."""
        self.heartbeat.end()
        with suppress(RuntimeError):
            self.watchdog.loop.call_soon_threadsafe(self._give_up)
        self._tell(sign)

    def _give_up(self) -> None:
        self._given_up = True
        self.stop()

    # Queues

    def _queues(self) -> list[QueueKeys]:
        return self.consumer.queues

    def _own_queues(self) -> set[str]:
        return {task.queue for task in self.app.tasks.values()} | {self.app.settings.default_queue}

    async def _discovered(self, known: set[str]) -> None:
        await self.consumer.serve(self._routing.including(known | self._own_queues()))

    def _facts(self) -> dict[str, object]:
        facts: dict[str, object] = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "concurrency": self.slots.count,
            "running": self.slots.taken,
            "stuck": self.slots.stuck,
            "done": self.workbench.done,
            "queues": [keys.queue for keys in self.consumer.queues],
            "uptime": round(clock.monotonic() - self._started, 1),
        }
        # What is so for nearly every executor goes without saying: each of them says all of this with every beat.
        if self._routing.every:
            facts["every_queue"] = True
        if self._lanes != tuple(LANES.values()):
            facts["lanes"] = self._lanes
        if too_old_for := self.strangers.facts():
            facts["too_old_for"] = too_old_for
        return facts

    # Stopping

    async def _until_told(self) -> None:
        ends: list[asyncio.Task[Any]] = [asyncio.create_task(self._stop.wait(), name="told")]
        if self._burst:
            ends.append(asyncio.create_task(self._until_nothing_is_left(), name="burst"))
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in done:
                end.result()
        finally:
            for end in ends:
                end.cancel()

    async def _until_nothing_is_left(self) -> None:
        complaints = Complaints("looking whether anything is left", self._outage)
        while True:
            try:
                if await self._nothing_is_left():
                    return
            except Exception as error:
                complaints.about(error)
                await asyncio.sleep(_LOOK_AGAIN)

    async def _nothing_is_left(self) -> bool:
        await self.consumer.drained.wait()
        await self.workbench.settled()
        if running := self.workbench.tasks():
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            return False
        # The last job may have sent another before it ended, even to a queue that was not known until then.
        done = self.workbench.done
        await self._discovered(await self.broker.ask(verbs.queues.known_queues(self.app.namespace)))
        await self.consumer.look_again()
        return self.workbench.done == done and not self.workbench.tokens()

    async def _wind_down(self, reading: asyncio.Task[None], duties: list[asyncio.Task[None]]) -> None:
        await self.consumer.stop(reading)
        await self._finish_running()
        await _cancelled(duties)
        await self._leave()

    async def _fall(self, parts: list[asyncio.Task[None]]) -> None:
        """Hand nothing back: the leases bring back the jobs that run, and count it. Outcomes are still written down."""
        self.heartbeat.end()
        self.watchdog.end()
        self.consumer.halt()
        await _cancelled(parts)
        self.workbench.settle_again()
        await self._settle_the_rest()
        self.workbench.stop_all()
        await self.broker.close()

    async def _finish_running(self) -> None:
        """Wait for what runs, at most the grace period; then stop the rest and hand it back untouched."""
        hurry = asyncio.create_task(self._hurry.wait())
        deadline = clock.monotonic() + self._grace
        while (running := self.workbench.tasks()) and not hurry.done() and clock.monotonic() < deadline:
            left = deadline - clock.monotonic()
            await asyncio.wait([hurry, *running], timeout=left, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if rest := self.workbench.stop_all():
            # A handler may swallow its cancellation, and a thread cannot be stopped: neither may hold up the exit.
            await asyncio.wait(rest, timeout=1.0)
        await self._settle_the_rest()
        await self._hand_back()

    async def _settle_the_rest(self) -> None:
        with suppress(TimeoutError):
            # Without Redis no outcome can be written down, and an exit cannot wait for ever: such a job runs again.
            async with asyncio.timeout(_FAREWELL):
                await self.workbench.settled()

    async def _hand_back(self) -> None:
        for keys in self.consumer.queues:
            tokens = [token for token in self.workbench.tokens() if token[0] == keys.queue]
            begun = [token[1:] for token in tokens if self.workbench.entered(token)]
            unstarted = [token[1:] for token in tokens if not self.workbench.entered(token)]
            if begun:
                await self._release(keys, verbs.runs.release(keys, begun), len(begun))
            if unstarted:
                await self._release(keys, verbs.runs.release(keys, unstarted, "unstarted"), len(unstarted))

    async def _release(self, keys: QueueKeys, release: Verb[int], jobs: int) -> None:
        try:
            released = await self.broker.run(release)
        except Exception as error:
            # They come back all the same, when their leases have run out.
            _logger.warning("not_handed_back", queue=keys.queue, jobs=jobs, error=self._why(error))
        else:
            _logger.info("handed_back", queue=keys.queue, jobs=released)

    async def _leave(self) -> None:
        self.heartbeat.end()
        self.watchdog.end()
        complaints = Complaints("leaving", self._outage)
        try:
            await run_per_queue(self.broker, self.consumer.queues, self._close_consumer, complaints)
            await self.broker.ask(verbs.executors.forget_executors(self.app.namespace, [self.name]))
        except Exception as error:
            complaints.about(error)
        await self.broker.close()

    def _why(self, error: Exception) -> str:
        return diagnose(self.app.address, error).sentence

    def _close_consumer(self, keys: QueueKeys) -> Verb[int]:
        return verbs.executors.close_consumer(keys, self.name)


class GivenUp(Exception):
    """The watchdog has given the executor up: its loop was stalled, or a thread that it needs has died."""


async def _cancelled(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _has_ended_well(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _why(parts: list[asyncio.Task[None]]) -> BaseException:
    """What made the executor fall over: the error of a part, unless a job has cancelled the part."""
    errors = [part.exception() for part in parts if part.done() and not part.cancelled()]
    found = next((error for error in errors if error is not None), None)
    return found or RuntimeError(
        "a part of the executor was cancelled, by a job that cancels what is not its own"
    )
