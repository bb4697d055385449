"""Verbs for runs of jobs: fetch, double, finish, note, release, recover."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import orjson

from fennelq.broker.keys import LANES, QueueKeys
from fennelq.broker.scripts import script
from fennelq.broker.verb import MOST_JOBS, Verb, Word, as_is, text
from fennelq.model.job import Delivery
from fennelq.model.lifetimes import Lifetimes
from fennelq.model.outcome import RATE_LIMITED, RETRY, SNOOZE, Outcome

_PRIORITIES: Final = frozenset(LANES.values())


class Settled(NamedTuple):
    """A delivery and how its run ended."""

    delivery: Delivery
    outcome: Outcome
    seconds: float | None = None
    """How long the run took, the first time that its outcome is written; None when that is unknown."""


class Report(NamedTuple):
    """A delivery and how far its run has come, as `progress.to_wire` writes it."""

    delivery: Delivery
    progress: bytes


class TooNew(NamedTuple):
    """A job whose record only a later fennelq can read."""

    key: str
    task: str
    problem: str


class Catch(NamedTuple):
    """The result of a fetch."""

    deliveries: list[Delivery]
    drained: bool
    """Whether every lane is empty now."""
    due_ms: int
    """Milliseconds to the next due time; -1 when nothing is scheduled."""
    made: list[str]
    """Lanes that were read for the first time, or anew because they had been deleted."""
    problem: str
    """The error of a lane that cannot be read; empty without one."""
    too_new: list[TooNew]
    """Some of the jobs that this worker cannot read."""
    now_ms: int = 0
    """The server's clock; 0 when nothing was taken."""


def fetch(
    keys: QueueKeys,
    *,
    consumer: str,
    free: int,
    lanes: Sequence[str],
    lifetimes: Lifetimes,
    sleeps: bool = False,
) -> Verb[Catch]:
    """Take at most `free` jobs, one for each free slot. With `sleeps`, the executor is woken when a job arrives after
    it has found these lanes empty: then it must be subscribed to its bell."""
    arrow = script("fetch")
    args: list[Word] = [keys.prefix, keys.queue, consumer, free, " ".join(lanes)]
    args += [("all" if frozenset(lanes) == _PRIORITIES else "some") if sleeps else "", *lifetimes]

    def read(reply: Any) -> Catch:
        return _catch(keys.queue, reply)

    return Verb(arrow, arrow.of(keys), args, read)


def ring(keys: QueueKeys, lanes: Iterable[str]) -> Verb[int]:
    """Pass on messages about new entries in these lanes to other executors that sleep. Returns how many were woken."""
    arrow = script("ring")
    return Verb(arrow, arrow.of(keys), [keys.prefix, *lanes], int)


def finish(keys: QueueKeys, settled: Sequence[Settled], lifetimes: Lifetimes) -> Verb[list[int]]:
    """Write the outcomes of these runs. Returns per job 1 settled, 2 settled before with this token, 0 lost."""
    arrow = script("finish")
    args: list[Word] = [keys.prefix, keys.queue, *lifetimes]
    for delivery, outcome, _ in settled:
        ending, value = _ending(outcome)
        args += (f"{delivery.lane}/{delivery.entry}", delivery.key, ending, value)
    return Verb(arrow, arrow.of(keys), args, as_is)


def double(keys: QueueKeys, executor: str, runs: Sequence[tuple[str, str]]) -> Verb[list[int]]:
    """Give these runs, (lane, entry) pairs of the executor, a second copy each. Returns per run 1 doubled, 0 not."""
    arrow = script("double")
    args: list[Word] = [keys.prefix, executor, *(word for pair in runs for word in pair)]
    return Verb(arrow, arrow.of(keys), args, as_is)


def note(keys: QueueKeys, reports: Sequence[Report]) -> Verb[list[int]]:
    """Write the progress of these runs. Returns per job 1 written, 0 no longer the caller's, -1 unreadable."""
    arrow = script("note")
    args: list[Word] = [keys.prefix, keys.queue]
    for delivery, progress in reports:
        args += (f"{delivery.lane}/{delivery.entry}", delivery.key, progress)
    return Verb(arrow, arrow.of(keys), args, as_is)


