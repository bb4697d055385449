"""Composes an executor, a process that runs jobs, from a consumer, a workbench and the duties."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from fennelq import log, loops
from fennelq.app import App
from fennelq.model.questions import Drain
from fennelq.worker.bus import (
    DrainAsked,
    ExecutorBegun,
    ExecutorEnded,
    ExecutorEnding,
    ExecutorGivenUp,
    StopAsked,
)
from fennelq.worker.duties import DUTIES
from fennelq.worker.duties.service import tend
from fennelq.worker.events import EventFeed
from fennelq.worker.lifespan import Lifespan
from fennelq.worker.plugins import PluginServices
from fennelq.worker.processes.config import ExecutorConfig
from fennelq.worker.processes.signals import SignalPipe
from fennelq.worker.running.abstainer import Abstainer
from fennelq.worker.running.burst import Burst
from fennelq.worker.running.consumer import Consumer
from fennelq.worker.running.runner import Runner
from fennelq.worker.running.settler import Settler
from fennelq.worker.running.workbench import Workbench
from fennelq.worker.shutdown import Shutdown
from fennelq.worker.state import State
from fennelq.worker.threads.deputy import Deputy
from fennelq.worker.threads.heartbeat import Heartbeat
from fennelq.worker.threads.watchdog import Watchdog

_logger = log.get("fennelq.worker")


class Executor:
    """Runs the jobs of an app until it is stopped."""

    def __init__(
        self, app: App, config: ExecutorConfig | None = None, signals: SignalPipe | None = None
    ) -> None:
        """`signals` go to the supervisor."""
        config = config or ExecutorConfig(
            concurrency=app.settings.concurrency, grace=app.settings.grace_period
        )
        self.state = state = State(app, config, signals)
        self.name, self.slots, self.broker = state.name, state.slots, state.broker
        self.runner = Runner(app, state.slots.count, state.shared, config)
        self.workbench = Workbench(state, self.runner, Settler(state))
        self.consumer = (Consumer if config.consumes else Abstainer)(state, self.workbench)
        self.heartbeat = Heartbeat(state, app.wiring.blocking(app.address))
        self.watchdog = Watchdog(state)
        self.deputy = Deputy(state, app.wiring.blocking(app.address))
        self._events, self._plugins = EventFeed(state), PluginServices(state)
        self._duties = [duty(state) for duty in DUTIES]
        self._burst = Burst(state, self.consumer, self.workbench)
        self._shutdown = Shutdown(
            state,
            self.consumer,
            self.workbench,
            (self.heartbeat, self.watchdog, self.deputy),
            self._duties,
        )
        self._stop = asyncio.Event()
        self._lifespan = Lifespan(state)
        self._given_up = False
        self.recycled = False
        """Whether it stopped so that the supervisor can replace it."""
        self.drained = False
        """Whether it stopped because a person wants it to, and no successor."""
        state.bus.subscribe(StopAsked, lambda _: self.recycle())
        state.bus.subscribe(DrainAsked, lambda asked: self._drain(asked.how))
        state.bus.subscribe(ExecutorGivenUp, lambda _: self._give_up())

    async def run(self) -> None:
        """Run jobs until `stop` is called, or in a burst until no job is left.

        Raises the error of the app's lifespan if that cannot be entered. Then no job is read.

        Raises when the executor fails: when one of its parts, or this call itself, ends in any other way. Then it does
        not hand back the running jobs: they are recovered when their leases have run out, which counts as a delivery.
        So a job that makes its executor fail is dead after `max_deliveries`, and does not return for ever.
        """
        self.state.bus.attach(asyncio.get_running_loop())
        async with AsyncExitStack() as ends:
            ends.push_async_callback(self._lifespan.leave)
            ends.push_async_callback(self.runner.close)
            if await self._lifespan.enter(self._stop):
                await self._run()

    async def _run(self) -> None:
        bus = self.state.bus
        async with AsyncExitStack() as ends:
            ends.enter_context(loops.executes())
            ends.push_async_callback(self._events.end)
            ends.callback(bus.publish, ExecutorEnded())
            ends.push_async_callback(self._plugins.end)
            bus.publish(ExecutorBegun())
            self._plugins.start()
            await self._run_parts()

    async def _run_parts(self) -> None:
        state = self.state
        self.workbench.begin()
        self.consumer.serve(state.routing_among(()))
        self.watchdog.start()
        self.heartbeat.start()
        self.deputy.start()
        reading = asyncio.create_task(self.consumer.run(), name="consumer")
        duties = [
            asyncio.create_task(tend(duty, outage=state.outage), name=duty.name) for duty in self._duties
        ]
        ending = asyncio.create_task(self._until_stopped(), name="ending")
        parts = [reading, ending, *duties]
        in_order = False
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            in_order = not self._given_up and (self._stop.is_set() or _has_ended_well(ending))
            if in_order:
                await self._shutdown.in_order(reading, [ending, *duties])
        except BaseException:
            await self._shutdown.at_once(parts)
            raise
        if not in_order:
            await self._shutdown.at_once(parts)
            raise GivenUp if self._given_up else _cause_of_end(parts)

    def stop(self, *, now: bool = False) -> None:
        """Take no more jobs, and let the running ones finish within the grace period. `now` skips the wait."""
        self._stop.set()
        self.consumer.halt()
        self.state.note_ending("stopping")
        self.state.bus.publish(ExecutorEnding())
        if now:
            self._shutdown.hurry()

    @property
    def lifespan_failed(self) -> bool:
        """Whether it has ended because the lifespan of the app could not be entered."""
        return self._lifespan.failed

    def recycle(self) -> None:
        """Stop, so that the supervisor starts a new executor."""
        self.recycled = True
        self.stop()

    def _drain(self, how: Drain) -> None:
        """Stop, because a person has asked for it. If it stops already to be replaced, it is not replaced any more."""
        self.drained |= not how.replace
        self.recycled |= how.replace
        if how.ignored:
            _logger.warning("grace_ignored", found=how.ignored, seconds=self.state.grace)
        if self.state.ending is None:
            self.state.note_ending("draining", how.grace)
            _logger.info(
                "executor_drains",
                running=self.slots.taken,
                successor=how.replace,
                seconds=self.state.grace,
            )
            self.stop()

    def _give_up(self) -> None:
        self._given_up = True
        self.stop()

    async def _until_stopped(self) -> None:
        ends: list[asyncio.Task[Any]] = [asyncio.create_task(self._stop.wait(), name="stopped")]
        if self.state.config.burst:
            ends.append(asyncio.create_task(self._burst.done(), name="burst"))
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in done:
                end.result()
        finally:
            for end in ends:
                end.cancel()


class GivenUp(Exception):
    """The watchdog has asked for a successor, because the loop was stalled or a necessary thread has died."""


def _has_ended_well(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _cause_of_end(parts: list[asyncio.Task[None]]) -> BaseException:
    """The error that ended a part of the executor. A part without an error was cancelled by the code of a job."""
    errors = [part.exception() for part in parts if part.done() and not part.cancelled()]
    found = next((error for error in errors if error is not None), None)
    return found or RuntimeError(
        "a part of the executor was cancelled, by a job that cancels tasks other than its own"
    )
