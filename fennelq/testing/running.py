"""Executors for an app under test. Each is a whole executor, in the loop of the test: it runs in a burst, until no job
is left, or until it is killed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from fennelq import clock, loops
from fennelq.broker import verbs
from fennelq.broker.keys import GROUP, LANES, queue_keys
from fennelq.broker.verb import Command, Word, as_is
from fennelq.model.job import Delivery, JobInfo, Status
from fennelq.model.outcome import DEAD, RETRY, failure_from_wire
from fennelq.model.wire import AnyWireJob
from fennelq.testing.clock import now, pass_time
from fennelq.testing.found import Found
from fennelq.testing.summary import FailedTry
from fennelq.testing.wiring import TestedBroker, TestedWiring
from fennelq.worker.bus import JobEnded, JobStarted
from fennelq.worker.duties.courier import Courier
from fennelq.worker.duties.ticker import Ticker
from fennelq.worker.executor import Executor
from fennelq.worker.lifespan import Lifespan
from fennelq.worker.processes.config import ExecutorConfig
from fennelq.worker.running.held import Held, frames_of_task
from fennelq.worker.running.runner import Runner
from fennelq.worker.state import State

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.task import AnyTask

_PROMOTED_AT_ONCE = 1000
_BEGINS_WITHIN = 5.0
_ENDS_WITHIN = 1.0
_POLL = 0.005
_HOUR_MS = 3_600_000


class Running:
    """Runs the jobs of one app under test."""

    def __init__(self, app: App, wiring: TestedWiring) -> None:
        self._app, self._wiring, self._found = app, wiring, Found(app)
        self._config = ExecutorConfig(burst=True, concurrency=app.settings.concurrency, grace=0)
        self._at_work: list[Executor] = []
        self.failures: list[FailedTry] = []
        """The tries that have failed so far."""

    def where_they_wait(self) -> str:
        """A line for each job that runs: its id, and the calls in which it waits."""
        held = [held for executor in self._at_work for held in executor.state.held.by_token.values()]
        return "\n".join(
            f"  {one.delivery.id}: {one.stack() or 'in a thread'}" for one in held if one.running
        )

    async def until_idle(self) -> None:
        """Run everything that is ready or due, and what these jobs send."""
        await self._bring_due()
        await self._burst(self._config)
        left = 0
        while True:
            if self._found.quarantined():
                await self._burst(self._config.for_quarantine())
            elif await self._bring_due():
                await self._burst(self._config)
            elif (ready := self._found.ready()) != left:
                # A job that has become due while the executor ended, or jobs that cannot run now.
                left = ready
                await self._burst(self._config)
            else:
                return

    async def now(self, ids: Sequence[str]) -> None:
        """Run these jobs until each has ended, without waiting for due times. A job that was snoozed is left, and so is
        one of a paused queue, or one that waits for a slot which a job that is running now may hold."""
        for job_id in ids:
            before: int | None = None
            while (job := await self._app.client.info(job_id)) is not None and not job.status.ended:
                if job.status is Status.EXECUTING:
                    await asyncio.sleep(_POLL)  # another executor of this test has it
                elif self._was_snoozed(job) or self._found.is_paused(job.queue):
                    break
                else:
                    before, seen = self._found.before(job_id), before
                    if self._at_work and before is not None and before == seen:
                        break
                    self._found.bring_forward(job_id)
                    await self.until_idle()

    @staticmethod
    def _was_snoozed(job: JobInfo) -> bool:
        return job.status is Status.SCHEDULED and job.started_at is not None

    async def send_recurring(self) -> bool:
        """Declare the schedules of the code, and send the jobs of those that are due; True when there were any."""
        if not self._found.has_schedules():
            return False
        self._app.blocking.ask(pass_time(self._app.namespace, 0))
        state, sent = State(self._app, self._config), False
        ticker, courier = Ticker(state), Courier(state)
        try:
            while await ticker.tick() == 0.0:
                pass
            while await courier.tick() == 0.0:
                sent = True
        finally:
            await state.broker.close()
        return sent

    async def _bring_due(self) -> bool:
        """Put the jobs that are due into their lanes; True when there were any."""
        sent = await self.send_recurring()
        queues = [queue_keys(self._app.namespace, queue) for queue in self._found.queues()]
        client, moved = self._app.client, 0
        for keys in queues:
            while page := (await client.ask(verbs.queues.promote(keys, _PROMOTED_AT_ONCE)))[0]:
                moved += page
        return sent or moved > 0

    async def _burst(self, config: ExecutorConfig) -> None:
        executor = Executor(self._app, config)
        executor.state.bus.subscribe(JobEnded, self._note_end)
        self._at_work.append(executor)
        try:
            await executor.run()
        except BaseException:
            # Its jobs have been stopped. They must not look as if they still ran.
            self._recover(executor.name)
            raise
        finally:
            self._at_work.remove(executor)
            self._wiring.close()

    def _note_end(self, end: JobEnded) -> None:
        if end.outcome.kind in (RETRY, DEAD):
            failure, _ = failure_from_wire(end.outcome.error)
            self.failures.append(
                FailedTry(
                    end.delivery.id,
                    end.delivery.task,
                    failure.error_type,
                    failure.message,
                    failure.traceback,
                )
            )

    async def call(self, job: AnyWireJob) -> Any:
        """The value that the task of this job returns, called here as an executor calls it, but not through Redis."""
        if (senders := self._app.middleware.senders) is not None:
            job = senders.through(job)
        state = State(self._app, self._config)
        lifespan, held = Lifespan(state), Held(_delivery_of(job))
        runner = Runner(self._app, 1, state.shared)
        try:
            with loops.executes():
                await lifespan.enter(asyncio.Event())
                return await _value(runner, held)
        finally:
            await runner.close()
            await lifespan.leave()

    # Killing

    async def kill_during(self, task: AnyTask) -> bool:
        """Run jobs until one of this task has begun, and then kill its executor; False when none begins."""
        await self._bring_due()
        executor = Executor(self._app, self._config)
        victim = Victim(executor, task)
        life = asyncio.create_task(executor.run(), name="executor")
        try:
            ends: list[asyncio.Future[Any]] = [life, victim.taken]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if life.done():
                await life
                return False
            await victim.has_begun()
        finally:
            stopped = executor.workbench.stop_all()
            life.cancel()
            await asyncio.wait([life])
            if not life.cancelled():
                life.exception()  # marks it as retrieved
            if stopped:
                # With a timeout: a thread cannot be stopped.
                await asyncio.wait(stopped, timeout=_ENDS_WITHIN)
        self._recover(executor.name)
        return True

    def _recover(self, executor: str) -> None:
        """Let the leases of a dead executor run out, and recover its jobs."""
        app, lease_ms = self._app, round(self._app.settings.lease * 1000)
        for queue in self._found.queues():
            keys = queue_keys(app.namespace, queue)
            for lane in verbs.queues.lanes():
                _forget_lease(app, keys[lane], executor, lease_ms)
            recover = verbs.runs.recover(
                keys,
                app.lifetimes,
                lease_ms=lease_ms,
                interval_ms=1,
                max_deliveries=app.settings.max_deliveries,
                beaten_ms=app.blocking.ask(now(app.namespace)),
                more=True,
                deaths={executor: "killed by kill_executor"},
            )
            while app.blocking.run(recover).more:
                pass


def _delivery_of(job: AnyWireJob) -> Delivery:
    """The first delivery of a job that is not in Redis."""
    options = str(job.carried.get("options", "")).encode()
    lane = LANES[job.priority]
    return Delivery(job.queue, lane, "0-0", job.key, job.task, job.args, options, 0, 1, 1, clock.wall_ms())


async def _value(runner: Runner, held: Held) -> Any:
    value: Any = None

    async def run() -> None:
        nonlocal value
        value = await runner.value(held, _time_out)

    # In a task of its own, which a timeout can cancel.
    held.task, held.begun = asyncio.create_task(run(), name="call"), True
    try:
        await held.task
    finally:
        held.task.cancel()
    return value


def _time_out(held: Held) -> None:
    held.time_out()


def _forget_lease(app: App, lane: str, executor: str, lease_ms: int) -> None:
    """Make the entries of an executor look as if it had been silent for a lease."""
    words: list[Word] = ["XPENDING", lane, GROUP, "-", "+", 10_000, executor]
    (pending,) = app.blocking.run_each([Command(words, as_is)])
    if isinstance(pending, Exception) or not pending:
        return  # the lane does not exist yet
    claim = ["XCLAIM", lane, GROUP, executor, 0, *(row[0] for row in pending)]
    app.blocking.ask(Command([*claim, "IDLE", lease_ms + _HOUR_MS, "JUSTID"], as_is))


class Victim:
    """An executor that falls silent when it starts a job of a task: from then on it writes nothing to Redis."""

    def __init__(self, executor: Executor, task: AnyTask) -> None:
        self._executor, self._task = executor, task
        self.taken: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()
        """Done when a job of the task has a slot."""
        executor.state.bus.subscribe(JobStarted, self._look_at)

    def _look_at(self, started: JobStarted) -> None:
        if started.delivery.task == self._task.name and not self.taken.done():
            self._executor.heartbeat.end()
            assert isinstance(self._executor.broker, TestedBroker)
            self._executor.broker.fall_silent()
            self.taken.set_result(started.delivery)

    async def has_begun(self) -> None:
        """Returns when the function of the task runs, or has run already."""
        held = self._executor.state.held.by_token[self.taken.result().token]
        code = getattr(self._task.function, "__code__", None)
        deadline = clock.monotonic() + _BEGINS_WITHIN
        while held.running and clock.monotonic() < deadline:
            await asyncio.sleep(0)
            if held.entered and (code is None or _runs(held.task, code)):
                return


def _runs(task: asyncio.Task[None] | None, code: CodeType) -> bool:
    """Whether a call of this function is under way: in this task of the loop, or in a thread."""
    if any(frame.f_code is code for frame in frames_of_task(task)):
        return True
    threads = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
    return any(_is_in(frame, code) for frame in threads.values())


def _is_in(frame: FrameType | None, code: CodeType) -> bool:
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False
