"""What an executor says to its supervisor, one byte at a time, through a pipe."""

from __future__ import annotations

from typing import Final

ALIVE: Final = b"."
"""The loop moves."""
READY: Final = b"+"
"""Redis answers, and jobs are read."""
NOT_READY: Final = b"-"
"""Redis does not answer."""
STALLED: Final = b"!"
"""The loop has been blocked for too long: replace me."""
QUARANTINE: Final = b"q"
"""Jobs wait in quarantine."""
