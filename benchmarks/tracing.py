"""``python -m benchmarks.tracing``: the CPU time that the plugin OpenTelemetry adds to a job, with the real SDK.

All cases alternate, so that a busy machine slows them alike. The lines *by hand* are the floor: a loop that does
nothing but start and end the same two spans, with the same attributes and the same link. Exits 1 when a bar is missed.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from opentelemetry.context import Context
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from opentelemetry.trace import Link, SpanKind

from fennelq import App
from fennelq.context import JobContext, current
from fennelq.model.job import Delivery
from fennelq.plugins.opentelemetry import OpenTelemetry
from fennelq.plugins.opentelemetry.tracing import Tracing

_JOBS: Final = 2_000
_ROUNDS: Final = 20
_BARS: Final = {"sampled": 30.0, "unsampled": 10.0, "sampled, with metrics": None}
"""µs of CPU time for each job, for its two spans together."""
_SAMPLERS: Final[dict[str, Sampler]] = {"sampled": ALWAYS_ON, "unsampled": ALWAYS_OFF}
_NO_PARENT: Final = Context()


class _Run:
    cancelled: str | None = None

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery

    def report(self, progress: object) -> bool:
        return False


class _Case:
    """A plugin, a job to send, and the same job to run."""

    def __init__(self, kind: str) -> None:
        app = App("shop", redis_url="redis://127.0.0.1:1")

        @app.task(name="shop:welcome")
        async def welcome(n: int) -> int:
            return n

        self._provider = TracerProvider(sampler=_SAMPLERS[kind.split(",")[0]], shutdown_on_exit=False)
        meters: Any = NoOpMeterProvider()
        if kind.endswith("with metrics"):
            meters = MeterProvider(metric_readers=[InMemoryMetricReader()])
        how = OpenTelemetry(tracer_provider=self._provider, meter_provider=meters)
        self._tracing = Tracing(how, app)
        self._job = welcome.job(7)
        with self._tracing.surround([self._job]):
            headers = self._tracing.stamp(self._job).headers
        delivery = Delivery("default", "2", "1-0", "k", "shop:welcome", b"[[7],{}]", b"", 0, 1, 1, 0)
        self._context = JobContext(_Run(delivery), replace(welcome.plan, headers=headers))

    def send(self) -> float:
        """µs to send a job with the plugin, beyond the rest of sending."""
        job, tracing = self._job, self._tracing

        def one() -> None:
            with tracing.surround([job]):
                tracing.stamp(job)

        return _each(one)

    def run(self) -> float:
        """µs to run a job with the plugin, beyond its function."""
        return asyncio.run(self._run())

    async def _run(self) -> float:
        current.set(self._context)

        async def call() -> int:
            return 7

        began = time.process_time()
        for _ in range(_JOBS):
            await self._tracing.perform(self._context, call)
        between = time.process_time()
        for _ in range(_JOBS):
            await call()
        return (between - began - (time.process_time() - between)) / _JOBS * 1e6

    def spans(self) -> Sequence[ReadableSpan]:
        """The spans of a job."""
        exporter = InMemorySpanExporter()
        self._provider.add_span_processor(SimpleSpanProcessor(exporter))
        self.send()
        self.run()
        return [next(span for span in exporter.get_finished_spans() if span.kind is kind) for kind in _KINDS]


class _Span(NamedTuple):
    """What a span is started with."""

    name: str
    context: Context | None
    kind: SpanKind
    attributes: dict[str, Any]
    links: Sequence[Link]

    @classmethod
    def like(cls, span: ReadableSpan) -> _Span:
        context = _NO_PARENT if span.kind is SpanKind.CONSUMER else None
        return cls(span.name, context, span.kind, dict(span.attributes or {}), span.links)


_KINDS: Final = (SpanKind.PRODUCER, SpanKind.CONSUMER)


class _ByHand:
    """The spans of a job, started and ended by nothing but the SDK."""

    def __init__(self, sampler: Sampler, spans: Sequence[ReadableSpan]) -> None:
        self._tracer = TracerProvider(sampler=sampler, shutdown_on_exit=False).get_tracer("floor")
        self._sent, self._ran = map(_Span.like, spans)
        if sampler is ALWAYS_OFF:  # a span that is not sampled is not linked to
            self._ran = self._ran._replace(links=())

    def send(self) -> float:
        """µs of the span of sending."""
        start, sent = self._tracer.start_span, self._sent
        return _each(lambda: start(sent.name, sent.context, sent.kind, sent.attributes).end())

    def run(self) -> float:
        """µs of the span of a run."""
        start, ran = self._tracer.start_span, self._ran
        origin = ran.links[0].context if ran.links else None

        def one() -> None:
            links = None if origin is None else [Link(origin)]
            start(ran.name, ran.context, ran.kind, ran.attributes, links).end()

        return _each(one)


def _each(one: Callable[[], object]) -> float:
    began = time.process_time()
    for _ in range(_JOBS):
        one()
    return (time.process_time() - began) / _JOBS * 1e6


def main() -> int:
    cases: dict[str, _Case | _ByHand] = {kind: _Case(kind) for kind in _BARS}
    spans = _Case("sampled").spans()
    cases |= {f"  {kind}, by hand": _ByHand(sampler, spans) for kind, sampler in _SAMPLERS.items()}
    sent: dict[str, list[float]] = {kind: [] for kind in cases}
    ran: dict[str, list[float]] = {kind: [] for kind in cases}
    for _ in range(_ROUNDS):
        for kind, case in cases.items():
            sent[kind].append(case.send())
            ran[kind].append(case.run())
    missed = False
    print(f"{'µs of CPU time per job':26}{'send':>8}{'run':>8}{'both':>8}{'bar':>8}")
    for kind in cases:
        bar = _BARS.get(kind)
        send, run = min(sent[kind]), min(ran[kind])
        missed |= bar is not None and send + run > bar
        print(f"{kind:26}{send:8.1f}{run:8.1f}{send + run:8.1f}{'-' if bar is None else f'{bar:g}':>8}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
