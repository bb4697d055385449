"""fennelq's app of the benchmark: the shared bodies, registered as a user would register them."""

from __future__ import annotations

from benchmarks import bodies
from fennelq import App

app = App("bench")

noop = app.task()(bodies.noop)
nap = app.task()(bodies.nap)
swallow = app.task()(bodies.swallow)
stamp = app.task()(bodies.stamp)
