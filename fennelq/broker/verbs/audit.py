"""Verbs for the record of operations: what operators have changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from fennelq.broker.keys import AppKeys
from fennelq.broker.verb import Command, Word, fields_of, text

MOST_LINES: Final = 10_000
"""Lines that Redis keeps, and at most some hundred more: it removes the oldest in blocks. An operation has two."""


class Line(NamedTuple):
    """A line of the record: the begin or the end of an operation."""

    entry: str
    fields: Mapping[str, str]

    @property
    def at_ms(self) -> int:
        """When it was written, by the server's clock."""
        return int(self.entry.partition("-")[0])


def note(keys: AppKeys, fields: Mapping[str, str]) -> Command[str]:
    """Add a line; returns its entry."""
    words: list[Word] = ["XADD", keys["audit"], "MAXLEN", "~", MOST_LINES, "*"]
    for name, value in fields.items():
        words += (name, value)
    return Command(words, text)


def lines(keys: AppKeys, before: str, oldest: str, limit: int) -> Command[list[Line]]:
    """A page of lines, the newest first: those before the entry `before` ('' for the newest), down to `oldest`."""

    def read(reply: Any) -> list[Line]:
        return [Line(text(entry), fields_of(flat)) for entry, flat in reply]

    return Command(
        ["XREVRANGE", keys["audit"], f"({before}" if before else "+", oldest, "COUNT", limit], read
    )
