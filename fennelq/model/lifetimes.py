"""The times for which the records of ended jobs are kept."""

from __future__ import annotations

from typing import NamedTuple


class Lifetimes(NamedTuple):
    """The settings that settling needs, in milliseconds."""

    record_ms: int
    failure_ms: int
    patience_ms: int = 3_600_000
    """How long a job waits for a worker whose code is new enough to run it."""