def release(
    keys: QueueKeys,
    entries: Sequence[tuple[str, str]],
    why: Literal["stopped", "unstarted", "stranded"] = "stopped",
) -> Verb[int]:
    """Hand back these (lane, entry) pairs; returns how many. `unstarted`: their handlers did not begin."""
    arrow = script("release")
    return Verb(arrow, arrow.of(keys), [keys.prefix, why, *(word for pair in entries for word in pair)], int)


class Sweep(NamedTuple):
    """The result of a page of recovery."""

    swept: bool
    """False when another executor has done this interval's sweep."""
    more: bool
    requeued: int
    dead: int
    vanished: int
    quarantined: int
    """Jobs that wait there for an executor, whichever sweep has put them there."""
    lines: bool = False
    """Whether jobs wait for limits in this queue."""


def recover(
    keys: QueueKeys,
    lifetimes: Lifetimes,
    *,
    lease_ms: int,
    interval_ms: int,
    max_deliveries: int,
    beaten_ms: int,
    ago_ms: int = 0,
    limit: int = MOST_JOBS,
    more: bool = False,
    deaths: Mapping[str, str] | None = None,
) -> Verb[Sweep]:
    """Take jobs from executors that have been silent for a lease. `deaths` has the known causes of their ends.

    `beaten_ms` is the server's clock at the caller's last beat, and `ago_ms` how long ago that was by the caller's
    monotonic clock. When the two show that the caller itself has been silent, or that the server's clock was set since
    then, it takes no jobs: executors that are alive would look silent."""
    arrow = script("recover")
    args: list[Word] = [keys.prefix, keys.queue, *lifetimes, lease_ms, interval_ms, max_deliveries, limit]
    args += [int(more), beaten_ms, ago_ms, orjson.dumps(deaths or {})]

    def read(reply: Any) -> Sweep:
        if isinstance(reply, int):
            return Sweep(False, False, 0, 0, 0, reply)
        swept, more, requeued, dead, vanished, quarantined, lines = reply
        return Sweep(swept == 1, more == 1, requeued, dead, vanished, quarantined, lines == 1)

    return Verb(arrow, arrow.of(keys), args, read)


def swept(keys: QueueKeys, longest_ms: int) -> Verb[bool]:
    """Whether `recover` would do nothing, because another executor has swept the queue in this interval. `longest_ms`
    is the longest time for which that holds."""
    arrow = script("swept")
    return Verb(arrow, arrow.of(keys), [keys.prefix, longest_ms], bool)


def _ending(outcome: Outcome) -> tuple[str, bytes]:
    """The kind and the number of an outcome in one word, and the value to write."""
    kind = outcome.kind
    if kind in (RETRY, SNOOZE, RATE_LIMITED):
        return kind + outcome.value.decode(), outcome.error
    return f"{kind}{outcome.ttl_ms}", outcome.error or outcome.value


def _catch(queue: str, reply: Any) -> Catch:
    if isinstance(reply, int):
        return Catch([], True, reply, [], "", [])
    flat, drained, due, made, problem, too_new, now = reply
    return Catch(
        [_delivery(queue, flat, i) for i in range(0, len(flat), 6)] if flat else [],
        drained == 1,
        due,
        [text(lane) for lane in made],
        text(problem),
        [TooNew(*map(text, too_new[i : i + 3])) for i in range(0, len(too_new), 3)] if too_new else [],
        now,
    )


_FIRST_RUN: Final = (1, 1, 0, b"", b"")
"""Deliveries, fence, tries, due time and options of a plain call that runs for the first time."""


def _delivery(queue: str, flat: list[Any], i: int) -> Delivery:
    place, key, task, args, created, rest = flat[i : i + 6]
    lane, _, entry = place.decode().partition("/")
    deliveries, fence, tries, due, options = rest.split(b" ", 4) if rest else _FIRST_RUN
    return Delivery(
        queue,
        lane,
        entry,
        key.decode("utf-8", "backslashreplace"),
        task.decode("utf-8", "backslashreplace"),
        args,
        options,
        int(tries),
        int(deliveries),
        int(fence),
        created,
        int(due) if due.isdigit() else created,
    )
