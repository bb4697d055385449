"""Verbs for the dead-letter queue."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from fennelq.broker.keys import QueueKeys
from fennelq.broker.scripts import script
from fennelq.broker.verb import Command, Verb, Word, as_is, fields_of, text
from fennelq.broker.verbs import jobs
from fennelq.model.fields import LETTERS, NAMES
from fennelq.model.fingerprint import fingerprint_of, is_fingerprint
from fennelq.model.job import JobInfo
from fennelq.model.lifetimes import Lifetimes

OTHERS: Final = "other"
"""The group of the jobs of further kinds, when a queue has a thousand groups."""
CURSOR: Final = "@"
"""The field of `dlq:g` with the cursor."""
NOWHERE: Final = "0-0"
"""Before every entry."""
_ENTRY: Final = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")


class DeadJob(NamedTuple):
    """An entry of the dead-letter queue."""

    queue: str
    entry: str
    key: str
    task: str
    error_type: str
    message: str
    reason: str
    given: str = ""
    """The fingerprint in the entry; empty when an executor of an earlier release has written it."""

    @property
    def fingerprint(self) -> str:
        """The fingerprint of its failure."""
        return (
            self.given
            if is_fingerprint(self.given)
            else fingerprint_of(self.reason, self.task, self.error_type)
        )

    @property
    def id(self) -> str:
        """The job's id."""
        return f"{self.queue}:{self.key}"

    @property
    def died_ms(self) -> int:
        """When it died, by the server's clock."""
        return int(self.entry.partition("-")[0])


class DeadGroup(NamedTuple):
    """A group of dead jobs in the index."""

    fingerprint: str
    """OTHERS for the jobs that have no group of their own."""
    jobs: int
    task: str
    error_type: str
    message: str
    """Of the job that died first."""
    reason: str
    first: str
    """An entry that is not after any of its entries."""
    newest: str
    """An entry that is not before any of its entries."""


class GroupIndex(NamedTuple):
    """The index of the dead jobs of a queue, at one moment."""

    queue: str
    length: int
    """The number of dead jobs."""
    groups: list[DeadGroup]
    cursor: str
    """Entries of earlier releases are counted as far as this one."""
    bound: str
    """While the index is counted anew: entries as far as this one are counted as far as the cursor only."""

    @property
    def counted(self) -> int:
        """The number of dead jobs in the index."""
        return sum(group.jobs for group in self.groups)

    @property
    def is_wrong(self) -> bool:
        """Whether an executor of an earlier release has removed jobs that are counted, or a key was damaged. `index`
        will count anew."""
        return self.counted > self.length or any(NOWHERE in (one.first, one.newest) for one in self.groups)

    @property
    def is_complete(self) -> bool:
        """Whether every dead job is counted."""
        return self.counted == self.length and not self.is_wrong

    def counts(self, dead: DeadJob) -> bool:
        """Whether this job is in the index."""
        if is_fingerprint(dead.given) and order(dead.entry) > order(self.bound):
            return True
        return order(dead.entry) <= order(self.cursor)


def order(entry: str) -> tuple[int, int]:
    """Sorts entries as the stream has them."""
    ms, _, number = entry.partition("-")
    return int(ms), int(number)


def groups(keys: QueueKeys) -> Verb[GroupIndex]:
    """The index of the dead jobs."""
    arrow = script("groups")

    def read(reply: Any) -> GroupIndex:
        length, numbers, looks, newest = reply[0], *map(fields_of, reply[1:])
        cursor, _, bound = numbers.pop(CURSOR, "").partition(" ")
        found = [_group(*one, looks, newest) for one in numbers.items()]
        return GroupIndex(keys.queue, length, found, _entry_in(cursor), _entry_in(bound))

    return Verb(arrow, arrow.of(keys), [keys.prefix], read)


def _group(fingerprint: str, number: str, looks: Mapping[str, str], newest: Mapping[str, str]) -> DeadGroup:
    look = facts_in(looks.get(fingerprint, ""))
    return DeadGroup(
        fingerprint,
        int(number) if number.isdecimal() else 0,
        look.get("task", ""),
        look.get("type", ""),
        look.get("message", ""),
        look.get("reason", ""),
        _entry_in(look.get("first", "")),
        _entry_in(newest.get(fingerprint, "")),
    )


def _entry_in(text: str) -> str:
    """The entry that a field of the index names."""
    return text if _ENTRY.fullmatch(text) else NOWHERE


def facts_in(look: str) -> dict[str, str]:
    """The facts in the index about the first job of a group; empty when they cannot be read."""
    try:
        return {name: str(value) for name, value in orjson.loads(look).items()}
    except (ValueError, AttributeError):
        return {}


class Indexed(NamedTuple):
    """The result of a page of `index`."""

    jobs: int
    """Dead jobs that were not counted before."""
    more: bool
    anew: bool
    """The index was wrong, and is counted anew."""


