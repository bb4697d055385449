"""From a delivery to an outcome: find → bind → perform → judge. It never touches Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fennelq.context import JobContext, current
from fennelq.errors import PayloadTooLarge, UnknownTask
from fennelq.model import outcome
from fennelq.model.job import Delivery, JobFailure
from fennelq.model.outcome import Outcome, Reject, Retry, Snooze, failure_of
from fennelq.model.plan import Plan
from fennelq.task import AnyTask
from fennelq.worker.invoke import Invoker, TaskTimeout

Verdict = Callable[[JobFailure, int, int], Outcome]


class Bound(NamedTuple):
    """A delivery that can be run."""

    task: AnyTask
    plan: Plan
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Runner:
    """Runs deliveries of one app."""

    def __init__(
        self, tasks: Mapping[str, AnyTask], invoker: Invoker, *, failure_ttl_ms: int, most_bytes: int
    ) -> None:
        self._tasks, self._invoker = tasks, invoker
        self._failure_ttl_ms, self._most_bytes = failure_ttl_ms, most_bytes

    async def run(self, delivery: Delivery) -> Outcome:
        """Runs the job. Only a cancellation from outside is raised; everything else is an outcome."""
        try:
            bound = self._bind(self._find(delivery), delivery)
        except UnknownTask as error:
            return self._unrun(delivery, error, "unknown_task", outcome.not_known)
        except Exception as error:
            return self._unrun(delivery, error, "bad_payload", outcome.died)
        try:
            value = await self._perform(bound, delivery)
        except BaseException as error:
            if _cancelled_from_outside() and not isinstance(error, (Retry, Snooze, Reject)):
                # Whatever a handler makes of its cancellation is no failure: a deploy costs no try.
                raise asyncio.CancelledError from error
            return self._judge(bound.plan, delivery, error)
        return self._success(bound, delivery, value)

    def _find(self, delivery: Delivery) -> AnyTask:
        # Only what decorators registered can be run; a name from Redis is never imported.
        task = self._tasks.get(delivery.task)
        if task is None:
            raise UnknownTask(delivery.task, self._tasks)
        return task

    def _bind(self, task: AnyTask, delivery: Delivery) -> Bound:
        args, kwargs = task.calls.decode(delivery.args)
        return Bound(task, task.plan.overridden(delivery.options), args, kwargs)

    async def _perform(self, bound: Bound, delivery: Delivery) -> Any:
        current.set(JobContext(delivery, bound.plan))
        function = bound.task.function
        if bound.task.is_async:
            return await self._invoker.on_loop(function, bound.args, bound.kwargs, bound.plan.timeout)
        return await self._invoker.in_thread(function, bound.args, bound.kwargs)

    def _success(self, bound: Bound, delivery: Delivery, value: Any) -> Outcome:
        try:
            encoded = bound.task.returns.encode(value)
            if len(encoded) > self._most_bytes:
                raise PayloadTooLarge(f"the result of {delivery.task}", len(encoded), self._most_bytes)
        except Exception as error:
            # Encoding runs the user's code as well.
            failure = failure_of(error, "bad_result")
            return outcome.died(failure, delivery.tries + 1, bound.plan.failure_ttl_ms)
        return outcome.succeeded(encoded, bound.plan.result_ttl_ms)

    def _judge(self, plan: Plan, delivery: Delivery, error: BaseException) -> Outcome:
        """What a failed try comes to."""
        tries = delivery.tries + 1
        try:
            if isinstance(error, Snooze):
                return outcome.snoozed(error.seconds())
            if isinstance(error, Reject):
                return outcome.died(failure_of(error, "rejected"), tries, plan.failure_ttl_ms)
            failure = failure_of(error, "timeout" if isinstance(error, TaskTimeout) else "failed")
            wait = self._wait(plan, tries, error)
            if wait is None:
                return outcome.died(failure, tries, plan.failure_ttl_ms)
            return outcome.retried(wait, failure)
        except Exception as broken:
            # A curve is the user's code, and the seconds it answers may be infinite or no number.
            return outcome.died(failure_of(broken, "bad_retry_policy"), tries, plan.failure_ttl_ms)

    def _wait(self, plan: Plan, tries: int, error: BaseException) -> float | None:
        """Seconds until the next try, or None when there is none."""
        if isinstance(error, Retry):
            if tries > plan.retry.retries:
                return None
            return plan.retry.wait(tries) if error.delay is None else max(0.0, error.delay)
        return plan.retry.wait(tries) if plan.retry.allows(tries, error) else None

    def _unrun(self, delivery: Delivery, error: Exception, reason: str, comes_to: Verdict) -> Outcome:
        failure = JobFailure(type(error).__name__, str(error)[:4000], "", reason)
        return comes_to(failure, delivery.tries, self._failure_ttl_ms)


def _cancelled_from_outside() -> bool:
    """Whether this task was asked to stop, as opposed to a handler that raised CancelledError itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
