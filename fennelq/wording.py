"""Words about what a caller has given, for messages of errors."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

_MOST: Final = 12
"""So many names are listed in full. Of more names, only the first ones are."""
_FIRST: Final = 8


def a_kind_of(value: object) -> str:
    """A description of a value: `a UUID object`, `None`."""
    if value is None:
        return "None"
    name = type(value).__name__[:100]
    article = "an" if name[:1] in "AEIOaeio" or name[:2] in ("Un", "un") else "a"
    return f"{article} {name} object"


def suggestion(name: str, known: Iterable[str]) -> str:
    """`: did you mean 'x'?` when a known name is close to `name`, else a list of the known names."""
    choices = sorted(known)
    if not choices:
        return ""
    if near := get_close_matches(name[:200], choices, n=1):
        return f": did you mean {near[0]!r}?"
    shown = choices if len(choices) <= _MOST else [*choices[:_FIRST], "…"]
    return f"; known: {', '.join(shown)}"
