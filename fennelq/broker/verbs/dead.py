"""Verbs for the dead-letter queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fennelq.broker.keys import QueueKeys
from fennelq.broker.scripts import script
from fennelq.broker.verb import Command, Verb, as_is, fields_of, text


class DeadJob(NamedTuple):
    """An entry of the dead-letter queue."""

    queue: str
    entry: str
    key: str
    task: str
    error_type: str
    message: str
    reason: str

    @property
    def id(self) -> str:
        """The job's id."""
        return f"{self.queue}:{self.key}"

    @property
    def died_ms(self) -> int:
        """When it died, by the server's clock."""
        return int(self.entry.partition("-")[0])


def dead(keys: QueueKeys, after: str, limit: int, *, newest_first: bool = False) -> Command[list[DeadJob]]:
    """A page of the DLQ, beginning after the entry `after` ('' for the beginning)."""

    def read(reply: Any) -> list[DeadJob]:
        return [_dead_job(keys.queue, text(entry), fields) for entry, fields in reply]

    edge = f"({after}" if after else ("+" if newest_first else "-")
    words = ["XREVRANGE", keys["dlq"], edge, "-"] if newest_first else ["XRANGE", keys["dlq"], edge, "+"]
    return Command([*words, "COUNT", limit], read)


def dead_entry(keys: QueueKeys, entry: str) -> Command[DeadJob | None]:
    """One entry of the DLQ."""

    def read(reply: Any) -> DeadJob | None:
        return _dead_job(keys.queue, text(reply[0][0]), reply[0][1]) if reply else None

    return Command(["XRANGE", keys["dlq"], entry, entry], read)


def _dead_job(queue: str, entry: str, flat: list[Any]) -> DeadJob:
    fields = fields_of(flat)
    return DeadJob(queue, entry, *(fields.get(name, "") for name in "itemy"))


def replay(keys: QueueKeys, entries: Sequence[str]) -> Verb[list[int]]:
    """Put dead jobs back: per DLQ entry 1 replayed, 0 no longer in the DLQ, -1 its idempotency key is taken."""
    arrow = script("replay")
    return Verb(arrow, arrow.of(keys), [keys.prefix, *entries], as_is)


def forget(keys: QueueKeys, entries: Sequence[str]) -> Verb[int]:
    """Delete dead jobs: DLQ entry, record, result, idempotency key. Returns how many were deleted."""
    arrow = script("forget")
    return Verb(arrow, arrow.of(keys), [keys.prefix, *entries], int)
