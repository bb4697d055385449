"""How long what is left of a job is kept."""

from __future__ import annotations

from typing import NamedTuple


class Lifetimes(NamedTuple):
    """What settling needs to know of the settings, in milliseconds."""

    record_ms: int
    failure_ms: int
    patience_ms: int = 3_600_000
    """How long a job waits for a worker whose code is new enough to run it."""
