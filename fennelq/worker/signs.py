"""What an executor says to its supervisor, one byte at a time, through a pipe."""

from __future__ import annotations

from typing import Final

ALIVE: Final = b"."
"""The loop moves."""
STALLED: Final = b"!"
"""The loop has been blocked for too long: replace me."""
QUARANTINE: Final = b"q"
"""Jobs wait in quarantine."""
