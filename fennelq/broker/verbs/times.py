"""Verbs for the runs of tasks: how many ended in each minute, how long they took, how long their jobs waited."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from fennelq.broker.keys import QueueKeys
from fennelq.broker.scripts import script
from fennelq.broker.verb import Command, Verb, Word, text
from fennelq.model.times import BUCKETS

WINDOW_MS: Final = 600_000
"""The times of ten minutes are in one key. `meter.lua` has the same number."""
RUN, WAIT = "r", "w"
HOUR_MS: Final = 3_600_000
"""The runs of an hour are in one key."""
MINUTE_MS: Final = 60_000
ENDS: Final = {"S": "SN", "R": "R", "Z": "ZG", "D": "D", "K": "K"}
"""Letter under which runs are counted → the kinds of outcomes that it stands for."""

Counts = Mapping[str, int]
"""Field → number of durations or runs. The fields are made by `field_of`, `end_of` and `minute_of`."""


class Report(NamedTuple):
    """The times that an executor has counted in a queue since its last report."""

    executor: str
    life: str
    """Differs between two processes with the same name."""
    number: int
    """Later reports of this life have higher numbers."""
    counts: Counts


def field_of(task: str, kind: str, bucket: int) -> str:
    """The name of a field: a task, what was measured, and the number of the bucket."""
    return f"{task}|{kind}{bucket}"


def end_of(task: str, letter: str) -> str:
    """The name of the field for the runs of a task that ended in this way."""
    return f"{task}|{letter}"


def minute_of(minute: int, letter: str) -> str:
    """The name of the field for all runs that ended in this way, in this minute since the epoch."""
    return f"|{minute}|{letter}"


def durations_in(counts: Counts) -> int:
    """How many durations the counts have."""
    return sum(number for field, number in counts.items() if field[field.rindex("|") + 1] in (RUN, WAIT))


def meter(keys: QueueKeys, report: Report, kept_ms: int) -> Verb[bool]:
    """Add a report to the times of the queue; True unless it was added before, by a call whose reply was lost."""
    arrow = script("meter")
    args: list[Word] = [keys.prefix, report.executor, report.life, report.number, kept_ms]
    for field, count in report.counts.items():
        args += (field, count)
    return Verb(arrow, arrow.of(keys), args, bool)


class Window(NamedTuple):
    """What the tasks of a queue have done in ten minutes."""

    durations: dict[tuple[str, str], list[int]]
    """(task, RUN or WAIT) → counts by bucket."""
    ends: dict[str, dict[str, int]]
    """Task → letter of an outcome → runs."""


def times(keys: QueueKeys, at_ms: int) -> Command[Window]:
    """What was counted in the ten minutes that contain this moment."""

    def read(reply: Any) -> Window:
        found = Window({}, {})
        for i in range(0, len(reply), 2):
            task, _, rest = text(reply[i]).rpartition("|")
            kind, bucket, count = rest[:1], rest[1:], text(reply[i + 1])
            # A later version may count other things: their fields are ignored.
            if not count.isdecimal():
                continue
            if kind in (RUN, WAIT) and bucket.isdecimal() and int(bucket) < BUCKETS:
                found.durations.setdefault((task, kind), [0] * BUCKETS)[int(bucket)] = int(count)
            elif rest in ENDS:
                found.ends.setdefault(task, {})[rest] = int(count)
        return found

    return Command(["HGETALL", keys.times(at_ms // WINDOW_MS)], read)


def hour(keys: QueueKeys, at_ms: int) -> Command[dict[int, dict[str, int]]]:
    """Minute of the hour → letter of an outcome → runs, for the hour that contains this moment. Minutes without runs
    are missing."""

    def read(reply: Any) -> dict[int, dict[str, int]]:
        found: dict[int, dict[str, int]] = {}
        for i in range(0, len(reply), 2):
            minute, _, letter = text(reply[i]).partition("|")
            count = text(reply[i + 1])
            if minute.isdecimal() and int(minute) < 60 and letter in ENDS and count.isdecimal():
                found.setdefault(int(minute), {})[letter] = int(count)
        return found

    return Command(["HGETALL", keys.minutes(at_ms // HOUR_MS)], read)
