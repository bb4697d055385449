"""Runs the jobs that an executor holds, and passes their outcomes to the settler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from fennelq import clock, crash, log
from fennelq.broker.verbs.runs import Settled
from fennelq.model import outcome as outcomes
from fennelq.model.job import Delivery
from fennelq.model.outcome import Outcome
from fennelq.worker.bus import CancelRequested, JobEnded, JobLost, JobStarted, LeasesLost, RunOutrun
from fennelq.worker.running.early import EarlyRequests
from fennelq.worker.running.held import LOST, STOPPED, Held, Token
from fennelq.worker.running.reports import report_end, report_lost, report_outrun
from fennelq.worker.running.runner import Runner
from fennelq.worker.running.settler import Backlog, Settler
from fennelq.worker.state import State

_logger = log.get("fennelq.worker")


class Workbench:
    """Starts deliveries and passes their outcomes to the settler.

    A job is held until Redis has replied to its settling. Until then its lease is renewed, although its slot is free
    already. A run that ignores a request to stop keeps its slot, although the job may be settled or lost already.
    """

    def __init__(self, state: State, runner: Runner, settler: Settler) -> None:
        self._slots, self._runner, self._settler = state.slots, runner, settler
        self._held, self._unrunnable = state.held, state.unrunnable
        self._notes = settler.notes
        self._stop_grace = state.settings.stop_grace
        self._time_out = self._note_timeout
        self._early = EarlyRequests()
        self._executor: asyncio.Task[Any] | None = None
        self._bus = state.bus
        self._at_starts, self._at_ends = state.bus.subscribers(JobStarted), state.bus.subscribers(JobEnded)
        state.bus.subscribe(LeasesLost, lambda leases: self.lose(leases.tokens))
        state.bus.subscribe(CancelRequested, self._cancel)
        state.bus.subscribe(RunOutrun, lambda run: self._take_away([run.token], report_outrun))

    @property
    def backlog(self) -> Backlog:
        """The outcomes that are not written yet."""
        return self._settler.backlog

    def begin(self) -> None:
        """Remember the current task as the executor's own, to detect a job that cancels all tasks."""
        self._executor = asyncio.current_task()

    def start(self, delivery: Delivery) -> None:
        """Run a delivery."""
        self._slots.take()
        held = self._held.by_token[delivery.token] = Held(delivery, self._notes)
        held.task = asyncio.create_task(self._run(held))
        if self._at_starts:
            self._bus.publish(JobStarted(delivery))
        if self._early.by_token and (why := self._early.take(delivery.token)) is not None:
            self.ask(held, why)

    def holds(self, token: Token) -> bool:
        """Whether this job is held."""
        held = self._held.by_token.get(token)
        if held is not None and held.never_began:
            # Cancelled before its first step, so it has not given its slot back itself.
            del self._held.by_token[token]
            self._slots.give_back()
            return False
        return held is not None

    def lose(self, tokens: Iterable[Token]) -> None:
        """Other executors have taken these jobs: stop their handlers. A job with an outcome is left alone. Its entry
        may be gone because its own settling was written, and the reply to that is still under way."""
        self._take_away(tokens, report_lost)

    def _take_away(self, tokens: Iterable[Token], report: Callable[[Delivery], None]) -> None:
        for token in tokens:
            held = self._held.by_token.get(token)
            if held is not None and held.outcome is None:
                del self._held.by_token[token]
                if held.never_began:
                    self._slots.give_back()
                report(held.delivery)
                held.stop(LOST)
                self._give_up_later(held)
                self._bus.publish(JobLost(held.delivery))

    def ask(self, held: Held, why: str) -> None:
        """Ask a run to stop. If it goes on for `stop_grace`, its outcome is settled without it, and its slot is
        stuck."""
        if held.running and held.ask(why):
            self._give_up_later(held)

    def _cancel(self, request: CancelRequested) -> None:
        """A client has cancelled a job. If it is not held, the reply that delivers it may be under way."""
        held = self._held.by_token.get(request.token)
        if held is None:
            self._early.add(request.token, request.why)
        else:
            self.ask(held, request.why)

    def stop_all(self) -> list[asyncio.Task[None]]:
        """Ask every run without an outcome to stop; returns their tasks."""
        running = [held for held in self._held.by_token.values() if held.running]
        for held in running:
            held.stop(STOPPED)
        return [held.task for held in running if held.task is not None]

    def settle_again(self) -> None:
        """Pass every outcome that is not written yet to the settler once more: a job that cancelled all tasks may have
        cancelled the tasks that wrote them."""
        for held in list(self._held.by_token.values()):
            if held.outcome is not None:
                self._settler.settle_now(held.delivery, held.outcome)

    async def settled(self) -> None:
        """Returns when every outcome so far has been written."""
        await self._settler.drain()

    async def _run(self, held: Held) -> None:
        try:
            held.begun = began = clock.monotonic()
            if held.asked is not None:
                self._end_before_its_start(held)
                return
            held.entered = True
            if crash.at is not None:
                crash.at("before_handler")
            try:
                outcome = await self._runner.run(held, self._time_out)
            except asyncio.CancelledError:
                self._end(held)
                return
            if crash.at is not None:
                crash.at("after_handler")
            if (
                held.outcome is not None
                or held.delivery.token not in self._held.by_token
                or self._was_cancelled_with_executor(held)
            ):
                self._end(held)
                return
            held.outcome = outcome
            settled = Settled(held.delivery, outcome, clock.monotonic() - began)
            # Give the slot back first, so that the next fetch is sent ahead of the outcome, and its jobs run while the
            # server settles. In the other order, one process drained 28 % fewer jobs per second.
            if not self._settler.offer(settled, self._slots.give_back):
                # The backlog has no room for the outcome. The slot stays taken until it has, so that no more jobs are
                # read.
                await self._settler.settle(settled)
                self._slots.give_back()
            self._report(*settled)
        finally:
            # Ends a cycle of references: task, context, JobContext, Held. The garbage collector would have to find it
            # for every job, which took a sixth of the worker's CPU time.
            held.task = None

    def _was_cancelled_with_executor(self, held: Held) -> bool:
        """Whether other code has cancelled this job's task together with the executor's own. Then the job did not fail:
        it is not settled, and is recovered when its lease has run out."""
        return held.disturbed and self._executor is not None and self._executor.cancelling() > 0

    def _end(self, held: Held) -> None:
        """End a run without an outcome to write."""
        if held in self._held.stuck:
            self._held.stuck.discard(held)
            self._slots.end_stuck()
        self._slots.give_back()

    def _end_before_its_start(self, held: Held) -> None:
        """It was asked to stop before its first step, so its handler never begins."""
        if held.stopped:
            self._end(held)
            return
        self._settle_without_its_task(held, 0.0)
        self._slots.give_back()

    # Runs that do not stop

    def _note_timeout(self, held: Held) -> None:
        """The timeout of a run is over. Its timer has an end before the run has an outcome."""
        if held.time_out():
            self._give_up_later(held)

    def _give_up_later(self, held: Held) -> None:
        asyncio.get_running_loop().call_later(self._stop_grace, self._give_up, held)

    def _give_up(self, held: Held) -> None:
        """A run goes on `stop_grace` after it was asked to stop: write its outcome, if the job is still ours, and count
        its slot as stuck."""
        # The first step of a run that was asked before it ends it. A loop that was blocked may call this sooner.
        if not held.begun or not held.running or held in self._held.stuck:
            return
        if not held.stopped:
            self._settle_without_its_task(held, None)
        self._note_stuck(held)

    def _settle_without_its_task(self, held: Held, seconds: float | None) -> None:
        held.outcome = outcome = self._runner.given_up(held)
        self._settler.settle_now(held.delivery, outcome)
        self._report(held.delivery, outcome, seconds)

    def _note_stuck(self, held: Held) -> None:
        """Count the run as stuck, and log where it hangs."""
        self._held.note_stuck(held)
        self._slots.note_stuck()
        _logger.error(
            "slot_stuck",
            job_id=held.delivery.id,
            task=held.delivery.task[:200],
            queue=held.delivery.queue,
            why="it was asked to stop and goes on",
            stack=held.stack(),
        )

    def _report(self, delivery: Delivery, outcome: Outcome, seconds: float | None) -> None:
        """Publish the end of a run to its subscribers, and log it."""
        if self._at_ends:
            self._bus.publish(JobEnded(delivery, outcome, seconds))
        if outcome.kind == outcomes.UNKNOWN_TASK:
            self._unrunnable.met(delivery, outcome)
        else:
            report_end(delivery, outcome, seconds)
