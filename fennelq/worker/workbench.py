"""The jobs in the hands of an executor, each from its delivery until the reply to its settling."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from fennelq import clock, crash, log
from fennelq.broker.verbs.lifecycle import Settled
from fennelq.model import outcome as outcomes
from fennelq.model.job import Delivery
from fennelq.model.outcome import Outcome
from fennelq.worker.held import Held, Token
from fennelq.worker.reports import report_end, report_lost
from fennelq.worker.runner import Runner
from fennelq.worker.settler import Answer, Backlog, Settler
from fennelq.worker.slots import Slots
from fennelq.worker.strangers import Strangers

_logger = log.get("fennelq.worker")


class Workbench:
    """Starts deliveries and sends their outcomes to be settled.

    A job is held until its settling has been answered: until then its lease is renewed, although its slot is free. The
    other way round, a run that ignores a request to stop may be settled or lost and still take its slot.
    """

    def __init__(
        self, slots: Slots, runner: Runner, settler: Settler, strangers: Strangers, *, stop_grace: float
    ) -> None:
        self._slots, self._runner, self._settler, self._stop_grace = slots, runner, settler, stop_grace
        self._strangers = strangers
        self._held: dict[Token, Held] = {}
        self._stuck: set[Held] = set()
        """Runs that went on after they were asked to stop: each takes its slot until it really ends."""
        self._overdue = self._settle_without_its_task
        self._executor: asyncio.Task[Any] | None = None
        self.done = 0
        """Jobs whose outcome has been written down."""

    @property
    def backlog(self) -> Backlog:
        """What has an outcome that is not written down yet."""
        return self._settler.backlog

    def begin(self) -> None:
        """Called by the executor's own task, which ends when a job cancels every task there is."""
        self._executor = asyncio.current_task()

    def start(self, delivery: Delivery) -> None:
        """Run a delivery."""
        self._slots.take()
        held = self._held[delivery.token] = Held(delivery)
        held.task = asyncio.create_task(self._run(held))

    def holds(self, token: Token) -> bool:
        """Whether this job is in hand."""
        held = self._held.get(token)
        if held is not None and held.never_began:
            del self._held[token]
            self._slots.give_back()
            return False
        return held is not None

    def tokens(self) -> list[Token]:
        """The tokens of everything in hand. May be called from another thread. A run that never began is left out:
        the heartbeat then finds its entry stranded, and it is handed back."""
        return [token for token, held in list(self._held.items()) if not held.never_began]

    def entered(self, token: Token) -> bool:
        """Whether the handler of a job in hand may have begun."""
        held = self._held.get(token)
        return held is not None and held.entered

    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks of the jobs that have no outcome yet."""
        return [held.task for held in self._held.values() if held.running and held.task is not None]

    def job_of(self, task: asyncio.Task[Any] | None) -> str | None:
        """Which job a task of the loop runs, for people. May be called from another thread."""
        for held in (*list(self._held.values()), *list(self._stuck)):
            if held.task is task:
                return f"{held.delivery.task} ({held.delivery.id})"
        return None

    def lose(self, tokens: Iterable[Token]) -> None:
        """These jobs have been taken from us: stop their handlers. A job whose outcome is on its way is left alone:
        its settling may have taken it from us, and will be answered."""
        for token in tokens:
            held = self._held.get(token)
            if held is not None and held.outcome is None:
                del self._held[token]
                report_lost(held.delivery)
                held.stop()
                asyncio.get_running_loop().call_later(self._stop_grace, self._look_whether_stuck, held)

    def stop_all(self) -> list[asyncio.Task[None]]:
        """Ask every run without an outcome to stop; the tasks of those asked."""
        running = [held for held in self._held.values() if held.running]
        for held in running:
            held.stop()
        return [held.task for held in running if held.task is not None]

    def settle_again(self) -> None:
        """Hand over every outcome that is not written yet, once more: a cancellation of everything has dropped them."""
        for held in list(self._held.values()):
            if held.outcome is not None:
                self._settler.settle_now(held.delivery, held.outcome)

    async def settled(self) -> None:
        """Returns when every outcome so far has been written down."""
        await self._settler.drain()

    def settle_answered(self, settled: Settled, answer: Answer) -> None:
        """An outcome has been written down, or refused because the job is no longer ours."""
        self._held.pop(settled.delivery.token, None)
        self.done += 1
        if answer is Answer.LOST:
            report_lost(settled.delivery)

    async def _run(self, held: Held) -> None:
        began = clock.monotonic()
        held.begun = True
        if held.stopped:
            self._end(held)
            return
        held.entered = True
        if crash.at is not None:
            crash.at("before_handler")
        try:
            outcome = await self._runner.run(held, self._overdue)
        except asyncio.CancelledError:
            self._end(held)
            return
        if crash.at is not None:
            crash.at("after_handler")
        if held.outcome is not None or held.delivery.token not in self._held or self._falls_with(held):
            self._end(held)
            return
        held.outcome = outcome
        # The slot first, so that the next fetch is sent ahead of the outcome: its jobs run while the server settles.
        # The other way round, one process drained 28 % fewer jobs per second.
        if not self._settler.offer(held.delivery, outcome, self._slots.give_back):
            # The slot stays taken meanwhile, so that nothing more is read.
            await self._settler.settle(held.delivery, outcome)
            self._slots.give_back()
        self._report(held.delivery, outcome, clock.monotonic() - began)

    def _falls_with(self, held: Held) -> bool:
        """A job has cancelled this one together with the executor: it is innocent, and its lease brings it back."""
        return held.disturbed and self._executor is not None and self._executor.cancelling() > 0

    def _end(self, held: Held) -> None:
        """A run ends whose outcome no longer matters."""
        if held in self._stuck:
            self._stuck.discard(held)
            self._slots.stuck -= 1
        self._slots.give_back()

    # Runs that do not stop

    def _settle_without_its_task(self, held: Held, outcome: Outcome) -> None:
        """A run ignores its timeout: its outcome is written down all the same."""
        if held.running and held.delivery.token in self._held:
            held.outcome = outcome
            self._settler.settle_now(held.delivery, outcome)
            self._report(held.delivery, outcome, None)
            self._note_stuck(held)

    def _look_whether_stuck(self, held: Held) -> None:
        if held.task is not None and not held.task.done():
            self._note_stuck(held)

    def _note_stuck(self, held: Held) -> None:
        """Count it, and show where it hangs. Called once per run: a job is lost or settled as overdue, never both."""
        self._stuck.add(held)
        self._slots.stuck += 1
        _logger.error(
            "slot_stuck",
            job_id=held.delivery.id,
            task=held.delivery.task[:200],
            queue=held.delivery.queue,
            why="it was asked to stop and goes on",
            stack=held.stack(),
        )

    def _report(self, delivery: Delivery, outcome: Outcome, seconds: float | None) -> None:
        """One line about the end of a run; a job that waits for newer code is left to the strangers."""
        if outcome.kind == outcomes.UNKNOWN_TASK:
            self._strangers.met(delivery, outcome)
        else:
            report_end(delivery, outcome, seconds)
