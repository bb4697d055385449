"""Verbs for limits: who waits in lines, at which gates, and which jobs hold slots."""

from __future__ import annotations

from typing import Any

from fennelq.broker.keys import QueueKeys
from fennelq.broker.verb import Command, text
from fennelq.model.fields import LETTERS

Page = tuple[str, dict[str, str]]


def number(keys: QueueKeys) -> Command[int]:
    """The number of lines that are not empty."""
    return Command(["HLEN", keys["lines"]], int)


def parked(keys: QueueKeys) -> Command[int]:
    """The number of jobs in lines, as it is counted."""

    def read(reply: Any) -> int:
        return max(0, int(reply or 0))

    return Command(["HGET", keys["stats"], "parked"], read)


def scan(keys: QueueKeys, cursor: str, count: int) -> Command[Page]:
    """Some of the lines, each with the gate at which it waits, and the cursor of the next call; "0" at the end."""

    def read(reply: Any) -> Page:
        flat = [text(word) for word in reply[1]]
        return text(reply[0]), dict(zip(flat[::2], flat[1::2], strict=True))

    return Command(["HSCAN", keys["lines"], cursor, "COUNT", count], read)


def gate_of(keys: QueueKeys, line: str) -> Command[str]:
    """The gate at which a line waits; empty when it waits at none."""
    return Command(["HGET", keys["lines"], line], _text_or_nothing)


def length(keys: QueueKeys, line: str) -> Command[int]:
    """How many jobs wait in a line."""
    return Command(["ZCARD", keys.line(line)], int)


def jobs(keys: QueueKeys, line: str, limit: int) -> Command[list[str]]:
    """The first jobs of a line."""
    return Command(["ZRANGE", keys.line(line), 0, limit - 1], _texts)


def scan_jobs(keys: QueueKeys, line: str, cursor: str, count: int) -> Command[tuple[str, list[str]]]:
    """Some of the jobs of a line, and the cursor of the next call; "0" at the end."""

    def read(reply: Any) -> tuple[str, list[str]]:
        return text(reply[0]), _texts(reply[1])[::2]

    return Command(["ZSCAN", keys.line(line), cursor, "COUNT", count], read)


def before(keys: QueueKeys, line: str, job: str) -> Command[int | None]:
    """How many jobs of the line come before this one; None when it is not there."""
    return Command(["ZRANK", keys.line(line), job], _number_or_none)


def gates(keys: QueueKeys, job: str) -> Command[str]:
    """The gates of a job, as its record names them; empty when it has none."""
    return Command(["HGET", keys.record(job), LETTERS["gates"]], _text_or_nothing)


def through(keys: QueueKeys, gate: str, limit: int) -> Command[list[str]]:
    """Some of the jobs that are through a gate: first those that run, then those that are about to start."""
    return Command(["ZRANGE", keys.slots(gate), 0, limit - 1], _texts)


def alarm(keys: QueueKeys, gate: str) -> Command[int | None]:
    """When a rate opens, in milliseconds by the server's clock; None while a job is through it."""
    return Command(["ZSCORE", keys["turn"], gate], _number_or_none)


def changed(keys: QueueKeys) -> Command[dict[str, str]]:
    """The numbers of limits that an operator has set, by definition."""

    def read(reply: Any) -> dict[str, str]:
        flat = _texts(reply)
        return dict(zip(flat[::2], flat[1::2], strict=True))

    return Command(["HGETALL", keys["limits"]], read)


def _texts(reply: Any) -> list[str]:
    return [text(word) for word in reply]


def _text_or_nothing(reply: Any) -> str:
    return "" if reply is None else text(reply)


def _number_or_none(reply: Any) -> int | None:
    return None if reply is None else int(float(reply))