def index(keys: QueueKeys, limit: int) -> Verb[Indexed]:
    """Count a page of the dead jobs that are not in the index of groups."""
    arrow = script("index")

    def read(reply: Any) -> Indexed:
        return Indexed(reply[0], reply[1] == 1, reply[2] == 1)

    return Verb(arrow, arrow.of(keys), [keys.prefix, limit], read)


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
    return DeadJob(queue, entry, *(fields.get(name, "") for name in "itemyf"))


class DeadCall(NamedTuple):
    """The part of a dead job's record that depends on its arguments."""

    task: str
    arguments: bytes
    gates: str
    idempotency: str
    """The key, with the letter that says how long it is held."""


_OF_CALL: Final = tuple(LETTERS[name] for name in ("task", "arguments", "gates", "idempotency"))


def call(keys: QueueKeys, key: str) -> Command[DeadCall | None]:
    """The call of a job; None when its record has no task or no arguments."""

    def read(reply: Any) -> DeadCall | None:
        task, arguments, gates, idempotency = reply
        if task is None or arguments is None:
            return None
        return DeadCall(text(task), arguments, text(gates or b""), text(idempotency or b""))

    return Command(["HMGET", keys.record(key), *_OF_CALL], read)


class Change(NamedTuple):
    """New arguments of a dead job, with the gates and the idempotency key that follow from them."""

    arguments: bytes
    gates: str | None = None
    """None: the job keeps its gates."""
    idempotency: str | None = None
    """None: the job keeps its key."""
    before: str = ""
    """For the history: who has changed the arguments, and the old ones."""

    @property
    def size(self) -> int:
        """The approximate number of bytes of the change on the wire."""
        return len(self.arguments) + len(self.gates or "") + len(self.idempotency or "") + len(self.before)

    def words(self) -> list[Word]:
        """The fields that change, and the text for the history."""
        words: list[Word] = [LETTERS["arguments"], self.arguments, "before", self.before]
        if self.gates is not None:
            words += (LETTERS["gates"], self.gates)
        if self.idempotency is not None:
            words += (LETTERS["idempotency"], self.idempotency)
        return words


Changes = Mapping[str, Change]
"""The changes of dead jobs, by DLQ entry."""
_NO_CHANGES: Final[Changes] = {}


def replay(keys: QueueKeys, entries: Sequence[str], changes: Changes = _NO_CHANGES) -> Verb[list[int]]:
    """Put dead jobs back: per DLQ entry 1 replayed, 0 no longer in the DLQ, -1 its idempotency key is taken."""
    arrow = script("replay")
    return Verb(arrow, arrow.of(keys), _with_changes(keys, entries, changes), as_is)


def replayable(keys: QueueKeys, entries: Sequence[str], changes: Changes = _NO_CHANGES) -> Verb[list[int]]:
    """Ask what `replay` would do: per DLQ entry 1, 0 or -1 as there, or -2 when its record cannot be read."""
    arrow = script("replayable")
    only_keys = {entry: Change(b"", None, change.idempotency) for entry, change in changes.items()}
    return Verb(arrow, arrow.of(keys), _with_changes(keys, entries, only_keys), as_is)


def _with_changes(keys: QueueKeys, entries: Sequence[str], changes: Changes) -> list[Word]:
    args: list[Word] = [keys.prefix]
    for entry in entries:
        words = changes[entry].words() if entry in changes else []
        args += (entry, len(words) or "", *words)
    return args


class Restored(NamedTuple):
    """A dead job of an export."""

    key: str
    failure: bytes
    note: str
    """For the history."""
    fields: Mapping[str, str | bytes]
    """The fields of its record, by name."""

    @property
    def size(self) -> int:
        """The approximate number of bytes of the job on the wire."""
        return len(self.failure) + sum(map(len, self.fields.values())) + 200


def restore(keys: QueueKeys, dead_jobs: Sequence[Restored], lifetimes: Lifetimes) -> Verb[list[int]]:
    """Put dead jobs of an export back into the DLQ: per job 1 restored, 0 a job with this id is known."""
    arrow = script("restore")
    args: list[Word] = [keys.prefix, keys.queue, *lifetimes]
    for job in dead_jobs:
        fields = [word for name, value in job.fields.items() for word in (LETTERS[name], value)]
        args += (job.key, job.failure, job.note, len(fields), *fields)
    return Verb(arrow, arrow.of(keys), args, as_is)


def whole(keys: QueueKeys, key: str) -> Command[tuple[JobInfo | None, dict[str, bytes]]]:
    """Everything about a job, and the fields of its record by name; None and nothing without a record."""
    words, read_info = jobs.record(keys, key)

    def read(reply: Any) -> tuple[JobInfo | None, dict[str, bytes]]:
        pairs = zip(map(text, reply[::2]), reply[1::2], strict=True)
        return read_info(reply), {NAMES[letter]: value for letter, value in pairs if letter in NAMES}

    return Command(words, read)


def forget(keys: QueueKeys, entries: Sequence[str]) -> Verb[int]:
    """Delete dead jobs: DLQ entry, record, result, idempotency key. Returns how many were deleted."""
    arrow = script("forget")
    return Verb(arrow, arrow.of(keys), [keys.prefix, *entries], int)
