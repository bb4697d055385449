"""A picture of keys of Redis, taken at one moment: what the invariants are checked on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Hash(NamedTuple):
    """A hash; of a record, at least the fields of RECORD_FIELDS that it has."""

    fields: Mapping[str, str]


class Group(NamedTuple):
    """A consumer group of a stream."""

    name: str
    last_delivered: str
    pending: Mapping[str, str]
    """Entry → consumer."""


class Stream(NamedTuple):
    """A stream and its groups."""

    entries: Mapping[str, str | None]
    """Entry → the job it names; None when it names none."""
    groups: Sequence[Group]
    fields: Mapping[str, Mapping[str, str]] = {}
    """Entry → its fields; only of dead jobs."""


class Members(NamedTuple):
    """A set, or a sorted set."""

    members: Sequence[str]
    scores: Sequence[float] = ()
    """Of a sorted set, in the same order."""


class Length(NamedTuple):
    """A list."""

    length: int


class Value(NamedTuple):
    """A string."""

    value: str


class Key(NamedTuple):
    """A key in the picture."""

    name: str
    type: str
    """As the server's TYPE names it."""
    expires_ms: int | None
    """In milliseconds since the epoch; None when it never expires."""
    content: Hash | Stream | Members | Length | Value
