"""The metrics of a worker: adds what its living and its ended executors have counted, so that no counter ever falls."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from fennelq import __version__
from fennelq.model import metrics
from fennelq.model.exposition import Page
from fennelq.model.totals import Bounds, Rows, show_rows, sum_of
from fennelq.worker.memory import resident_bytes
from fennelq.worker.processes.child import Child
from fennelq.worker.processes.config import CANNOT_RUN, DRAINED, LIFESPAN_FAILED, RECYCLED

_FRESH: Final = 1.5
"""Seconds. A message that is older than this is late, because the loop that sends it is blocked."""
_GAUGES: Final = {
    metrics.SLOTS: "slots",
    metrics.SLOTS_BUSY: "slots_busy",
    metrics.UNSETTLED: "unsettled",
}


class WorkerMetrics:
    """What a supervisor knows of its executors."""

    def __init__(self, by: str) -> None:
        """`by` is `task` or `queue`."""
        # One for runs and one for jobs sent: a worker that sends jobs of many tasks still counts its own one by one.
        self._runs_bounds, self._sent_bounds = Bounds(by_task=by != "queue"), Bounds(by_task=by != "queue")
        self._runs: Rows = {}
        self._sent: Rows = {}
        self._counters: dict[str, float] = {}
        self._ends: dict[str, int] = dict.fromkeys(metrics.ENDS, 0)

    def add_ended(self, child: Child, code: int) -> None:
        """An executor has ended: keep what it has counted."""
        self._ends[cause_of(child, code)] += 1
        self._runs = sum_of([self._runs, child.totals.runs], self._runs_bounds)
        self._sent = sum_of([self._sent, child.totals.sent], self._sent_bounds)
        self._counters = _sum([self._counters, child.totals.counters])

    def add_unstarted(self) -> None:
        """The process of an executor could not be started."""
        self._ends["unable"] += 1

    def page(self, children: Collection[Child]) -> Page:
        """All metrics, with those of the living executors."""
        page = Page()
        runs = sum_of([self._runs, *(child.totals.runs for child in children)], self._runs_bounds)
        sent = sum_of([self._sent, *(child.totals.sent for child in children)], self._sent_bounds)
        show_rows(page, runs, sent)
        self._show_gauges(page, [child for child in children if child.totals.gauges])
        states = [child.state for child in children]
        page.add_each(metrics.EXECUTORS, map(states.count, metrics.STATES))
        page.add_each(metrics.EXECUTOR_ENDS, self._ends.values())
        self._show_counters(page, _sum([self._counters, *(child.totals.counters for child in children)]))
        page.add(metrics.BUILD, 1, __version__)
        return page

    def _show_gauges(self, page: Page, children: Collection[Child]) -> None:
        totals = [child.totals for child in children]
        for metric, name in _GAUGES.items():
            page.add(metric, sum(int(one.gauges.get(name, 0)) for one in totals))
        lags = [max(one.gauges.get("loop_lag", 0), one.age if one.age > _FRESH else 0) for one in totals]
        page.add(metrics.LOOP_LAG, max(lags, default=0))
        memory = sum(int(one.gauges.get("resident_memory", 0)) for one in totals)
        page.add(metrics.MEMORY, memory + resident_bytes())

    def _show_counters(self, page: Page, counters: Mapping[str, float]) -> None:
        page.add(metrics.LEASES_LOST, counters.get("leases_lost", 0))
        for metric, name in ((metrics.REDIS_ERRORS, "redis_errors"), (metrics.SPECULATIONS, "speculations")):
            page.add_each(metric, [counters.get(f"{name}/{value}", 0) for value in metric.values])


def cause_of(child: Child, code: int) -> str:
    """Why an executor has ended."""
    if child.was_killed:
        return "killed"
    known = {0: "finished", RECYCLED: "recycled", DRAINED: "drained"}
    known |= {CANNOT_RUN: "unable", LIFESPAN_FAILED: "unable"}
    return "finished" if child.ended_as_asked(code) else known.get(code, "crashed")


def _sum(many: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for one in many:
        for name, value in one.items():
            found[name] = found.get(name, 0) + value
    return found
