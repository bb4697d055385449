"""The jobs in the hands of an executor, each from its delivery until the answer to its settling."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from fennelq import clock, crash, log
from fennelq.broker.verbs.lifecycle import Settled
from fennelq.model import outcome as outcomes
from fennelq.model.job import Delivery
from fennelq.model.outcome import Outcome
from fennelq.worker.heartbeat import Token
from fennelq.worker.runner import Runner
from fennelq.worker.settler import Answer, Settler
from fennelq.worker.slots import Slots

_logger = log.get("fennelq.worker")


class Workbench:
    """Starts deliveries and sends their outcomes to be settled.

    A job is held until its settling has been answered: until then its lease is renewed, although its slot is free.
    """

    def __init__(self, slots: Slots, runner: Runner, settler: Settler) -> None:
        self._slots, self._runner, self._settler = slots, runner, settler
        self._held: dict[Token, _Work] = {}
        self._log_ends = log.wanted("info")
        self.done = 0
        """Jobs whose outcome has been written down."""

    def start(self, delivery: Delivery) -> None:
        """Run a delivery."""
        self._slots.take()
        work = self._held[delivery.token] = _Work(delivery)
        work.task = asyncio.create_task(self._run(work))

    def holds(self, token: Token) -> bool:
        """Whether this job is in hand."""
        return token in self._held

    def tokens(self) -> list[Token]:
        """The tokens of everything in hand. May be called from another thread."""
        return list(self._held)

    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks of the jobs that run."""
        return [work.task for work in self._held.values() if work.task is not None and not work.task.done()]

    def job_of(self, task: asyncio.Task[Any] | None) -> str | None:
        """Which job a task of the loop runs, for people. May be called from another thread."""
        for work in list(self._held.values()):
            if work.task is task:
                return f"{work.delivery.task} ({work.delivery.id})"
        return None

    def lose(self, tokens: Iterable[Token]) -> None:
        """These jobs have been taken from us: cancel their handlers. A job whose outcome is on its way is left alone:
        its settling may have taken it from us, and will be told."""
        for token in tokens:
            work = self._held.get(token)
            if work is not None and not work.settling:
                del self._held[token]
                _say_lost(work.delivery)
                if work.task is not None:
                    work.task.cancel()

    async def settled(self) -> None:
        """Returns when every outcome so far has been written down."""
        await self._settler.drain()

    def settle_answered(self, settled: Settled, answer: Answer) -> None:
        """An outcome has been written down, or refused because the job is no longer ours."""
        self._held.pop(settled.delivery.token, None)
        self.done += 1
        if answer is Answer.LOST:
            _say_lost(settled.delivery)

    async def _run(self, work: _Work) -> None:
        began = clock.monotonic()
        if crash.at is not None:
            crash.at("before_handler")
        try:
            outcome = await self._runner.run(work.delivery)
        except asyncio.CancelledError:
            self._slots.give_back()
            return
        if crash.at is not None:
            crash.at("after_handler")
        self._slots.give_back()
        if work.delivery.token not in self._held:
            return
        work.settling = True
        self._settler.settle(work.delivery, outcome)
        # After it, because a log that cannot be written must not keep a job from being settled.
        self._report(work.delivery, outcome, clock.monotonic() - began)

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


class _Work:
    """A job in hand."""

    __slots__ = ("delivery", "settling", "task")

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self.task: asyncio.Task[None] | None = None
        self.settling = False


def _say_lost(delivery: Delivery) -> None:
    _logger.warning(
        "lease_lost",
        job_id=delivery.id,
        task=delivery.task[:200],
        queue=delivery.queue,
        tries=delivery.tries + 1,
    )


_WORDS = {
    outcomes.SUCCESS: "job_succeeded",
    outcomes.SUCCESS_WITHOUT_VALUE: "job_succeeded",
    outcomes.RETRY: "job_retries",
    outcomes.SNOOZE: "job_snoozes",
    outcomes.DEAD: "job_died",
    outcomes.UNKNOWN_TASK: "task_unknown",
    outcomes.CANCELLED: "job_cancelled",
}
