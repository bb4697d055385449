"""The signs an executor sends to its supervisor, one byte each, through a pipe."""

from __future__ import annotations

from typing import Final

IMPORTED: Final = b"i"
"""The app is imported. Before this sign silence means nothing: an import may take any time."""
ALIVE: Final = b"."
"""The loop moves."""
READY: Final = b"+"
"""Redis answers, and jobs are read."""
NOT_READY: Final = b"-"
"""Redis does not answer."""
STALLED: Final = b"!"
"""The loop has been blocked for too long: replace me."""
HEARTLESS: Final = b"h"
"""The thread that renews the leases has died, or the one that watches it: replace me."""
QUARANTINE: Final = b"q"
"""Jobs wait in quarantine."""
