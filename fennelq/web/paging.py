"""A page of a long list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from fennelq.web.visit import link

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Paged(Generic[T]):
    """Some rows of many, and the way to the others."""

    rows: Sequence[T]
    shown: str
    """`1–50 of 1,000`."""
    older: str
    """The page with the following rows; empty on the last one."""
    newer: str


def paged(every: Sequence[T], query: Mapping[str, str], path: str, most: int) -> Paged[T]:
    """The rows that the query asks for with `from`."""
    first = number_in(query, "from", 0, max(0, len(every) - 1))
    rows = [*islice(every, first, first + most)]
    others = {name: value for name, value in query.items() if name not in ("from", "done", "count")}

    def to(place: int) -> str:
        return link(path, **{**others, "from": place or None})

    last = first + len(rows)
    return Paged(
        rows,
        f"{first + 1:,}–{last:,} of {len(every):,}" if rows else "none",
        to(last) if last < len(every) else "",
        to(max(0, first - most)) if first else "",
    )


def number_in(query: Mapping[str, str], name: str, least: int, most: int) -> int:
    """A number in a query, within bounds."""
    text = query.get(name, "")
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else least
    return max(least, min(most, number))
