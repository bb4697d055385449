"""The metrics of this process, for Prometheus: the jobs that it has sent, and the runs of an executor in it.

`metrics=True` of an App, or FENNELQ_METRICS=1, turns the counting on. A worker has a page of its own: see
`--health-port`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from fennelq import counting
from fennelq.errors import ConfigurationError
from fennelq.model import metrics
from fennelq.model.exposition import CONTENT_TYPE, Page
from fennelq.model.totals import Bounds, Rows, show_rows, sum_of

if TYPE_CHECKING:
    from prometheus_client.metrics_core import CounterMetricFamily

__all__ = ["Collector", "Exposed", "expose"]


class Exposed(NamedTuple):
    """A page of metrics: `body, content_type = expose()`."""

    body: bytes
    content_type: str


def expose() -> Exposed:
    """The metrics of this process in the text format of Prometheus, for an endpoint of your own.

    Raises ConfigurationError while no app of this process counts.
    """
    from fennelq import __version__

    page = Page()
    show_rows(page, _rows(one.ran() for one in _counting()), _sent())
    page.add(metrics.BUILD, 1, __version__)
    return Exposed(page.encoded(), CONTENT_TYPE)


class Collector:
    """The jobs that this process has sent, for the registry of `prometheus_client`: `REGISTRY.register(Collector())`.

    In a process with several executors or apps, all are added. The runs of jobs are on the page of the worker.
    """

    def __init__(self) -> None:
        """Raises ConfigurationError when `prometheus_client` is not installed, and while no app of this process
        counts."""
        try:
            from prometheus_client.metrics_core import CounterMetricFamily
        except ImportError:
            raise ConfigurationError(
                "fennelq.metrics.Collector needs prometheus_client: install fennelq[prometheus]"
            ) from None
        self._family: type[CounterMetricFamily] = CounterMetricFamily
        _counting()

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The families of metrics; the registry calls this for each scrape."""
        name = metrics.SENT.name.removesuffix("_total")
        family = self._family(name, metrics.SENT.help, labels=metrics.SENT.labels)
        for (queue, task), row in sorted(_sent().items()):
            for outcome, number in zip(metrics.SENT.values, row, strict=True):
                family.add_metric([queue, task, outcome], number)
        yield family


def _counting() -> list[counting.Counting]:
    found = counting.every()
    if not found:
        raise ConfigurationError(
            "no app of this process counts: import the module of your app first, and create the app with "
            "App(…, metrics=True), or set FENNELQ_METRICS=1"
        )
    return found


def _sent() -> Rows:
    return _rows(one.sent() for one in _counting())


def _rows(many: Iterable[Rows]) -> Rows:
    """The rows of all apps together. Each has few enough of them to need no further bound."""
    return sum_of(many, Bounds())
