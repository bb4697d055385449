"""Mutants that no test can notice, and why: (file, line as it was, what was done) → reason."""

from __future__ import annotations

from typing import Final

EQUIVALENT: Final[dict[tuple[str, str, str], str]] = {}
