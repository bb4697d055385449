"""Who is there: queues, executors, their consumers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fennelq.broker.keys import QueueKeys, executors_key, queues_key
from fennelq.broker.scripts import script
from fennelq.broker.verb import Command, Verb, text


def open_queue(keys: QueueKeys) -> Verb[int]:
    """Make every lane of a queue and its group; harmless when they are there."""
    arrow = script("open")
    return Verb(arrow, arrow.of(keys), [keys.prefix], int)


def close_consumer(keys: QueueKeys, consumer: str) -> Verb[int]:
    """Remove an executor's consumers where nothing is pending on them: in how many lanes none is left."""
    arrow = script("close")
    return Verb(arrow, arrow.of(keys), [keys.prefix, consumer], int)


def note_queues(app: str, queues: Iterable[str]) -> Command[int]:
    """Remember that these queues exist."""
    return Command(["SADD", queues_key(app), *queues], int)


def known_queues(app: str) -> Command[set[str]]:
    """Every queue this app has used."""
    return Command(["SMEMBERS", queues_key(app)], lambda reply: {text(name) for name in reply})


def note_executor(app: str, consumer: str, facts: bytes) -> Command[Any]:
    """Tell people about an executor. This never decides who owns a job."""
    return Command(["HSET", executors_key(app), consumer, facts], int)


def forget_executors(app: str, consumers: Iterable[str]) -> Command[Any]:
    """These executors are gone."""
    return Command(["HDEL", executors_key(app), *consumers], int)


def known_executors(app: str) -> Command[dict[str, bytes]]:
    """Executor → facts."""

    def read(reply: Any) -> dict[str, bytes]:
        return {text(reply[i]): reply[i + 1] for i in range(0, len(reply), 2)}

    return Command(["HGETALL", executors_key(app)], read)
