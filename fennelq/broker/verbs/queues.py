"""Verbs for queues: their lanes, their due and waiting jobs, and purging."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from fennelq.broker.key_kinds import TYPES
from fennelq.broker.keys import APPS, GROUP, LANES, QUARANTINE, QueueKeys, queues_key
from fennelq.broker.scripts import script
from fennelq.broker.verb import Command, Verb, fields_of, text
from fennelq.model.checks import NAME
from fennelq.model.job import Priority
from fennelq.model.lifetimes import Lifetimes
from fennelq.model.pause import QueuePause, QueueSide, pause_in

_MOST_APPS: Final = 1_000


def promote(keys: QueueKeys, limit: int) -> Verb[tuple[int, int]]:
    """Move due jobs to their lanes. Returns (number of jobs, ms to the next due time or -1)."""
    arrow = script("promote")
    return Verb(arrow, arrow.of(keys), [keys.prefix, limit], tuple)


_LETTERS: Final[Mapping[QueueSide, str]] = {"consume": "c", "enqueue": "e"}


def letters_of(sides: Iterable[QueueSide]) -> str:
    """The first line of the key `paused` when these sides are paused."""
    return "".join(_LETTERS[side] for side in sides)


def pause(keys: QueueKeys, sides: Iterable[QueueSide], who: str, why: str) -> Verb[QueuePause]:
    """Pause these sides of the queue, in addition to what is paused already. Returns the whole pause."""
    arrow = script("pause")
    return Verb(arrow, arrow.of(keys), [keys.prefix, letters_of(sides), who, why], QueuePause.from_wire)


class Resumed(NamedTuple):
    """The result of a page of `resume`."""

    before: QueuePause | None
    """What was paused before this call."""
    more: bool
    """Whether executors are left that this call has not woken."""


def resume(keys: QueueKeys, sides: Iterable[QueueSide]) -> Verb[Resumed]:
    """End the pause of these sides of the queue, and wake a page of the executors that have met it. Without sides, it
    only wakes the next page, unless consuming is paused."""
    arrow = script("resume")

    def read(reply: Any) -> Resumed:
        return Resumed(pause_in(reply[0]), reply[1] == 1)

    return Verb(arrow, arrow.of(keys), [keys.prefix, letters_of(sides)], read)


def paused(keys: QueueKeys) -> Command[QueuePause | None]:
    """What people have paused in this queue; None when nothing is paused."""
    return Command(["GET", keys["paused"]], pause_in)


class Waiting(NamedTuple):
    """An entry of a lane."""

    lane: str
    entry: str
    key: str


def length(keys: QueueKeys, name: str) -> Command[int]:
    """The number of entries in a lane or the DLQ, or of members in a sorted set."""
    return Command(["ZCARD" if name in ("sched", "retry") else "XLEN", keys[name]], int)


def stats(keys: QueueKeys) -> Command[dict[str, int]]:
    """The queue's counters."""

    def read(reply: Any) -> dict[str, int]:
        return {text(reply[i]): int(reply[i + 1]) for i in range(0, len(reply), 2)}

    return Command(["HGETALL", keys["stats"]], read)


def waiting(
    keys: QueueKeys, lane: str, after: str, limit: int, *, until: str = "+"
) -> Command[list[Waiting]]:
    """A page of a lane, beginning after the entry `after`, and ending with the entry `until`."""

    def read(reply: Any) -> list[Waiting]:
        return [Waiting(lane, text(entry), fields_of(fields).get("i", "")) for entry, fields in reply]

    return Command(["XRANGE", keys[lane], f"({after}", until, "COUNT", limit], read)


def last(keys: QueueKeys, lane: str) -> Command[str]:
    """The last entry of a lane; empty when it has none."""

    def read(reply: Any) -> str:
        return text(reply[0][0]) if reply else ""

    return Command(["XREVRANGE", keys[lane], "+", "-", "COUNT", 1], read)


def scan(keys: QueueKeys, place: str, cursor: str, count: int) -> Command[tuple[str, list[str]]]:
    """Some of the scheduled jobs, or of those that wait for their next try, and the cursor of the next call; "0" at the
    end. Jobs that are there during the whole scan are found, even if others leave."""

    def read(reply: Any) -> tuple[str, list[str]]:
        return text(reply[0]), [text(reply[1][i]) for i in range(0, len(reply[1]), 2)]

    return Command(["ZSCAN", keys[place], cursor, "COUNT", count], read)


def stopping(keys: QueueKeys) -> Command[int]:
    """The number of running jobs that were asked to stop."""
    return Command(["SCARD", keys["stop"]], int)


def lane_of(priority: Priority) -> str:
    """The lane of jobs of this priority."""
    return LANES[priority]


