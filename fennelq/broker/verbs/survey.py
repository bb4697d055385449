"""Verbs that look at a queue: how many jobs are in each place, and which of them run. They write nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from fennelq import clock
from fennelq.broker.key_kinds import TYPES
from fennelq.broker.keys import STREAMS, QueueKeys
from fennelq.broker.scripts import script
from fennelq.broker.verb import Verb, text
from fennelq.broker.verbs.queues import damage_of
from fennelq.model.pause import QueuePause, pause_in
from fennelq.model.progress import Progress, shown

RUNNING_AT_ONCE: Final = 500
"""Entries that a page of `running` visits. More would block the server for too long."""
_IN_LINES: Final = "parked"
"""The counter of jobs in lines. The others count what has happened so far."""


class Lane(NamedTuple):
    """A lane at one moment."""

    length: int
    running: int
    """Delivered and not yet settled."""
    last: str
    """The last entry that was delivered; `0-0` when none was."""
    since_ms: int | None
    """Since when the job waits that has waited longest, by the server's clock; None when none waits."""

    @property
    def waiting(self) -> int:
        """How many of its jobs no executor has taken."""
        return max(0, self.length - self.running)


_EMPTY: Final = Lane(0, 0, "0-0", None)


class Survey(NamedTuple):
    """The numbers of a queue at one moment."""

    now_ms: int
    """The server's clock."""
    lanes: Mapping[str, Lane]
    scheduled: int
    retry: int
    dead: int
    due_ms: int | None
    """When the next job is due that is scheduled or waits for its next try."""
    died_ms: int | None
    """When the newest of the dead jobs died."""
    in_lines: int
    lines: int
    """The number of lines that are not empty."""
    counters: Mapping[str, int]
    """What has happened in this queue so far, by letter."""
    paused: QueuePause | None
    damage: str
    """A sentence about each key of a wrong type; empty without damage. With damage, other numbers may be missing."""


def survey(keys: QueueKeys) -> Verb[Survey]:
    """The numbers of a queue. The cost does not depend on how many jobs there are."""
    arrow = script("survey")

    def read(reply: Any) -> Survey:
        now, scheduled, due, retry, due_again, dead, died, lines, paused, counted, damaged, *rest = reply
        values = iter(rest)
        used = {text(lane): _lane(*row) for lane, *row in zip(*[values] * 5, strict=True)}
        counters = _counters(text(counted))
        in_lines = max(0, counters.pop(_IN_LINES, 0))
        dues = [int(float(one)) for one in (due, due_again) if one]
        return Survey(
            now_ms=now,
            lanes={lane: used.get(lane, _EMPTY) for lane in STREAMS},
            scheduled=scheduled,
            retry=retry,
            dead=dead,
            due_ms=min(dues, default=None),
            died_ms=_ms_of(died),
            in_lines=in_lines if lines else 0,
            lines=lines,
            counters=counters,
            paused=pause_in(paused),
            damage=_damage(keys, damaged),
        )

    return Verb(arrow, arrow.of(keys), [keys.prefix], read)


class Run(NamedTuple):
    """A job that an executor has taken and not settled."""

    lane: str
    entry: str
    executor: str
    silent_ms: int
    """How long ago the executor took the job, or renewed its lease."""
    key: str
    task: str
    started_ms: int | None
    """None when the executor has taken it and not started it."""
    tries: int
    """The number of this try."""
    progress: Progress | None
    stopping: str | None
    """Why it was asked to stop."""
    is_copy: bool
    """Whether it is the second copy of a job whose run takes too long."""

    @property
    def started_at(self) -> datetime | None:
        """When it started, by the server's clock."""
        return None if self.started_ms is None else clock.from_ms(self.started_ms)


class RunningPage(NamedTuple):
    """A page of the jobs that run."""

    now_ms: int
    """The server's clock."""
    cursor: str
    """The cursor of the next page; empty at the end."""
    runs: Sequence[Run]


def running(keys: QueueKeys, cursor: str = "", limit: int = RUNNING_AT_ONCE) -> Verb[RunningPage]:
    """A page of the jobs that run in a queue, lane by lane. A page may have fewer jobs than `limit` and not be the
    last."""
    arrow = script("running")

    def read(reply: Any) -> RunningPage:
        now, more, flat = reply
        values = iter(flat)
        return RunningPage(now, text(more), [_run(*row) for row in zip(*[values] * 11, strict=True)])

    return Verb(arrow, arrow.of(keys), [keys.prefix, cursor, limit], read)


def _run(*row: Any) -> Run:
    lane, entry, executor, silent, job, task, start, tries, progress, stopping, copy = row
    return Run(
        lane=text(lane),
        entry=text(entry),
        executor=text(executor),
        silent_ms=silent,
        key=text(job),
        task=text(task),
        started_ms=int(start) if start else None,
        # A number that a person has damaged hides no other run.
        tries=(int(tries) if tries.isdigit() else 0) + 1,
        progress=shown(text(progress)),
        stopping=text(stopping) or None,
        is_copy=copy == 1,
    )


def _lane(length: int, running: int, last: bytes, oldest: bytes) -> Lane:
    return Lane(length, running, text(last), _ms_of(oldest))


def _ms_of(entry: bytes) -> int | None:
    """The time in the id of an entry; None without an entry."""
    return int(entry.partition(b"-")[0]) if entry else None


def _counters(words: str) -> dict[str, int]:
    """It leaves out values that are not numbers: a person may have written them."""
    names_and_values = words.split("\n")
    named = zip(names_and_values[::2], names_and_values[1::2], strict=False)
    return {name: int(value) for name, value in named if value.removeprefix("-").isdecimal()}


def _damage(keys: QueueKeys, flat: Sequence[bytes]) -> str:
    found = {text(flat[i]): text(flat[i + 1]) for i in range(0, len(flat), 2)}
    names = ((key, key.removeprefix(keys.prefix)) for key in found)
    return "; ".join(damage_of(key, found[key], TYPES[name]) for key, name in names)
