"""Crash points for tests: `_FENNELQ_CRASH=point:nth` ends the process when it reaches a point the n-th time.

When the variable is not set, `at` is None, and a point costs one comparison. The name of the variable begins with an
underscore because variables `FENNELQ_…` are settings.
"""

from __future__ import annotations

import os
from collections.abc import Callable


def _armed() -> Callable[[str], None] | None:
    armed = os.environ.get("_FENNELQ_CRASH")
    if not armed:
        return None
    point, _, nth = armed.rpartition(":")
    left = int(nth)

    def reach(here: str) -> None:
        nonlocal left
        if here == point:
            left -= 1
            if left == 0:
                os._exit(137)

    return reach


at = _armed()
