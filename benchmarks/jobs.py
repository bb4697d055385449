"""fennelq's app of the benchmark: the shared bodies, registered as a user would register them."""

from __future__ import annotations

import time

from benchmarks import bodies
from fennelq import App, Retry, current_job

app = App("bench")

noop = app.task()(bodies.noop)
nap = app.task()(bodies.nap)
swallow = app.task()(bodies.swallow)
stamp = app.task()(bodies.stamp)

_fell: dict[str, int] = {}


@app.task(retries=1)
async def stumble(seconds: float) -> int:
    """Asks once to be tried again after so long, and answers by how many nanoseconds that was late."""
    job = current_job().id
    if job in _fell:
        return time.monotonic_ns() - _fell.pop(job) - round(seconds * 1e9)
    _fell[job] = time.monotonic_ns()
    raise Retry(delay=seconds)
