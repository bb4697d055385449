"""Errors and traces in Sentry: `app.use(Sentry())`, after `sentry_sdk.init(…)`.

This module imports nothing of Sentry: the plugin does, when an app uses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from fennelq.errors import ConfigurationError
from fennelq.plugins.extras import require

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.plugin import Plugin

__all__ = ["Sentry"]

_CAPTURES: Final = ("dead", "every")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentry:
    """Reports failures to Sentry, with the fingerprints of fennelq, and traces calls that send jobs, and runs."""

    capture: Literal["dead", "every"] = "dead"
    """`dead`: report the last failure of a job that goes to the dead-letter queue. `every`: report each failed try."""

    def __post_init__(self) -> None:
        if self.capture not in _CAPTURES:
            raise ConfigurationError(f"Sentry(capture=…) is 'dead' or 'every', not {self.capture!r:.100}")
        require("Sentry", "sentry_sdk", "sentry")

    def plugin(self, app: App) -> Plugin:
        """The plugin for this app."""
        from fennelq.plugins.sentry.reporting import Reporting

        return Reporting(self, app).plugin()
