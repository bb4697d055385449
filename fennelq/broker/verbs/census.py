"""Looking at the whole: how far a lane has been read, what is due, the server and its clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fennelq.broker.keys import GROUP, TYPES, QueueKeys
from fennelq.broker.verb import Command, text


class Reading(NamedTuple):
    """How far the executors have come in a lane."""

    last: str
    """The last entry that was delivered."""
    pending: int
    """Delivered and not yet settled."""


class Due(NamedTuple):
    """A job that waits for its time."""

    key: str
    due_ms: int


def reading(keys: QueueKeys, lane: str) -> Command[Reading]:
    """How far a lane has been read: nothing of it while nobody has ever served it. The lane must exist."""

    def read(reply: Any) -> Reading:
        for flat in reply:
            facts = {text(flat[i]): flat[i + 1] for i in range(0, len(flat), 2)}
            if text(facts["name"]) == GROUP:
                return Reading(text(facts["last-delivered-id"]), int(facts["pending"]))
        return Reading("0-0", 0)

    return Command(["XINFO", "GROUPS", keys[lane]], read)


def due(keys: QueueKeys, place: str, limit: int) -> Command[list[Due]]:
    """The scheduled jobs, or those that wait for their next try, that are due next."""

    def read(reply: Any) -> list[Due]:
        return [Due(text(reply[i]), int(float(reply[i + 1]))) for i in range(0, len(reply), 2)]

    return Command(["ZRANGE", keys[place], 0, limit - 1, "WITHSCORES"], read)


def overdue(keys: QueueKeys, place: str, now_ms: int) -> Command[int]:
    """How many of the scheduled jobs, or of those that wait for their next try, are due by now."""
    return Command(["ZCOUNT", keys[place], "-inf", now_ms], int)


def damage(keys: QueueKeys) -> list[Command[str]]:
    """Per key of the queue what is wrong with it, in a sentence; empty when nothing is."""

    def looked_at(name: str, expected: str) -> Command[str]:
        def read(reply: Any) -> str:
            kind = text(reply)
            if kind in (expected, "none"):
                return ""
            return f"{keys[name]} is a {kind} and should be a {expected}: rename or delete it"

        return Command(["TYPE", keys[name]], read)

    return [looked_at(name, expected) for name, expected in TYPES.items()]


def now() -> Command[int]:
    """The server's clock, in milliseconds since the epoch."""

    def read(reply: Any) -> int:
        return int(reply[0]) * 1000 + int(reply[1]) // 1000

    return Command(["TIME"], read)


def server() -> Command[dict[str, str]]:
    """What the server says of itself."""

    def read(reply: Any) -> dict[str, str]:
        lines = (line.partition(":") for line in text(reply).splitlines() if not line.startswith("#"))
        return {name: value for name, colon, value in lines if colon}

    return Command(["INFO"], read)


def named(server: Mapping[str, str]) -> str | None:
    """Kind and version of a server, by what it says of itself."""
    if "valkey_version" in server:
        return f"valkey {server['valkey_version']}"
    return f"redis {server['redis_version']}" if "redis_version" in server else None
