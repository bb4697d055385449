"""Reports failed runs, and makes the spans of Sentry's page of queues.

A run learns only after its end whether its job is dead. So the exception is kept until the event that tells it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import sentry_sdk
from sentry_sdk.integrations.logging import ignore_logger
from sentry_sdk.scope import Scope, use_isolation_scope
from sentry_sdk.utils import event_from_exception

from fennelq import clock
from fennelq.context import JobContext, delivery_of
from fennelq.errors import ConfigurationError
from fennelq.middleware import Call
from fennelq.model.events import JobDied, JobFinished, JobRetried, JobStopped, LeaseLost
from fennelq.model.job import Delivery, Job
from fennelq.model.outcome import Snooze
from fennelq.plugin import Plugin

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.plugins.sentry import Sentry

_PUBLISH: Final = "queue.publish"
_PROCESS: Final = "queue.process"
_HEADERS: Final = ("sentry-trace", "baggage")
_LONGEST: Final = 2000
"""Characters of a header. Any client may write the headers of a job."""
_MOST_KEPT: Final = 200
"""Exceptions that wait for the end of their run. Each holds the frames of the run, so there must be few."""


class _Failure(NamedTuple):
    """An exception that has ended a run, and what is needed to report it."""

    error: BaseException
    scope: Scope
    trace: dict[str, Any]
    """The transaction of the run, as events name it."""
    delivery: Delivery


class Reporting:
    """The plugin of one app."""

    def __init__(self, how: Sentry, app: App) -> None:
        self._every, self._redaction = how.capture == "every", app.redaction
        self.failures: OrderedDict[str, _Failure] = OrderedDict()
        # With `log_config="none"`, fennelq's lines about failed jobs go through the standard library as well.
        ignore_logger("fennelq.*")

    def plugin(self) -> Plugin:
        """What an app uses."""
        return Plugin(
            "sentry",
            sending=[self.stamp],
            performing=[self.perform],
            surrounding=[self.surround],
            subscribers={
                JobFinished: self._note_end,
                JobRetried: self._note_retry,
                JobDied: self._note_death,
                JobStopped: self._forget,
                LeaseLost: self._forget,
            },
        )

    # Sending

    @contextmanager
    def surround(self, jobs: Sequence[Job[Any]]) -> Generator[None]:
        """The span of a call that sends these jobs. Without a transaction around it there is none: Sentry would drop
        it, and give its jobs no trace."""
        if sentry_sdk.get_current_span() is None:
            yield
            return
        first = jobs[0]
        with sentry_sdk.start_span(op=_PUBLISH, name=first.task, origin="auto.queue.fennelq") as span:
            span.set_data("messaging.system", "fennelq")
            span.set_data("messaging.destination.name", first.queue)
            if len(jobs) == 1:
                span.set_data("messaging.message.id", first.id)
            else:
                span.set_data("messaging.batch.message_count", len(jobs))
            yield

    def stamp(self, job: Job[Any]) -> Job[Any]:
        """The job with the trace of the call that sends it."""
        if not sentry_sdk.is_initialized() or "sentry-trace" in job.headers:
            return job
        scope = sentry_sdk.get_current_scope()
        found = dict(scope.iter_trace_propagation_headers())
        headers = {
            name: text
            for name in _HEADERS
            if (text := found.get(name)) and len(text) <= _LONGEST and name not in job.headers
        }
        try:
            return job.with_headers(headers) if headers else job
        except ConfigurationError:
            return job  # no room is left for further headers

    # Running

    async def perform(self, job: JobContext, call: Call) -> Any:
        """Run the job in a scope and a transaction of its own."""
        if not sentry_sdk.is_initialized():
            return await call()
        delivery = delivery_of(job)
        with sentry_sdk.isolation_scope() as scope:
            scope.clear_breadcrumbs()
            _describe(scope, delivery)
            trace = {
                name: text for name in _HEADERS if len(text := job.headers.get(name, "")) <= _LONGEST and text
            }
            transaction = _continued(trace, delivery.task)
            with sentry_sdk.start_transaction(transaction) as span:
                _measure(span, delivery)
                try:
                    value = await call()
                except BaseException as error:
                    if _is_failure(error, job.cancelled):
                        span.set_status("internal_error")
                        self.keep(_Failure(error, scope, span.get_trace_context(), delivery))
                    raise
                span.set_status("ok")
                return value

    # Reporting

    def keep(self, failure: _Failure) -> None:
        """Keep an exception until the end of its run is known; at most 200."""
        self.failures[failure.delivery.id] = failure
        while len(self.failures) > _MOST_KEPT:
            self.failures.popitem(last=False)

    def _forget(self, event: JobFinished | JobStopped | LeaseLost) -> None:
        self.failures.pop(event.id, None)

    def _note_end(self, event: JobFinished) -> None:
        if event.outcome not in ("retry", "dead"):
            self._forget(event)

    def _note_retry(self, event: JobRetried) -> None:
        failure = self.failures.pop(event.id, None)
        if self._every:
            self._report(event, failure, "warning")

    def _note_death(self, event: JobDied) -> None:
        self._report(event, self.failures.pop(event.id, None), "error")

    def _report(self, event: JobRetried | JobDied, failure: _Failure | None, level: str) -> None:
        if not sentry_sdk.is_initialized():
            return
        report: Any
        hint: dict[str, Any] = {}
        if failure is None:
            # The run has not raised: for example, its result could not be encoded, or it still goes on.
            report = {"exception": {"values": [_named(event)]}}
            scope = Scope()
            scope.set_tag("fennelq.task", event.task)
            scope.set_tag("fennelq.queue", event.queue)
            scope.set_tag("fennelq.job", event.id)
        else:
            scope = failure.scope
            report, hint = self._event_of(failure)
            report["contexts"] = {"trace": failure.trace}
            if isinstance(failure.error, asyncio.CancelledError):  # by which a timeout ends a run
                report["exception"]["values"][-1] |= _named(event)
        report["level"] = level
        report["fingerprint"] = [event.error.fingerprint or "{{ default }}"]
        report.setdefault("tags", {})["fennelq.reason"] = event.error.reason
        with use_isolation_scope(scope):
            sentry_sdk.capture_event(report, hint)

    def _event_of(self, failure: _Failure) -> tuple[Any, Any]:
        """The event of an exception, without the secrets of its job. The values of local variables are left out: they
        include the arguments of the task."""
        delivery = failure.delivery
        options = sentry_sdk.get_client().options
        event, hint = event_from_exception(
            failure.error, client_options=options, mechanism={"type": "fennelq", "handled": False}
        )
        hide = self._redaction.hiding(delivery.task, delivery.args, delivery.options)
        _clean(event, hide)
        # A function that is called with the hint, such as `before_send`, gets the exception as it is.
        return event, hint


def _named(event: JobRetried | JobDied) -> dict[str, str]:
    return {"type": event.error.error_type, "value": event.error.message}


def _describe(scope: Scope, delivery: Delivery) -> None:
    scope.set_tag("fennelq.task", delivery.task)
    scope.set_tag("fennelq.queue", delivery.queue)
    scope.set_tag("fennelq.job", delivery.id)
    scope.set_tag("fennelq.try", str(delivery.tries + 1))


def _continued(trace: dict[str, str], task: str) -> Any:
    """The transaction of a run, in the trace of these headers if they can be read."""
    how: dict[str, Any] = {"op": _PROCESS, "name": task, "source": "task", "origin": "auto.queue.fennelq"}
    try:
        return sentry_sdk.continue_trace(trace, **how)
    except Exception:
        return sentry_sdk.continue_trace({}, **how)


def _measure(span: Any, delivery: Delivery) -> None:
    since = delivery.due_ms or delivery.enqueued_ms
    span.set_data("messaging.system", "fennelq")
    span.set_data("messaging.destination.name", delivery.queue)
    span.set_data("messaging.message.id", delivery.id)
    span.set_data("messaging.message.retry.count", delivery.tries)
    span.set_data("messaging.message.body.size", len(delivery.args))
    span.set_data("messaging.message.receive.latency", max(0, clock.wall_ms() - since))


def _is_failure(error: BaseException, cancelled: str | None) -> bool:
    if isinstance(error, asyncio.CancelledError):
        return cancelled == "timeout"
    return not isinstance(error, Snooze)


def _clean(event: Any, hide: Callable[[str], str]) -> None:
    values: list[Any] = event["exception"]["values"]
    for value in values:
        value["value"] = hide(str(value.get("value") or ""))
        stack: Any = value.get("stacktrace") or {}
        for frame in stack.get("frames", []):
            frame.pop("vars", None)
