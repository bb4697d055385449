"""Verbs for executors: their leases, and the facts that they publish for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from fennelq.broker.keys import AppKeys, QueueKeys, executors_key
from fennelq.broker.scripts import script
from fennelq.broker.verb import Command, Verb, Word, text

FORGOTTEN_AFTER_MS: Final = 3_600_000
"""How long the facts about an executor that has ended are kept."""
_TOLD_FOR_MS: Final = 300_000
"""How long a death is told to the executors that recover its jobs, which happens within two leases."""


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
    stopping: list[tuple[str, str, str]]
    """Held by this executor, and asked to stop: (lane, entry, why)."""


def beat(keys: QueueKeys, consumer: str, grace_ms: int, held: Iterable[tuple[str, str]]) -> Verb[Beat]:
    """Renew the lease of every entry that this executor holds."""
    arrow = script("beat")
    args: list[Word] = [keys.prefix, consumer, grace_ms]
    for lane, entry in held:
        args += (lane, entry)

    def read(reply: Any) -> Beat:
        lost, stranded, quarantined, now_ms, stopping = reply
        return Beat(_pairs(lost), _pairs(stranded), quarantined, now_ms, _triples(stopping))

    return Verb(arrow, arrow.of(keys), args, read)


def close_consumer(keys: QueueKeys, consumer: str) -> Verb[int]:
    """Remove an executor's consumers that have no pending entries. Returns the number of lanes without one."""
    arrow = script("close")
    return Verb(arrow, arrow.of(keys), [keys.prefix, consumer], int)


def stay_awake(keys: QueueKeys, executor: str) -> Verb[int]:
    """Remove an executor from those that a new job may wake."""
    arrow = script("stay_awake")
    return Verb(arrow, arrow.of(keys), [keys.prefix, executor], int)


class Present(NamedTuple):
    """What an executor learns when it publishes its facts."""

    now_ms: int
    """The server's clock."""
    living: int
    """The executors that were present lately, this one included."""
    queues: int
    """The number of queues that the app has used."""
    watcher: bool
    """Whether this is the one executor that reads the facts of all."""
    deaths: dict[str, str]
    """Executor → how its process ended, of the last minutes."""


def present(keys: AppKeys, executor: str, facts: bytes, recent_ms: int) -> Verb[Present]:
    """Record that an executor is alive, with facts for people, as a JSON object. They never decide who owns a job."""
    arrow = script("present")

    def read(reply: Any) -> Present:
        now, living, queues, watcher, deaths = reply
        fates = {name: fate.partition(" ")[2] for name, fate in _pairs(deaths)}
        return Present(now, living, queues, watcher == 1, fates)

    return Verb(arrow, arrow.of(keys), [keys.prefix, executor, facts, recent_ms, FORGOTTEN_AFTER_MS], read)


def died(keys: AppKeys, executor: str, fate: str, recent_ms: int) -> Verb[int]:
    """Record how the process of an executor has ended."""
    arrow = script("died")
    return Verb(
        arrow, arrow.of(keys), [keys.prefix, executor, fate, recent_ms, max(_TOLD_FOR_MS, 2 * recent_ms)], int
    )


def absent(keys: AppKeys, executors: Iterable[str]) -> Verb[int]:
    """Delete the facts about these executors."""
    arrow = script("absent")
    return Verb(arrow, arrow.of(keys), [keys.prefix, *executors], int)


def known_executors(app: str) -> Command[dict[str, bytes]]:
    """Executor → facts."""

    def read(reply: Any) -> dict[str, bytes]:
        return {text(reply[i]): reply[i + 1] for i in range(0, len(reply), 2)}

    return Command(["HGETALL", executors_key(app)], read)


def facts(app: str, executor: str) -> Command[bytes | None]:
    """The facts about one executor; None when it is unknown."""
    return Command(["HGET", executors_key(app), executor], _bytes_or_none)


def await_answer(keys: AppKeys, request: str, ms: int) -> Command[bool]:
    """Make room for the answer to a question, for this time. An executor that finds none does not answer."""
    return Command(["SET", keys.answer(request), "", "PX", ms], bool)


def ask_executor(keys: AppKeys, executor: str, question: str) -> Command[int]:
    """Publish a question to one executor; returns the number of connections that have received it."""
    return Command(["SPUBLISH", keys.questions(executor), question], int)


def answer(keys: AppKeys, request: str) -> Command[bytes | None]:
    """The answer to a question. It is empty until the executor answers, and None when its key has expired."""
    return Command(["GET", keys.answer(request)], _bytes_or_none)


def leave_answer(keys: AppKeys, request: str, answer: bytes, ms: int) -> Command[bool]:
    """Answer a question; returns whether a client waits for the answer."""

    return Command(["SET", keys.answer(request), answer, "XX", "PX", ms], _is_written)


def await_profile(keys: AppKeys, request: str, ms: int) -> Command[bool]:
    """Make room for a profile, for this time. The client does it again and again: an executor that finds no room ends
    its profile."""
    return Command(["SET", keys.profile(request), "", "PX", ms], bool)


def keep_profile(keys: AppKeys, request: str, ms: int) -> Command[bool]:
    """Keep the room for a profile for this time from now on."""
    return Command(["PEXPIRE", keys.profile(request), ms], bool)


def report_profile(keys: AppKeys, request: str, report: bytes) -> Command[bool]:
    """Write how far a profile is; returns whether a client waits for it."""
    return Command(["SET", keys.profile(request), report, "XX", "KEEPTTL"], _is_written)


def leave_profile(keys: AppKeys, request: str, profile: bytes, ms: int) -> Command[bool]:
    """Write a profile, for this time; returns whether a client waits for it."""
    return Command(["SET", keys.profile(request), profile, "XX", "PX", ms], _is_written)


def profile(keys: AppKeys, request: str) -> Command[bytes | None]:
    """The profile, or how far it is. It is empty before, and None when its key has expired."""
    return Command(["GET", keys.profile(request)], _bytes_or_none)


def drop_profile(keys: AppKeys, request: str) -> Command[int]:
    """Delete a profile that the client has read."""
    return Command(["UNLINK", keys.profile(request)], int)


def _is_written(reply: Any) -> bool:
    return reply is not None


def _bytes_or_none(reply: Any) -> bytes | None:
    return None if reply is None else bytes(reply)


def _pairs(flat: Any) -> list[tuple[str, str]]:
    return [(text(flat[i]), text(flat[i + 1])) for i in range(0, len(flat), 2)]


def _triples(flat: Any) -> list[tuple[str, str, str]]:
    return [(text(flat[i]), text(flat[i + 1]), text(flat[i + 2])) for i in range(0, len(flat), 3)]
