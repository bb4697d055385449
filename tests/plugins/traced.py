"""An app whose workers write each finished span to a file, a line for each: span, trace, links and try."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import orjson
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from fennelq import RetryPolicy, current_job
from fennelq.plugins.opentelemetry import OpenTelemetry
from tests.kit.apps import LocalApp

FILE = "TEST_SPANS"


class ToFile(SpanExporter):
    """Writes the spans."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with Path(os.environ[FILE]).open("ab") as file:
            for span in spans:
                attributes = span.attributes or {}
                line = {
                    "name": span.name,
                    "span": f"{span.context.span_id:016x}" if span.context else None,
                    "pid": os.getpid(),
                    "links": [f"{link.context.span_id:016x}" for link in span.links],
                    "try": attributes.get("fennelq.try"),
                    "delivery": attributes.get("fennelq.delivery"),
                    "error": attributes.get("error.type"),
                }
                file.write(orjson.dumps(line) + b"\n")
        return SpanExportResult.SUCCESS


provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ToFile()))
app = LocalApp("shop")
app.use(OpenTelemetry(tracer_provider=provider))


@app.task(name="shop:troubled", queue="mail", retry=RetryPolicy.fixed(2, delay=0.01))
async def troubled(holding: str, gate: str) -> int:
    """Fails twice; in its third try it waits at a gate."""
    tries = current_job().tries
    if tries < 3:
        raise ConnectionError("try again")
    await asyncio.to_thread(Path(holding).touch)
    while not Path(gate).exists():  # noqa: ASYNC110 – the test opens it, which is another process
        await asyncio.sleep(0.01)
    return tries