def lanes() -> tuple[str, ...]:
    """Every lane, in the order it is read."""
    return (*LANES.values(), QUARANTINE)


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
    """How far the executors have read a lane: `0-0` and 0 when none has ever served it. The lane must exist."""

    def read(reply: Any) -> Reading:
        for flat in reply:
            facts = {text(flat[i]): flat[i + 1] for i in range(0, len(flat), 2)}
            if text(facts["name"]) == GROUP:
                return Reading(text(facts["last-delivered-id"]), int(facts["pending"]))
        return Reading("0-0", 0)

    return Command(["XINFO", "GROUPS", keys[lane]], read)


def due(keys: QueueKeys, place: str, limit: int) -> Command[list[Due]]:
    """The jobs that are due next, of the scheduled jobs or of those that wait for their next try."""

    def read(reply: Any) -> list[Due]:
        return [Due(text(reply[i]), int(float(reply[i + 1]))) for i in range(0, len(reply), 2)]

    return Command(["ZRANGE", keys[place], 0, limit - 1, "WITHSCORES"], read)


def overdue(keys: QueueKeys, place: str, now_ms: int) -> Command[int]:
    """How many of the scheduled jobs, or of those that wait for their next try, are due by now."""
    return Command(["ZCOUNT", keys[place], "-inf", now_ms], int)


def damage(keys: QueueKeys) -> list[Command[str]]:
    """For each key of the queue: a sentence when it is damaged, otherwise an empty text."""

    def type_of(name: str, expected: str) -> Command[str]:
        def read(reply: Any) -> str:
            kind = text(reply)
            return "" if kind in (expected, "none") else damage_of(keys[name], kind, expected)

        return Command(["TYPE", keys[name]], read)

    return [type_of(name, expected) for name, expected in TYPES.items()]


def damage_of(key: str, kind: str, expected: str) -> str:
    """The sentence about a key of a wrong type."""
    return f"{key} is a {kind} and should be a {expected}: rename or delete it"


def purge(keys: QueueKeys, lifetimes: Lifetimes, limit: int) -> Verb[int]:
    """Cancel a page of the jobs that wait in a queue; returns how many, or 0 when no job is left."""
    arrow = script("purge")
    return Verb(arrow, arrow.of(keys), [keys.prefix, keys.queue, *lifetimes, limit], int)


class Mended(NamedTuple):
    """The result of a page of `mend`."""

    slots: int
    """Slots that no job held, and that were given back."""
    more: bool
    gates: list[str]
    """Some of their gates."""


def mend(keys: QueueKeys, limit: int, holders: int = 1000) -> Verb[Mended]:
    """Put right the gates where jobs wait, a page per call. Of each gate, `holders` slots are looked at."""
    arrow = script("mend")

    def read(reply: Any) -> Mended:
        return Mended(reply[0], reply[1] == 1, [text(gate) for gate in reply[2]])

    return Verb(arrow, arrow.of(keys), [keys.prefix, limit, holders], read)


def limit(
    keys: QueueKeys, definition: str, numbers: str, cursor: str = "0", page: int = 1000
) -> Verb[tuple[str, int]]:
    """Change the numbers of a limit, or undo the change (""). Returns the cursor of the next page, "0" at the end, and
    how many of its gates were opened to let in what waits."""
    arrow = script("limit")

    def read(reply: Any) -> tuple[str, int]:
        return text(reply[0]), reply[1]

    return Verb(arrow, arrow.of(keys), [keys.prefix, definition, numbers, cursor, page], read)


def gc(keys: QueueKeys, *, max_age_ms: int, max_len: int, idle_ms: int, limit: int) -> Verb[tuple[int, int]]:
    """Bound the DLQ and delete unused consumers. Returns (dead jobs removed, consumers removed)."""
    arrow = script("gc")
    return Verb(arrow, arrow.of(keys), [keys.prefix, max_age_ms, max_len, idle_ms, limit], tuple)


def note_queues(app: str, queues: Iterable[str]) -> Command[int]:
    """Add these queues to the queues that the app has used."""
    return Command(["SADD", queues_key(app), *queues], int)


def known_queues(app: str) -> Command[set[str]]:
    """Every queue this app has used. A name that no queue can have was not written by fennelq: it is left out."""

    def read(reply: Any) -> set[str]:
        return {name for name in map(text, reply) if NAME.fullmatch(name)}

    return Command(["SMEMBERS", queues_key(app)], read)


class KnownApps(NamedTuple):
    """The apps that have used a server."""

    names: list[str]
    """Their namespaces, sorted."""
    are_all: bool = True


def note_app(app: str) -> Command[int]:
    """Add the namespace of an app to those of the server."""
    return Command(["SADD", APPS, app], int)


def known_apps() -> Command[KnownApps]:
    """The apps of the server, about a thousand at most: more are no choice for a person. A name that no app can have
    was not written by fennelq: it is left out."""

    def read(reply: Any) -> KnownApps:
        cursor, members = reply
        names = {name for name in map(text, members) if NAME.fullmatch(name)}
        return KnownApps(sorted(names), text(cursor) == "0")

    return Command(["SSCAN", APPS, "0", "COUNT", _MOST_APPS], read)
