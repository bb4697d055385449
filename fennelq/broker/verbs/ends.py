"""Verbs for the ends of jobs, which a recorder of the history reads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from fennelq.broker.keys import QueueKeys
from fennelq.broker.scripts import script
from fennelq.broker.verb import Command, Verb, Word, text

LASTS_MS: Final = 86_400_000
"""The stream expires this long after the latest look of a recorder, so that arguments are not kept for one that never
comes back."""
STATUSES: Final[Mapping[str, str]] = {"S": "SUCCESS", "N": "SUCCESS", "D": "DEAD", "K": "CANCELLED"}
"""The statuses by the letters of the stream."""
_GAP: Final = re.compile(r"([SNDK])(\d{1,14})")
_STAMP: Final = re.compile(r"[0-9]{1,14}(?= )")
_WORD: Final = re.compile(r" ([SNDK])([A-Za-z0-9_.-]{1,128})(?![^ ])")


class End(NamedTuple):
    """A job that has ended."""

    key: str
    kind: str
    """The letter of its status."""
    at_ms: int
    """When, by the server's clock."""


class Ends(NamedTuple):
    """An entry: the ends of one call of a script."""

    entry: str
    text: str

    def each(self) -> Iterator[End]:
        """The ends. A word of a later version that cannot be read is passed over."""
        stamp = _STAMP.match(self.text)
        if stamp is None:
            return
        at_ms = int(stamp[0])
        for kind, key in _WORD.findall(self.text):
            yield End(key, kind, at_ms)


class Missed(NamedTuple):
    """The ends that no recorder has read."""

    number: int
    """Of all gaps."""
    since_ms: int
    """The begin of the latest gap: the look before it."""
    until_ms: int
    """When the latest gap was noticed."""
    of: Mapping[str, int]
    """Letter → how many ends of the latest gap had it, as far as that is known."""
    found: int
    """How many of them this look has found."""


class Taken(NamedTuple):
    """The entries that a recorder has taken."""

    entries: list[Ends]
    left: int
    """The entries in the stream, these included."""
    missed: Missed


class EndedRecord(NamedTuple):
    """The fields of the record of a job that has ended, as the server has them."""

    task: bytes
    status: bytes | None
    arguments: bytes | None
    options: bytes | None
    created: bytes | None
    ended: bytes | None
    tries: bytes | None
    run: bytes | None
    failure: bytes | None
    reason: bytes | None
    idempotency: bytes | None
    due: bytes | None
    history: list[bytes] | None


def ends_take(
    keys: QueueKeys, recorder: str, most: int, *, abandoned_ms: int | None = None, begin: bool = False
) -> Verb[Taken]:
    """The next entries for this recorder, at most `most`. With `abandoned_ms`, first those that another recorder has
    had for so long. `begin`: the queue is new to a recorder that records the others already."""
    arrow = script("ends_take")

    def read(reply: Any) -> Taken:
        entries, left, missed, since, until, of, found = reply
        kinds = {kind: int(number) for kind, number in _GAP.findall(text(of))}
        gap = Missed(_whole(missed), _whole(since), _whole(until), kinds, found)
        return Taken([Ends(text(entry), text(words)) for entry, words in entries], int(left), gap)

    abandoned = "" if abandoned_ms is None else abandoned_ms
    args: list[Word] = [keys.prefix, recorder, most, LASTS_MS, abandoned, "1" if begin else ""]
    return Verb(arrow, arrow.of(keys), args, read)


def _whole(value: bytes) -> int:
    """The number; 0 for a damaged one."""
    return int(value) if value.isdigit() and len(value) <= 14 else 0


def ends_read(keys: QueueKeys, jobs: Sequence[str]) -> Verb[list[EndedRecord | None]]:
    """The records of these jobs, or of the first of them when they are large; None for a job that has none."""
    arrow = script("ends_read")

    def read(reply: Any) -> list[EndedRecord | None]:
        return [EndedRecord(*fields) if fields else None for fields in reply]

    return Verb(arrow, arrow.of(keys), [keys.prefix, *jobs], read)


def ends_done(
    keys: QueueKeys, entries: Sequence[str], succeeded: Sequence[str], *, ends: int = 0
) -> Verb[int]:
    """Remove these entries, which have so many ends, and empty the arguments of these jobs, which have succeeded."""
    arrow = script("ends_done")
    return Verb(arrow, arrow.of(keys), [keys.prefix, len(entries), ends, *entries, *succeeded], int)


def renew(keys: QueueKeys) -> Command[bool]:
    """Keep the stream for a day more."""
    return Command(["PEXPIRE", keys["ends"], LASTS_MS], bool)


def behind(keys: QueueKeys) -> Command[int]:
    """How many entries wait for a recorder; 0 while there is none."""
    return Command(["XLEN", keys["ends"]], int)
