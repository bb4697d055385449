"""Verbs for the server and its clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fennelq.broker.verb import Command, text


def now() -> Command[int]:
    """The server's clock, in milliseconds since the epoch."""

    def read(reply: Any) -> int:
        return int(reply[0]) * 1000 + int(reply[1]) // 1000

    return Command(["TIME"], read)


def server() -> Command[dict[str, str]]:
    """The fields of the server's INFO."""

    def read(reply: Any) -> dict[str, str]:
        lines = (line.partition(":") for line in text(reply).splitlines() if not line.startswith("#"))
        return {name: value for name, colon, value in lines if colon}

    return Command(["INFO"], read)


def named(server: Mapping[str, str]) -> str | None:
    """Kind and version of a server, from its INFO."""
    if "valkey_version" in server:
        return f"valkey {server['valkey_version']}"
    return f"redis {server['redis_version']}" if "redis_version" in server else None
