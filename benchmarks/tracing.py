"""``python -m benchmarks.tracing``: the CPU time that the plugin OpenTelemetry adds to a job, with the real SDK.

Sampled and unsampled alternate, so that a busy machine slows both. Exits 1 when a bar is missed.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

from fennelq import App
from fennelq.context import JobContext, current
from fennelq.model.job import Delivery
from fennelq.plugins.opentelemetry import OpenTelemetry
from fennelq.plugins.opentelemetry.tracing import Tracing

_JOBS: Final = 5_000
_ROUNDS: Final = 7
_BARS: Final = {"sampled": 30.0, "unsampled": 10.0, "sampled, with metrics": None}
"""µs of CPU time for each job, for its two spans together."""


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

        sampler = ALWAYS_OFF if kind == "unsampled" else ALWAYS_ON
        meters: Any = NoOpMeterProvider()
        if kind.endswith("with metrics"):
            meters = MeterProvider(metric_readers=[InMemoryMetricReader()])
        how = OpenTelemetry(
            tracer_provider=TracerProvider(sampler=sampler, shutdown_on_exit=False), meter_provider=meters
        )
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


def _each(one: Callable[[], object]) -> float:
    began = time.process_time()
    for _ in range(_JOBS):
        one()
    return (time.process_time() - began) / _JOBS * 1e6


def main() -> int:
    cases = {kind: _Case(kind) for kind in _BARS}
    sent: dict[str, list[float]] = {kind: [] for kind in cases}
    ran: dict[str, list[float]] = {kind: [] for kind in cases}
    for _ in range(_ROUNDS):
        for kind, case in cases.items():
            sent[kind].append(case.send())
            ran[kind].append(case.run())
    missed = False
    print(f"{'µs of CPU time per job':26}{'send':>8}{'run':>8}{'both':>8}{'bar':>8}")
    for kind, bar in _BARS.items():
        send, run = min(sent[kind]), min(ran[kind])
        missed |= bar is not None and send + run > bar
        print(f"{kind:26}{send:8.1f}{run:8.1f}{send + run:8.1f}{'-' if bar is None else f'{bar:g}':>8}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
