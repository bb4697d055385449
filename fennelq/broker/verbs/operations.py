"""Verbs for operations on many jobs: their records, and who performs them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from fennelq.broker.keys import AppKeys
from fennelq.broker.scripts import script
from fennelq.broker.verb import Command, Verb, Word, fields_of, text

KEPT_MS: Final = 30 * 86_400_000
"""How long the record of an operation is kept after its last step."""
SILENCE_MS: Final = 30_000
"""After this time without a report, another process may go on with an operation."""

Wish = Literal["claim", "go_on", "done", "failed"]
Fields = Mapping[str, Word]


def op_begin(keys: AppKeys, operation: str, fields: Fields) -> Verb[int]:
    """Record an operation. Returns 0 when it is there already."""
    arrow = script("op_begin")
    return Verb(arrow, arrow.of(keys), [keys.prefix, operation, KEPT_MS, *_flat(fields)], int)


class Claim(NamedTuple):
    """The answer to a performer."""

    word: str
    """`yours`, or why not."""
    fields: dict[str, str]
    """The record."""


def op_perform(
    keys: AppKeys,
    operation: str,
    performer: str,
    wish: Wish,
    fields: Fields | None = None,
    *,
    silence_ms: int = SILENCE_MS,
) -> Verb[Claim]:
    """Claim an operation, or report how far its performer has come."""
    arrow = script("op_perform")
    args: list[Word] = [keys.prefix, operation, performer, wish, silence_ms, KEPT_MS, *_flat(fields or {})]

    def read(reply: Any) -> Claim:
        return Claim(text(reply[0]), fields_of(reply[1]))

    return Verb(arrow, arrow.of(keys), args, read)


def op_stop(keys: AppKeys, operation: str) -> Verb[str]:
    """Stop an operation. Returns its state before; empty when the operation is unknown."""
    arrow = script("op_stop")
    return Verb(arrow, arrow.of(keys), [keys.prefix, operation], text)


def newest(keys: AppKeys, limit: int) -> Command[list[str]]:
    """The ids of the operations that began last."""

    def read(reply: Any) -> list[str]:
        return [text(one) for one in reply]

    return Command(["ZREVRANGE", keys["ops"], 0, limit - 1], read)


def record(keys: AppKeys, operation: str) -> Command[dict[str, str]]:
    """The record of an operation; empty when it is unknown."""
    return Command(["HGETALL", keys.operation(operation)], fields_of)


def _flat(fields: Fields) -> list[Word]:
    return [word for pair in fields.items() for word in pair]
