"""Mutants of Python modules that no test can notice, and why: (file, function, what was done) → reason."""

from __future__ import annotations

from typing import Final

Key = tuple[str, str, str]

BY_REASON: Final[dict[str, list[Key]]] = {}

EQUIVALENT: Final[dict[Key, str]] = {key: reason for reason, keys in BY_REASON.items() for key in keys}
