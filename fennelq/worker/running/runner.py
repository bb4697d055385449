"""Turns a delivery into an outcome: find the task, bind the arguments, perform the call, judge the error. It never
touches Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from fennelq.app import App
from fennelq.context import JobContext, current
from fennelq.errors import PayloadTooLarge, UnknownArgument, UnknownTask
from fennelq.model import outcome
from fennelq.model.job import Delivery, JobFailure
from fennelq.model.outcome import (
    Hidden,
    Outcome,
    Raised,
    RateLimited,
    Reject,
    Retry,
    Snooze,
    bad_result,
    failure_of,
    seconds_of,
)
from fennelq.model.plan import Plan
from fennelq.model.retry import allows, wait_after
from fennelq.task import AnyTask
from fennelq.worker.cells.pool import Cells, TaskCrashed
from fennelq.worker.processes.config import ExecutorConfig
from fennelq.worker.running.body import Body, Bound, RunCancelled, TaskTimeout, TimeOut, too_late
from fennelq.worker.running.held import Held
from fennelq.worker.running.invoke import loop_is_gone
from fennelq.worker.running.signing import Signer
from fennelq.worker.shared import SharedValues

Verdict = Callable[[JobFailure, int, int], Outcome]

_REASONS: Final[Mapping[type[BaseException], str]] = {TaskTimeout: "timeout", TaskCrashed: "crashed"}
_UNFIT: Final[Mapping[str, Verdict]] = {
    "bad_payload": outcome.died,
    "unknown_argument": outcome.not_known,
    "unknown_task": outcome.not_known,
}
"""What the process of a task finds out about a delivery, and this one finds out about the others: see `run`."""


class Runner:
    """Runs deliveries of one app."""

    def __init__(
        self, app: App, threads: int, shared: SharedValues, config: ExecutorConfig | None = None
    ) -> None:
        self._redaction = app.redaction
        self._tasks, self._cells = app.tasks, Cells(app, config or ExecutorConfig())
        self._sign = Signer(app).signed
        self._body = Body(threads, shared, self._cells, app.settings.stop_grace)
        self._failure_ttl_ms, self._most_bytes = app.lifetimes.failure_ms, app.settings.max_payload_bytes

    async def run(self, held: Held, time_out: TimeOut) -> Outcome:
        """Runs the job. Raises CancelledError when the executor stopped it. Everything else is an outcome, even a
        SystemExit or a cancellation by other code: no exception of a job may end its executor. `time_out` is called
        when the timeout of the job is over."""
        delivery = held.delivery
        try:
            bound = self._bind(self._find(delivery), delivery)
        except UnknownTask as error:
            return self._unrun(delivery, error, "unknown_task", outcome.not_known)
        except UnknownArgument as error:
            return self._unrun(delivery, error, "unknown_argument", outcome.not_known)
        except BaseException as error:  # validators of models are the user's code and may raise anything
            return self._unrun(delivery, error, "bad_payload", outcome.died)
        try:
            value = await self._perform(bound, held, time_out)
        except BaseException as error:
            if isinstance(error, GeneratorExit) and loop_is_gone():
                raise
            if held.stopped and not isinstance(error, (Retry, Snooze, Reject)):
                # A handler may raise another error when it is cancelled. It does not count as a failure, because a
                # deploy must not cost a try.
                raise asyncio.CancelledError from error
            if held.cancelled_by_client:
                return self.given_up(held)
            held.disturbed = _is_cancelled(error)
            return self._judge(bound.plan, delivery, RunCancelled() if held.disturbed else error)
        return self._success(bound, held, value)

    @property
    def cells(self) -> list[int]:
        """The process ids of the processes of tasks."""
        return self._cells.pids

    async def close(self) -> None:
        """End the processes of tasks that run in processes of their own."""
        await self._cells.close()

    async def value(self, held: Held, time_out: TimeOut) -> Any:
        """The value that the task returns; raises what it raises. For `fennelq.testing`: `run` returns outcomes."""
        task = self._find(held.delivery)
        value = await self._perform(self._bind(task, held.delivery), held, time_out)
        return task.returns.decode(task.returns.encode(value))

    def given_up(self, held: Held) -> Outcome:
        """The outcome of a run that was asked to stop and has not succeeded."""
        if not held.overran:
            return outcome.cancelled(held.asked or "cancelled", self._failure_ttl_ms)
        # Computed a second time, because keeping the plan would cost every job.
        plan = self._find(held.delivery).plan.overridden(held.delivery.options)
        error = too_late(held, plan.timeout)
        if where := held.stack():
            error.add_note(f"It goes on although it was asked to stop: {where}")
        return self._judge(plan, held.delivery, error)

    def _find(self, delivery: Delivery) -> AnyTask:
        # Only registered functions: importing a name that comes from Redis would run arbitrary code.
        task = self._tasks.get(delivery.task)
        if task is None:
            raise UnknownTask(delivery.task, self._tasks)
        return task

    def _bind(self, task: AnyTask, delivery: Delivery) -> Bound:
        args, kwargs = task.read(delivery.args)
        return Bound(task, task.plan.overridden(delivery.options), args, kwargs)

    async def _perform(self, bound: Bound, held: Held, time_out: TimeOut) -> Any:
        task, plan = bound.task, bound.plan
        current.set(JobContext(held, plan))
        if task.plain and plan.timeout is None:
            return await task.function(*bound.args, **bound.kwargs)
        return await self._body.perform(bound, held, time_out)

    def _success(self, bound: Bound, held: Held, value: Any) -> Outcome:
        delivery = held.delivery
        try:
            encoded = bound.task.returns.encode(value)
            if len(encoded) > self._most_bytes:
                raise PayloadTooLarge(f"the result of {delivery.task}", len(encoded), self._most_bytes)
        except BaseException as error:  # encoding runs the user's code as well
            if held.cancelled_by_client:
                return self.given_up(held)
            failure = self._failure(delivery, error, "bad_result")
            return outcome.died(failure, delivery.tries + 1, bound.plan.failure_ttl_ms)
        return outcome.succeeded(encoded, bound.plan.result_ttl_ms)

    def _judge(self, plan: Plan, delivery: Delivery, error: BaseException) -> Outcome:
        """The outcome of a failed try."""
        tries = delivery.tries + 1
        try:
            if isinstance(error, RateLimited):
                return outcome.rate_limited(seconds_of(error))
            if isinstance(error, Snooze):
                return outcome.snoozed(seconds_of(error))
            if isinstance(error, Reject):
                return outcome.died(self._failure(delivery, error, "rejected"), tries, plan.failure_ttl_ms)
            failure = self._failure(delivery, error, _REASONS.get(type(error), "failed"))
            if failure.reason in _UNFIT:
                return _UNFIT[failure.reason](failure, delivery.tries, self._failure_ttl_ms)
            wait = self._wait(plan, tries, error)
            if wait is None:
                return outcome.died(failure, tries, plan.failure_ttl_ms)
            return outcome.retried(wait, failure, plan.retry.retries + 1)
        except BaseException as broken:
            # The curve is the user's code: it may raise, or return infinity or a value that is not a number.
            failure = self._failure(delivery, broken, "bad_retry_policy")
            return outcome.died(failure, tries, plan.failure_ttl_ms)

    def _wait(self, plan: Plan, tries: int, error: BaseException) -> float | None:
        """Seconds until the next try; None when no try is left."""
        if isinstance(error, Retry):
            if tries > plan.retry.retries:
                return None
            return wait_after(plan.retry, tries) if error.delay is None else max(0.0, error.delay)
        again = error.again if isinstance(error, Raised) else allows(plan.retry, tries, error)
        return wait_after(plan.retry, tries) if again else None

    def _unrun(self, delivery: Delivery, error: BaseException, reason: str, verdict: Verdict) -> Outcome:
        failure = failure_of(error, reason, self._hiding(delivery))
        failure = failure._replace(error_type=type(error).__name__, traceback="")
        return verdict(self._sign(failure, delivery.task, error), delivery.tries, self._failure_ttl_ms)

    def _failure(self, delivery: Delivery, error: BaseException, reason: str) -> JobFailure:
        """What is kept of an error: without the secrets of the job, and with its fingerprint."""
        make = bad_result if reason == "bad_result" else partial(failure_of, reason=reason)
        return self._sign(make(error, hiding=self._hiding(delivery)), delivery.task, error)

    def _hiding(self, delivery: Delivery) -> Callable[[], Hidden]:
        """Makes the function that hides the secrets of a job in texts about its failure; it is called only for a
        failure."""
        return partial(self._redaction.hiding, delivery.task, delivery.args, delivery.options)


def _is_cancelled(error: BaseException) -> bool:
    """Whether the task was cancelled, as opposed to a handler that raised CancelledError itself."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
