"""The plugin OpenTelemetry, with the real SDK: spans, links, attributes, metrics, and what is dropped."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import orjson
import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Decision, Sampler, SamplingResult
from opentelemetry.semconv.attributes import error_attributes, exception_attributes, server_attributes
from opentelemetry.trace import SpanKind, StatusCode
from structlog.contextvars import get_contextvars
from structlog.testing import capture_logs

from fennelq import (
    App,
    BrokerUnavailable,
    ConfigurationError,
    Reject,
    RetryPolicy,
    Snooze,
    Status,
    TaskFailed,
)
from fennelq.context import JobContext, current
from fennelq.model.job import Delivery
from fennelq.model.wire import WireJob
from fennelq.plugins.opentelemetry import OpenTelemetry, conventions
from fennelq.plugins.opentelemetry.headers import read, written
from fennelq.plugins.opentelemetry.measures import Measures
from fennelq.plugins.opentelemetry.tracing import Tracing
from fennelq.testing import Testing
from tests.features.conftest import MakeApp
from tests.kit.apps import LocalApp
from tests.kit.workers import running, running_aside

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GOOD = f"00-{TRACE}-{SPAN}-01"


class Traced:
    """The exporter of the spans of an app."""

    def __init__(self, **provided: Any) -> None:
        self.memory = InMemorySpanExporter()
        self.provider = TracerProvider(**provided)
        self.provider.add_span_processor(SimpleSpanProcessor(self.memory))
        self.tracer = self.provider.get_tracer("test")
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider(metric_readers=[self.reader])

    def follow(self, app: App, **how: Any) -> None:
        app.use(OpenTelemetry(tracer_provider=self.provider, meter_provider=self.meters, **how))

    def spans(self, word: str) -> list[ReadableSpan]:
        """Those whose names begin with this word, in the order in which they began."""
        found = [span for span in self.memory.get_finished_spans() if span.name.startswith(word)]
        return sorted(found, key=lambda span: span.start_time or 0)

    def metrics(self) -> dict[str, list[tuple[dict[str, Any], int]]]:
        """Name → (attributes, number) of each point."""
        data = self.reader.get_metrics_data()
        every: Any = data.resource_metrics[0].scope_metrics[0].metrics if data else []
        return {
            metric.name: [
                (dict(point.attributes or {}), getattr(point, "value", 0) or getattr(point, "count", 0))
                for point in metric.data.data_points
            ]
            for metric in every
        }


@pytest.fixture
def traced() -> Traced:
    return Traced()


def link_of(span: ReadableSpan) -> trace.SpanContext:
    (link,) = span.links
    return link.context


def own(span: ReadableSpan) -> trace.SpanContext:
    found: trace.SpanContext | None = span.get_span_context()
    assert found is not None
    return found


def is_same(one: trace.SpanContext, other: trace.SpanContext) -> bool:
    return (one.trace_id, one.span_id) == (other.trace_id, other.span_id)


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


# Spans


async def test_a_job_has_a_span_where_it_is_sent_and_a_linked_one_where_it_runs(
    app: App, traced: Traced
) -> None:
    traced.follow(app)

    @app.task(name="shop:welcome", queue="mail")
    async def welcome() -> str:
        return trace.format_trace_id(trace.get_current_span().get_span_context().trace_id)

    with traced.tracer.start_as_current_span("request") as request:
        result = await welcome.delay()
    async with running(app):
        assert await result.get(timeout=30)
    (send,), (run,) = traced.spans("send"), traced.spans("process")
    assert (send.name, send.kind) == ("send mail", SpanKind.PRODUCER)
    assert send.parent is not None
    assert is_same(send.parent, request.get_span_context())
    host, port = app.address.host, app.address.port
    assert attributes_of(send) == {
        "messaging.system": "fennelq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "mail",
        "messaging.message.id": result.id,
        "fennelq.task": "shop:welcome",
        "server.address": host,
        "server.port": port,
    }
    assert (run.name, run.kind, run.parent) == ("process mail", SpanKind.CONSUMER, None)
    assert own(run).trace_id != own(send).trace_id
    assert is_same(link_of(run), own(send))
    assert await result.get() == trace.format_trace_id(own(run).trace_id)
    assert attributes_of(run) == {
        "messaging.system": "fennelq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "mail",
        "messaging.message.id": result.id,
        "messaging.consumer.group.name": "fq",
        "fennelq.task": "shop:welcome",
        "fennelq.try": 1,
        "fennelq.delivery": 1,
        "fennelq.fence": 1,
        "server.address": host,
        "server.port": port,
    }
    assert run.status.status_code is StatusCode.UNSET
    scope = run.instrumentation_scope
    assert scope is not None
    assert (scope.name, scope.schema_url) == ("fennelq", conventions.SCHEMA_URL)


async def test_every_retry_links_to_the_same_span(t: Testing, traced: Traced) -> None:
    app = t.app
    traced.follow(app)

    @app.task(retry=RetryPolicy.fixed(2, delay=60))
    async def fail(password: str) -> None:
        raise ConnectionError(f"refused for {password}")

    await fail.delay("hunter2-hunter2")
    for _ in range(3):
        await t.run_until_idle()
        t.tick(60)
    (send,), runs = traced.spans("send"), traced.spans("process")
    assert [attributes_of(run)["fennelq.try"] for run in runs] == [1, 2, 3]
    assert all(is_same(link_of(run), own(send)) for run in runs)
    assert len({own(run).trace_id for run in runs}) == 3
    assert {run.status.status_code for run in runs} == {StatusCode.ERROR}
    assert {attributes_of(run)["error.type"] for run in runs} == {"ConnectionError"}
    for run in runs:
        (event,) = run.events
        assert event.name == "exception"
        noted = dict(event.attributes or {})
        assert noted["exception.type"] == "ConnectionError"
        assert noted["exception.message"] == "refused for [redacted]"
        assert "test_opentelemetry.py" in str(noted["exception.stacktrace"])
        assert "hunter2" not in run.to_json()


async def test_the_run_after_a_killed_executor_links_to_the_same_span(t: Testing, traced: Traced) -> None:
    traced.follow(t.app)

    @t.app.task
    async def welcome() -> None: ...

    await welcome.delay()
    await t.kill_executor(during=welcome)
    await t.run_until_idle()
    (send,), runs = traced.spans("send"), traced.spans("process")
    assert runs
    assert all(is_same(link_of(run), own(send)) for run in runs)
    assert attributes_of(runs[-1])["fennelq.delivery"] == 2


async def test_as_a_child_a_run_is_in_the_trace_that_sent_it(t: Testing, traced: Traced) -> None:
    traced.follow(t.app, parent="child")

    @t.app.task
    async def welcome() -> None: ...

    await welcome.delay()
    await t.run_until_idle()
    (send,), (run,) = traced.spans("send"), traced.spans("process")
    assert run.parent is not None
    assert is_same(run.parent, own(send))
    assert is_same(link_of(run), own(send))


async def test_many_jobs_of_one_call_have_one_span_and_carry_the_context_of_the_caller(
    t: Testing, traced: Traced
) -> None:
    traced.follow(t.app)

    @t.app.task(queue="mail")
    async def welcome(n: int) -> None: ...

    with traced.tracer.start_as_current_span("request") as request:
        await welcome.map([1, 2, 3])
    await welcome.map([4, 5])
    await t.app.enqueue([welcome.job(6), welcome.options(queue="other").job(7)])
    await t.run_until_idle()
    first, second, mixed = traced.spans("send")
    assert {(span.kind, span.name) for span in (first, second)} == {(SpanKind.CLIENT, "send mail")}
    assert attributes_of(first)["messaging.batch.message_count"] == 3
    assert (mixed.name, attributes_of(mixed).get("messaging.destination.name")) == ("send", None)
    linked = [link_of(run).span_id for run in traced.spans("process")]
    assert sorted(linked) == sorted(
        [request.get_span_context().span_id] * 3 + [own(second).span_id] * 2 + [own(mixed).span_id] * 2
    )


async def test_a_job_that_a_job_sends_belongs_to_the_trace_of_that_run(t: Testing, traced: Traced) -> None:
    app = t.app
    traced.follow(app)

    @app.task
    async def charge() -> None:
        await receipt.delay()
        await asyncio.to_thread(in_thread.sync.delay)

    @app.task
    async def receipt() -> None: ...

    @app.task
    def in_thread() -> None: ...

    await charge.delay()
    await t.run_until_idle()
    run = traced.spans("process")[0]
    inner = traced.spans("send")[1:]
    assert len(inner) == 2
    assert all(span.parent is not None and is_same(span.parent, own(run)) for span in inner)


def test_code_without_an_event_loop_sends_with_the_same_context(redis_url: str, traced: Traced) -> None:
    app = LocalApp("shop", redis_url=redis_url)
    traced.follow(app)

    @app.task
    def welcome(n: int) -> None: ...

    with traced.tracer.start_as_current_span("request") as request:
        one = welcome.sync.delay(1)
        welcome.sync.map([2, 3])
    lone, bulk = traced.spans("send")
    assert (lone.kind, bulk.kind) == (SpanKind.PRODUCER, SpanKind.CLIENT)
    assert lone.parent is not None
    assert is_same(lone.parent, request.get_span_context())
    with running_aside(app):
        one.get(timeout=30)
    assert is_same(link_of(traced.spans("process")[0]), own(lone))
    app.blocking.close()


async def test_the_run_of_a_schedule_links_to_the_span_in_which_its_job_was_made(
    make_app: MakeApp, traced: Traced
) -> None:
    app, ran = make_app(), asyncio.Event()
    traced.follow(app)

    @app.every(0.05)
    async def beat() -> None:
        ran.set()

    async with running(app):
        await asyncio.wait_for(ran.wait(), 30)
    run = traced.spans("process")[0]
    made = [span for span in traced.spans("send") if is_same(own(span), link_of(run))]
    assert [(span.kind, attributes_of(span)["messaging.message.id"]) for span in made] == [
        (SpanKind.PRODUCER, attributes_of(run)["messaging.message.id"])
    ]


async def test_a_call_in_the_process_of_a_task_belongs_to_the_span_that_sent_its_job(traced: Traced) -> None:
    """Such a process has no span of the run: only the headers of its job."""
    app = LocalApp("shop", redis_url="redis://127.0.0.1:1")

    @app.task
    async def welcome() -> None: ...

    tracing = Tracing(OpenTelemetry(tracer_provider=traced.provider), app)
    run: Any = type("Run", (), {"delivery": Delivery("mail", "2", "1-1", "k", "t", b"", b"", 0, 1, 1, 0)})()
    headers = {"h": {"traceparent": GOOD}}
    token = current.set(JobContext(run, welcome.plan.overridden(orjson.dumps(headers))))
    try:
        with tracing.surround([welcome.job()]):
            pass
    finally:
        current.reset(token)
    (send,) = traced.spans("send")
    assert send.parent is not None
    assert (send.parent.trace_id, send.parent.span_id) == (int(TRACE, 16), int(SPAN, 16))


@pytest.mark.parametrize(
    ("raised", "kind", "status"),
    [
        (Snooze(60), None, StatusCode.UNSET),
        (Reject("no"), "fennelq.model.outcome.Reject", StatusCode.ERROR),
        (KeyError("n"), "KeyError", StatusCode.ERROR),
    ],
)
async def test_the_kind_of_an_error_is_on_the_span(
    t: Testing, traced: Traced, raised: Exception, kind: str | None, status: StatusCode
) -> None:
    traced.follow(t.app)

    @t.app.task(retries=0)
    async def end() -> None:
        raise raised

    await end.delay()
    await t.run_until_idle()
    (run,) = traced.spans("process")
    assert (attributes_of(run).get("error.type"), run.status.status_code) == (kind, status)


async def test_a_timeout_and_a_cancel_are_told_apart(app: App, traced: Traced) -> None:
    traced.follow(app)
    begun = asyncio.Event()

    @app.task(queue="slow", timeout=0.05, retries=0)
    async def slow() -> None:
        await asyncio.sleep(60)

    @app.task(queue="long")
    async def long() -> None:
        begun.set()
        await asyncio.sleep(60)

    async with running(app):
        with pytest.raises(TaskFailed):
            await (await slow.delay()).get(timeout=30)
        job = await long.delay()
        await asyncio.wait_for(begun.wait(), 30)
        assert await job.cancel()
    timed_out, cancelled = traced.spans("process")
    assert (attributes_of(timed_out)["error.type"], timed_out.status.status_code) == (
        "timeout",
        StatusCode.ERROR,
    )
    assert (attributes_of(cancelled)["error.type"], cancelled.status.status_code) == (
        "cancelled",
        StatusCode.UNSET,
    )


class Failing(SpanProcessor, Sampler):
    """Raises an error in one of its methods."""

    def __init__(self, method: str) -> None:
        self.method = method

    def _fail(self, method: str) -> None:
        if method == self.method:
            raise RuntimeError("no disk")

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self._fail("on_start")

    def on_end(self, span: ReadableSpan) -> None:
        self._fail("on_end")

    def should_sample(self, *_: Any, **__: Any) -> Any:
        self._fail("should_sample")
        return SamplingResult(Decision.RECORD_AND_SAMPLE)

    def get_description(self) -> str:
        return "fails"


@pytest.mark.parametrize("method", ["on_start", "on_end", "should_sample"])
async def test_a_span_that_cannot_be_made_stops_no_job(t: Testing, method: str) -> None:
    traced = Traced(sampler=(failing := Failing(method)))
    traced.provider.add_span_processor(failing)
    traced.follow(t.app)
    runs = []

    @t.app.task(name="shop:charge", retries=0)
    async def charge() -> int:
        runs.append(1)
        return 7

    with capture_logs() as logged:
        result = await charge.delay()
        await t.run_until_idle()
    assert await result.get(timeout=30) == 7
    assert runs == [1]
    lost = [event for event in logged if event["event"] == "span_lost"]
    assert [event["error"] for event in lost] == ["RuntimeError: no disk"]


def test_no_call_is_uncounted_between_threads(traced: Traced) -> None:
    measures = Measures(traced.meters.get_meter("test"))
    begun, other = threading.Event(), threading.Event()

    class Slow(int):
        """Is added while another thread counts, if it can."""

        def __radd__(self, before: int) -> int:
            begun.set()
            other.wait(0.3)
            return before + int(self)

    first = threading.Thread(target=measures.sent, args=(Slow(1), "mail", 0.01, ""))
    first.start()
    assert begun.wait(10)
    measures.sent(1, "mail", 0.01, "")
    other.set()
    first.join()
    ((_, number),) = traced.metrics()["messaging.client.sent.messages"]
    assert number == 2


async def test_a_call_that_fails_says_so_on_its_span(traced: Traced) -> None:
    app = LocalApp("shop", redis_url="redis://127.0.0.1:1", enqueue_timeout=0.1)
    traced.follow(app)

    @app.task
    async def welcome() -> None: ...

    with pytest.raises(BrokerUnavailable):
        await welcome.delay()
    (send,) = traced.spans("send")
    assert attributes_of(send)["error.type"] == "fennelq.errors.BrokerUnavailable"
    assert send.status.status_code is StatusCode.ERROR
    await app.close()


async def test_a_job_that_is_sent_again_keeps_its_context(t: Testing, traced: Traced) -> None:
    traced.follow(t.app)

    @t.app.task
    async def welcome() -> None: ...

    await t.app.enqueue([welcome.job().with_headers({"traceparent": GOOD})])
    await t.run_until_idle()
    (run,) = traced.spans("process")
    assert (link_of(run).trace_id, link_of(run).span_id) == (int(TRACE, 16), int(SPAN, 16))


async def test_a_job_without_room_for_a_context_is_sent_without_one(t: Testing, traced: Traced) -> None:
    traced.follow(t.app)
    full = {f"h{number}": "x" for number in range(32)}

    @t.app.task
    async def welcome() -> None: ...

    result = await welcome.options(headers=full).delay()
    await t.run_until_idle()
    assert await result.status() is Status.SUCCESS
    info = await result.info()
    assert info is not None
    assert info.headers == full
    (run,) = traced.spans("process")
    assert not run.links


async def test_the_trace_id_is_in_the_lines_that_a_job_logs(t: Testing, traced: Traced) -> None:
    traced.follow(t.app)
    bound: list[dict[str, Any]] = []

    @t.app.task
    def welcome() -> None:
        bound.append(get_contextvars())

    await welcome.delay()
    await t.run_until_idle()
    (run,) = traced.spans("process")
    assert bound == [{"trace_id": f"{own(run).trace_id:032x}"}]
    assert "trace_id" not in get_contextvars()


async def test_baggage_travels_on_request(t: Testing, traced: Traced) -> None:
    traced.follow(t.app, baggage=True)
    found: list[Mapping[str, object]] = []

    @t.app.task
    async def welcome() -> None:
        found.append(baggage.get_all())

    token = context.attach(baggage.set_baggage("tenant", "acme"))
    await welcome.delay()
    context.detach(token)
    await welcome.options(headers={"baggage": "x" * 5000}).delay()
    await t.run_until_idle()
    assert found == [{"tenant": "acme"}, {}]


# Sampling


async def test_a_call_that_is_not_sampled_costs_no_bytes(t: Testing) -> None:
    traced = Traced(sampler=ALWAYS_OFF)
    traced.follow(t.app)

    @t.app.task
    async def welcome() -> None: ...

    result = await welcome.delay()
    info = await result.info()
    assert info is not None
    assert info.headers == {}
    await t.run_until_idle()
    assert await result.status() is Status.SUCCESS
    assert traced.memory.get_finished_spans() == ()


async def test_a_child_learns_that_its_parent_was_not_sampled(t: Testing) -> None:
    traced = Traced(sampler=ALWAYS_OFF)
    traced.follow(t.app, parent="child")

    @t.app.task
    async def welcome() -> None: ...

    info = await (await welcome.delay()).info()
    assert info is not None
    sent = read(info.headers)
    assert sent is not None
    assert not sent.trace_flags.sampled


# Headers of others


MALFORMED = [
    "",
    "x",
    "00",
    GOOD.upper(),
    f"ff-{TRACE}-{SPAN}-01",
    f"00-{'0' * 32}-{SPAN}-01",
    f"00-{TRACE}-{'0' * 16}-01",
    f"00-{TRACE[:-1]}-{SPAN}-01",
    f"{GOOD}-more",
    f"{GOOD}\n",
    f" {GOOD}",
    GOOD.replace("0", "٠"),
    "\x1b[31m\u202e",
    f"01-{TRACE}-{SPAN}-01-" + "x" * 10_000,
    "x" * 10_000,
]


@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_context_is_dropped(text: str) -> None:
    assert read({"traceparent": text}) is None


@pytest.mark.parametrize("state", ["", "=", "x" * 10_000, "a=1," * 200, "\x1b[31m=\u202e", "a=1,a=2"])
def test_a_malformed_state_is_dropped_alone(state: str) -> None:
    found = read({"traceparent": GOOD, "tracestate": state})
    assert found is not None
    assert found.is_remote
    assert (found.trace_id, found.span_id, found.trace_flags) == (int(TRACE, 16), int(SPAN, 16), 1)


def test_a_context_is_read_as_it_was_written() -> None:
    found = read({"traceparent": GOOD, "tracestate": "a=1,b=2"})
    assert found is not None
    assert written(found) == {"traceparent": GOOD, "tracestate": "a=1,b=2"}
    later = read({"traceparent": f"01-{TRACE}-{SPAN}-03-more"})
    assert later is not None
    assert later.trace_flags == 1
    assert written(trace.INVALID_SPAN_CONTEXT) == {}


@pytest.mark.parametrize("text", [MALFORMED[-1], MALFORMED[-3], "x"])
async def test_a_job_with_a_malformed_context_runs(t: Testing, traced: Traced, text: str) -> None:
    traced.follow(t.app)

    @t.app.task(name="shop:welcome")
    async def welcome() -> int:
        return 7

    # As any client of Redis may write it: fennelq refuses headers of this size.
    job = welcome.job()
    assert isinstance(job, WireJob)
    options = orjson.dumps({"h": {"traceparent": text, "tracestate": text}}).decode()
    hostile = WireJob(job.queue, job.key, job.task, job.args, job.returns, {"options": options})
    traced_app, t.app.middleware.senders = t.app.middleware.senders, None
    result = await t.app.client.send(hostile)
    t.app.middleware.senders = traced_app
    await t.run_until_idle()
    assert await result.get() == 7
    (run,) = traced.spans("process")
    assert not run.links


# Metrics


async def test_the_metrics_count_calls_and_runs(t: Testing, traced: Traced) -> None:
    app = t.app
    traced.follow(app)

    @app.task(queue="mail", retries=0)
    async def welcome(n: int) -> None:
        if n == 3:
            raise ValueError(n)

    await welcome.map([1, 2, 3])
    await welcome.delay(4)
    await t.run_until_idle()
    common = {"messaging.system": "fennelq", "messaging.destination.name": "mail"}
    send = {**common, "messaging.operation.name": "send", "messaging.operation.type": "send"}
    run = {**common, "messaging.operation.name": "process", "messaging.operation.type": "process"}
    failed = {**run, "error.type": "ValueError"}
    measured = traced.metrics()
    assert measured["messaging.client.sent.messages"] == [(send, 4)]
    assert measured["messaging.client.operation.duration"] == [(send, 2)]
    for name in ("messaging.client.consumed.messages", "messaging.process.duration"):
        assert sorted(measured[name], key=lambda point: point[1]) == [(failed, 1), (run, 3)]


def test_the_metrics_tell_500_queues_apart(traced: Traced) -> None:
    app = LocalApp("shop", redis_url="redis://127.0.0.1:1")
    tracing = Tracing(OpenTelemetry(meter_provider=traced.meters), app)
    for number in range(600):
        tracing.measures.processed(f"q{number}", 0.1, "")
    points = traced.metrics()["messaging.client.consumed.messages"]
    queues = {attributes["messaging.destination.name"]: number for attributes, number in points}
    assert len(queues) == 501
    assert queues["other"] == 100


# Names and mistakes


def test_the_names_are_those_of_the_conventions() -> None:
    values: set[str] = set()
    incubating = "opentelemetry.semconv._incubating"
    modules: Sequence[Any] = (
        import_module(f"{incubating}.attributes.messaging_attributes"),
        import_module(f"{incubating}.metrics.messaging_metrics"),
        error_attributes,
        exception_attributes,
        server_attributes,
    )
    for module in modules:
        values |= {value for value in vars(module).values() if isinstance(value, str)}
    ours = {
        value
        for value in vars(conventions).values()
        if isinstance(value, str) and value.startswith(("messaging.", "error.", "exception.", "server."))
    }
    assert len(ours) >= 14
    assert ours <= values


def test_a_mistake_is_named() -> None:
    wrong: Any = "parent"
    with pytest.raises(ConfigurationError, match="'link' or 'child', not 'parent'"):
        OpenTelemetry(parent=wrong)
    app = App("shop")
    app.use(OpenTelemetry())
    with pytest.raises(ConfigurationError, match="'opentelemetry' is used twice"):
        app.use(OpenTelemetry())


def child(code: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_nothing_is_imported_before_a_plugin_is_used() -> None:
    shown = child(
        "import sys, redis, redis.asyncio\n"  # which imports OpenTelemetry when it is installed
        "before = {*sys.modules}\n"
        "import fennelq, fennelq.cli, fennelq.worker.executor\n"
        "import fennelq.plugins.opentelemetry, fennelq.plugins.sentry\n"
        "new = {*sys.modules} - before\n"
        "print([name for name in new if name.split('.')[0] in ('opentelemetry', 'sentry_sdk')])"
    )
    assert shown == "[]\n"


@pytest.mark.parametrize(
    ("plugin", "module", "extra"),
    [
        ("opentelemetry:OpenTelemetry", "opentelemetry", "opentelemetry"),
        ("sentry:Sentry", "sentry_sdk", "sentry"),
    ],
)
def test_without_its_package_a_plugin_names_the_extra(plugin: str, module: str, extra: str) -> None:
    name, _, kind = plugin.partition(":")
    shown = child(
        f"import sys; sys.modules[{module!r}] = None\n"
        f"from fennelq.plugins.{name} import {kind}\n"
        "from fennelq import App, ConfigurationError\n"
        "try:\n"
        f"    App('shop').use({kind}())\n"
        "except ConfigurationError as error:\n"
        "    print(error)"
    )
    assert shown.startswith(f"the plugin {kind} needs a package that is not installed")
    assert shown.endswith(f"pip install 'fennelq[{extra}]'\n")
