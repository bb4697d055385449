"""The process's clocks, in one place so that tests can move them.

Nothing decided in Redis depends on these: scripts read the server's clock.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime


def wall_ms() -> int:
    """Milliseconds since the epoch by this machine's clock: for ids and logs, never for decisions."""
    return time.time_ns() // 1_000_000


def monotonic() -> float:
    """Seconds that never go back, to wait and to measure."""
    return time.monotonic()


def from_ms(ms: int) -> datetime:
    """An aware UTC datetime of a millisecond timestamp."""
    return datetime.fromtimestamp(ms / 1000, UTC)
