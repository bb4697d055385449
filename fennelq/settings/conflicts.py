"""Settings that are valid alone, but together would silently disable a mechanism."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fennelq.settings.settings import Settings

_LEAST_METRICS = 1200
"""Seconds. Two windows of ten minutes."""


def conflicts(settings: Settings) -> Iterator[str]:
    """Errors for values that are valid alone, but together would silently disable a mechanism."""
    lease = settings.lease
    # An executor sweeps only while its last heartbeat is younger than half a lease; a sixth is left for the round trip.
    if settings.beat > lease / 3:
        yield (
            f"setting heartbeat_interval: {settings.beat:g} s is too long for lease, {lease:g} s: "
            "executors would never take over the jobs of one that died. "
            f"It may be at most a third of lease, {_down(lease / 3)} s: lower heartbeat_interval or raise lease"
        )
    if settings.maintenance > lease:
        yield (
            f"setting maintenance_interval: {settings.maintenance:g} s is longer than lease, {lease:g} s: "
            "the jobs of a dead executor would wait for more than two leases. "
            f"It may be at most lease, {lease:g} s: lower maintenance_interval or raise lease"
        )
    if 0 < settings.metrics_ttl < _LEAST_METRICS:
        yield (
            f"setting metrics_ttl: {settings.metrics_ttl:g} s is shorter than the time over which `fennelq info` adds "
            f"up run and wait times, {_LEAST_METRICS} s. "
            f"Raise it to {_LEAST_METRICS} or more, or set it to 0 to write none"
        )
    if settings.max_stuck is not None and settings.max_stuck >= settings.concurrency:
        yield (
            f"setting max_stuck: {settings.max_stuck} is not below concurrency, {settings.concurrency}: an executor "
            "whose slots are all stuck would never be replaced. "
            f"It may be at most {settings.concurrency - 1}: lower max_stuck or raise concurrency"
        )


def _down(seconds: float) -> str:
    """The largest allowed value as text, rounded down so that it is still allowed."""
    return f"{math.floor(seconds * 1000) / 1000:g}"
