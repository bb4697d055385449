"""Deterministic deaths, for tests: `FENNELQ_CRASH=point:nth` ends the process at the n-th passing of a point.

When the variable is not set, `at` is None, and a point costs one comparison.
"""

from __future__ import annotations

import os
from collections.abc import Callable


def _armed() -> Callable[[str], None] | None:
    said = os.environ.get("FENNELQ_CRASH")
    if not said:
        return None
    point, _, nth = said.rpartition(":")
    left = int(nth)

    def pass_by(here: str) -> None:
        nonlocal left
        if here == point:
            left -= 1
            if left == 0:
                os._exit(137)

    return pass_by


at = _armed()
