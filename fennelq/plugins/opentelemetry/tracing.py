"""Makes the spans: one around each call that sends jobs, and one around each run. A span is never a reason for a job
not to be sent or not to run: an error of a sampler or of a processor of spans is logged."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as contexts
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode
from structlog.contextvars import bind_contextvars, reset_contextvars

from fennelq import __version__, clock, log
from fennelq.broker.keys import GROUP
from fennelq.context import JobContext, current, delivery_of
from fennelq.errors import ConfigurationError
from fennelq.middleware import Call
from fennelq.model.job import Delivery, Job
from fennelq.model.outcome import Snooze, failure_of
from fennelq.plugin import Plugin
from fennelq.plugins.opentelemetry import conventions as names
from fennelq.plugins.opentelemetry.headers import baggage_written, read, trace_id, with_baggage, written
from fennelq.plugins.opentelemetry.measures import Measures

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.plugins.opentelemetry import OpenTelemetry

_logger = log.get("fennelq.opentelemetry")

_EMPTY: Final = Context()
(_SPAN,) = trace.set_span_in_context(trace.INVALID_SPAN, _EMPTY)
"""The key of the span in a context. `set_span_in_context` copies a context first, which takes twice as long."""
# Members of an Enum are looked up by a function of Python before 3.12.
_PRODUCER, _CLIENT, _CONSUMER = SpanKind.PRODUCER, SpanKind.CLIENT, SpanKind.CONSUMER
_bound: Final = bind_contextvars(trace_id="")
_trace_id: Final = _bound["trace_id"].var
"""What structlog binds. To set it takes a fifth of the time of `bind_contextvars`."""
reset_contextvars(**_bound)
_QUIET_FOR: Final = 60.0
"""Seconds from one line about lost spans to the next."""
_creation: Final[ContextVar[Mapping[str, str] | None]] = ContextVar("fennelq_creation", default=None)
"""The headers of the context that the jobs of the call under way carry."""


class Tracing:
    """The plugin of one app."""

    def __init__(self, how: OpenTelemetry, app: App) -> None:
        self._child, self._baggage, self._app = how.parent == "child", how.baggage, app
        self.tracer = trace.get_tracer("fennelq", __version__, how.tracer_provider, names.SCHEMA_URL)
        meter = metrics.get_meter("fennelq", __version__, how.meter_provider, names.SCHEMA_URL)
        self.measures = Measures(meter)
        self._logged_at = -_QUIET_FOR

    def plugin(self) -> Plugin:
        """What an app uses."""
        return Plugin(
            "opentelemetry", sending=[self.stamp], performing=[self.perform], surrounding=[self.surround]
        )

    # Sending

    def surround(self, jobs: Sequence[Job[Any]]) -> Sending:
        """The span of a call that sends these jobs."""
        return Sending(self, jobs)

    def stamp(self, job: Job[Any]) -> Job[Any]:
        """The job with the context of the call that sends it. A job that is sent a second time keeps the context in
        which it was sent first."""
        there = job.headers
        if names.TRACEPARENT in there and read(there) is not None:
            return job
        headers = _creation.get()
        if headers is None:
            # A schedule, whose executor creates the job without a call.
            span = self.start_sending([job], job.queue)
            self.end(span)
            headers = self.headers_of(span.get_span_context())
        if not headers:
            return job
        try:
            return job.with_headers(headers)
        except ConfigurationError:
            return job  # no room is left for further headers

    def headers_of(self, context: SpanContext) -> Mapping[str, str]:
        """The headers of the jobs that are created in this context."""
        # A link to a span that was not sampled leads nowhere. A child has to know that its parent was not.
        headers = written(context) if context.trace_flags.sampled or self._child else {}
        return {**baggage_written(), **headers} if self._baggage else headers

    def start_sending(self, jobs: Sequence[Job[Any]], queue: str) -> Span:
        """Start the span of a call that sends these jobs. `queue` is empty for several queues."""
        attributes = self._of_send.copy()
        if queue:
            attributes[names.DESTINATION] = queue
        if len(jobs) == 1:
            job = jobs[0]
            attributes[names.MESSAGE_ID], attributes[names.TASK] = job.id, job.task
            kind = _PRODUCER
        else:
            attributes[names.BATCH_COUNT] = len(jobs)
            kind = _CLIENT
        name = f"{names.SEND} {queue}" if queue else names.SEND
        return self._started(name, _context_of_caller(), kind, attributes)

    def _started(
        self,
        name: str,
        context: Context | None,
        kind: SpanKind,
        attributes: dict[str, str | int],
        links: Sequence[Link] | None = None,
    ) -> Span:
        """A new span; one that is not recorded when a sampler or a processor of the program raises an error."""
        try:
            return self.tracer.start_span(name, context, kind, attributes, links)
        except Exception as error:
            self._note_lost(error)
            return trace.INVALID_SPAN

    def end(self, span: Span) -> None:
        """End a span. A processor of the program may raise an error."""
        try:
            span.end()
        except Exception as error:
            self._note_lost(error)

    def _note_lost(self, error: Exception) -> None:
        now = clock.monotonic()
        if self._logged_at + _QUIET_FOR <= now:
            self._logged_at = now
            _logger.warning("span_lost", error=f"{type(error).__name__}: {error}")

    @cached_property
    def _of_send(self) -> dict[str, str | int]:
        return self._of(names.SEND)

    @cached_property
    def _of_run(self) -> dict[str, str | int]:
        return {**self._of(names.PROCESS), names.CONSUMER_GROUP: GROUP}

    def _of(self, operation: str) -> dict[str, str | int]:
        """The attributes that all spans of an operation have. Not known earlier: an app without a URL starts its server
        with the first call."""
        address = self._app.address
        server: dict[str, str | int] = {names.SERVER_ADDRESS: address.path}
        if not address.path:
            server = {names.SERVER_ADDRESS: address.host, names.SERVER_PORT: address.port}
        return {
            **server,
            names.SYSTEM: names.FENNELQ,
            names.OPERATION_NAME: operation,
            names.OPERATION_TYPE: operation,
        }

    # Running

    async def perform(self, job: JobContext, call: Call) -> Any:
        """Run the job in a span."""
        delivery = delivery_of(job)
        headers = job.headers
        span = self._start_run(delivery, headers)
        context = Context({_SPAN: span})
        if self._baggage:
            context = with_baggage(headers, context)
        token = contexts.attach(context)
        found = span.get_span_context()
        if found.is_valid and found.trace_flags.sampled:
            _trace_id.set(trace_id(found))
        began, error = clock.monotonic(), ""
        try:
            return await call()
        except BaseException as raised:
            error = self._note(span, job, delivery, raised)
            raise
        finally:
            contexts.detach(token)
            self.end(span)
            self.measures.processed(delivery.queue, clock.monotonic() - began, error)

    def _start_run(self, delivery: Delivery, headers: Mapping[str, str]) -> Span:
        origin = read(headers)
        context = _EMPTY
        if self._child and origin is not None:
            context = trace.set_span_in_context(trace.NonRecordingSpan(origin), _EMPTY)
        queue = delivery.queue
        attributes = self._of_run.copy()
        attributes[names.DESTINATION] = queue
        attributes[names.MESSAGE_ID] = delivery.id
        attributes[names.TASK] = delivery.task
        attributes[names.TRY] = delivery.tries + 1
        attributes[names.DELIVERY] = delivery.deliveries
        attributes[names.FENCE] = delivery.fence
        links = None if origin is None else [Link(origin)]
        return self._started(f"{names.PROCESS} {queue}", context, _CONSUMER, attributes, links)

    def _note(self, span: Span, job: JobContext, delivery: Delivery, error: BaseException) -> str:
        """Describe the error on the span, without the secrets of the job; returns the kind of the error, empty when it
        is none."""
        if isinstance(error, Snooze):  # the task has chosen to run later
            return ""
        kind = kind_of(error, job.cancelled)
        span.set_attribute(names.ERROR_TYPE, kind)
        if kind in _NO_FAILURES or not span.is_recording():
            return kind
        span.set_status(Status(StatusCode.ERROR))
        if isinstance(error, Exception):
            hidden = self._app.redaction.hiding(delivery.task, delivery.args, delivery.options)
            failure = failure_of(error, hiding=lambda: hidden)
            event = {
                names.EXCEPTION_TYPE: failure.error_type,
                names.EXCEPTION_MESSAGE: failure.message,
                names.EXCEPTION_STACKTRACE: failure.traceback,
            }
            span.add_event(names.EXCEPTION, event)
        return kind


class Sending:
    """The span of a call that sends jobs, as a context manager."""

    __slots__ = ("_began", "_jobs", "_queue", "_span", "_token", "_tracing")

    def __init__(self, tracing: Tracing, jobs: Sequence[Job[Any]]) -> None:
        self._tracing, self._jobs, self._queue = tracing, jobs, queue_of(jobs)

    def __enter__(self) -> None:
        """Start the span."""
        self._began = clock.monotonic()
        self._span = self._tracing.start_sending(self._jobs, self._queue)
        context = self._span.get_span_context()
        if len(self._jobs) > 1:
            # A span for each job of a thousand would say nothing, so their runs link to what the caller does.
            caller = trace.get_current_span(_context_of_caller()).get_span_context()
            context = caller if caller.is_valid else context
        self._token = _creation.set(self._tracing.headers_of(context))

    def __exit__(self, _: object, error: BaseException | None, trace: TracebackType | None) -> None:
        """End the span."""
        _creation.reset(self._token)
        kind = "" if error is None else kind_of(error, None)
        if kind:
            self._span.set_attribute(names.ERROR_TYPE, kind)
            if kind not in _NO_FAILURES:
                self._span.set_status(Status(StatusCode.ERROR))
        self._tracing.end(self._span)
        self._tracing.measures.sent(len(self._jobs), self._queue, clock.monotonic() - self._began, kind)


_CANCELLED: Final = "cancelled"
_TIMEOUT, _LOST, _STOPPED = "timeout", "lost", "stopped"
_NO_FAILURES: Final = (_CANCELLED, _STOPPED)


def kind_of(error: BaseException, cancelled: str | None) -> str:
    """The value of `error.type`. `cancelled` is why the run was asked to stop."""
    if isinstance(error, asyncio.CancelledError):
        if cancelled is None:
            return _STOPPED
        return cancelled if cancelled in (_TIMEOUT, _LOST) else _CANCELLED
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def queue_of(jobs: Sequence[Job[Any]]) -> str:
    """The queue of these jobs; empty for several."""
    queue = jobs[0].queue
    if len(jobs) == 1:
        return queue
    return queue if all(job.queue == queue for job in jobs) else ""


def _context_of_caller() -> Context | None:
    """The context that the span of a call belongs to. None is the current one. A task with `isolation="process"` runs
    in another process than its span, so the calls of such a task belong to the span that sent its job."""
    job = current.get(None)
    if job is None or trace.get_current_span().get_span_context().is_valid:
        return None
    origin = read(job.headers)
    return None if origin is None else trace.set_span_in_context(trace.NonRecordingSpan(origin), _EMPTY)
