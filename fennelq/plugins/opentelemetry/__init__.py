"""Traces and metrics of OpenTelemetry: `app.use(OpenTelemetry())`.

This module imports nothing of OpenTelemetry: the plugin does, when an app uses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from fennelq.errors import ConfigurationError
from fennelq.plugins.extras import require

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from fennelq.app import App
    from fennelq.plugin import Plugin

__all__ = ["OpenTelemetry"]

_PARENTS: Final = ("link", "child")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTelemetry:
    """A span for each call that sends jobs, and one for each run of a job, with a link to the call that sent it."""

    parent: Literal["link", "child"] = "link"
    """`link`: each run has a trace of its own, with a link to the span that sent the job. `child`: each run is in the
    trace that sent the job, as a child of that span."""
    baggage: bool = False
    """Whether the baggage of the caller travels with the job, and is set where the job runs."""
    tracer_provider: TracerProvider | None = None
    """The provider of tracers. Default: the global one."""
    meter_provider: MeterProvider | None = None
    """The provider of meters. Default: the global one."""

    def __post_init__(self) -> None:
        if self.parent not in _PARENTS:
            raise ConfigurationError(
                f"OpenTelemetry(parent=…) is 'link' or 'child', not {self.parent!r:.100}"
            )
        require("OpenTelemetry", "opentelemetry.trace", "opentelemetry")

    def plugin(self, app: App) -> Plugin:
        """The plugin for this app."""
        from fennelq.plugins.opentelemetry.tracing import Tracing

        return Tracing(self, app).plugin()
