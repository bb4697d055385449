"""Verbs for executors: their leases, and the facts that they publish for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from fennelq.broker.keys import QueueKeys, executors_key
from fennelq.broker.scripts import script
from fennelq.broker.verb import Command, Verb, Word, text


class Beat(NamedTuple):
    """The result of a beat. Entries are (lane, entry)."""

    lost: list[tuple[str, str]]
    """Held by this executor, but not pending on it any more."""
    stranded: list[tuple[str, str]]
    """Pending on this executor, but not held by it: a reply was lost, or is still under way."""
    quarantined: int
    """Jobs in quarantine that no executor has taken."""
    now_ms: int
    """The server's clock."""


def beat(keys: QueueKeys, consumer: str, grace_ms: int, held: Iterable[tuple[str, str]]) -> Verb[Beat]:
    """Renew the lease of every entry that this executor holds."""
    arrow = script("beat")
    args: list[Word] = [keys.prefix, consumer, grace_ms]
    for lane, entry in held:
        args += (lane, entry)

    def read(reply: Any) -> Beat:
        return Beat(_pairs(reply[0]), _pairs(reply[1]), *reply[2:])

    return Verb(arrow, arrow.of(keys), args, read)


def close_consumer(keys: QueueKeys, consumer: str) -> Verb[int]:
    """Remove an executor's consumers that have no pending entries. Returns the number of lanes without one."""
    arrow = script("close")
    return Verb(arrow, arrow.of(keys), [keys.prefix, consumer], int)


def note_executor(app: str, consumer: str, facts: bytes) -> Command[Any]:
    """Publish facts about an executor, for people. They never decide who owns a job."""
    return Command(["HSET", executors_key(app), consumer, facts], int)


def forget_executors(app: str, consumers: Iterable[str]) -> Command[Any]:
    """Delete the facts of these executors."""
    return Command(["HDEL", executors_key(app), *consumers], int)


def known_executors(app: str) -> Command[dict[str, bytes]]:
    """Executor → facts."""

    def read(reply: Any) -> dict[str, bytes]:
        return {text(reply[i]): reply[i + 1] for i in range(0, len(reply), 2)}

    return Command(["HGETALL", executors_key(app)], read)


def _pairs(flat: Any) -> list[tuple[str, str]]:
    return [(text(flat[i]), text(flat[i + 1])) for i in range(0, len(flat), 2)]
