"""The Redis server of an app."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from fennelq import clock
from fennelq.broker import verbs
from fennelq.broker.talk import Talk, ask
from fennelq.broker.trouble import ReplyError
from fennelq.errors import BrokerUnavailable


class ServerInfo(NamedTuple):
    """The facts that a server reports; None for those that it does not report."""

    name: str | None
    """Kind and version of the server."""
    memory: int | None
    """Bytes in use."""
    memory_limit: int | None
    """Bytes it may use."""
    clients: int | None
    """Connections."""


def server() -> Talk[ServerInfo]:
    """The facts about the server; all None when the user of Redis may not call INFO."""
    facts = yield from _facts()
    return ServerInfo(
        verbs.server.named(facts),
        int(facts["used_memory"]) if "used_memory" in facts else None,
        int(facts.get("maxmemory", 0)) or None,
        int(facts["connected_clients"]) if "connected_clients" in facts else None,
    )


def now() -> Talk[datetime]:
    """The time on the server's clock, which decides when jobs and schedules are due."""
    return clock.from_ms((yield from ask(verbs.server.now())))


def _facts() -> Talk[dict[str, str]]:
    try:
        return (yield from ask(verbs.server.server()))
    except BrokerUnavailable as error:
        if isinstance(error.__cause__, ReplyError) and error.__cause__.word == "NOPERM":
            return {}
        raise
