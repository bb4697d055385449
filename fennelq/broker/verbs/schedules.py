"""Verbs for recurring jobs: declare schedules, find the due ones, and claim ticks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

import orjson

from fennelq.broker.keys import AppKeys
from fennelq.broker.scripts import script
from fennelq.broker.verb import Command, Verb, Word, text
from fennelq.broker.verbs.outbox import HANDED_KEPT_MS
from fennelq.model.result_codec import ANY_RESULT
from fennelq.model.schedule import WireSchedule
from fennelq.model.wire import AnyWireJob, WireJob

PATIENCE_MS = 60_000
"""The time for which a service, or a version of it, may be silent before another one takes over its schedules."""

MOST_DECLARED = 100
MOST_DECLARED_BYTES = 1 << 20
"""A page of a declaration has at most this many schedules and bytes, so that no call blocks the server for long."""

_NAMES = 1000

Change = Literal["put", "pause", "resume", "remove", "run"]


class Seen(NamedTuple):
    """A schedule that is due or has waiting runs, as it was at the time of the look."""

    name: str
    definition: bytes
    next_ms: int
    """0 when no tick follows."""
    last_job: str
    last_job_on_its_way: bool
    queued: bytes
    """The runs that wait for the last job to end, encoded as they are in Redis."""


class Position(NamedTuple):
    """The position of a schedule in the order of due schedules."""

    due: str
    """Its due time, in the form in which Redis returned it."""
    name: bytes


class Declared(NamedTuple):
    """How far the declaration of a service has come."""

    state: Literal["held", "open", "done"]
    """`held`: a newer version is the holder, and nothing was written. `open`: the declaration goes on with the next
    page. `done`: all schedules are declared, and earlier ones removed."""
    at: int
    """Where the next page begins."""
    removed: list[str]
    """Schedules of this service that its code does not declare any more."""


class Look(NamedTuple):
    """The reply of `look`: the due schedules, and other work on recurring jobs."""

    now_ms: int
    awake_ms: int
    """The time since which executors have been looking without a pause. Unclaimed ticks up to this time were missed."""
    version: str
    """The version of this service's code that is the holder; empty when none is, or when this process has something to
    declare."""
    wait_ms: int
    """Milliseconds until the next schedule is due; -1 when none has a next tick."""
    handing: int
    """The number of entries in the app's outbox: jobs on their way to their queues, and entries that couriers leave
    there."""
    queued: int
    """The number of schedules with runs that wait for the run before them."""
    turn: bool
    """Whether it is this process's turn to hand over jobs of the outbox and to start waiting runs."""
    due: list[Seen]
    waiting: list[Seen]
    """Some of the schedules with runs that wait, when it is this process's turn."""
    denied: int = 0
    """The number of this service's schedules whose names belong to another service."""
    more: bool = False
    """Whether more schedules are due, after this page."""
    last: Position | None = None
    """The last schedule on this page."""


class Claim(NamedTuple):
    """The decision of an executor about the due ticks of a schedule."""

    seen: Seen
    next_ms: int | None
    last_run_ms: int | None
    skipped: int
    queued: list[int] | None
    """The new list of runs that wait behind an unfinished one; None does not change it."""
    last_error: str
    last_error_ms: int | None
    jobs: list[AnyWireJob]


def job_of(schedule: WireSchedule, due_ms: int) -> AnyWireJob:
    """The job of a tick. Its key depends only on the schedule and the tick, so making it again makes the same job."""
    starts_ms = schedule.put_off(due_ms)
    return _job(
        schedule,
        schedule.job_key(due_ms),
        at_ms=starts_ms if schedule.jitter_ms else 0,
        expires_ms=schedule.expires_ms and schedule.expires_ms + starts_ms - due_ms,
        keep_ms=HANDED_KEPT_MS,
    )


def job_by_hand(schedule: WireSchedule) -> AnyWireJob:
    """A job that a person starts by hand: it belongs to no tick."""
    key = f"cron.{schedule.name}.now.{os.urandom(8).hex()}"
    return _job(schedule, key, at_ms=0, expires_ms=schedule.expires_ms, keep_ms=0)


def _job(schedule: WireSchedule, key: str, *, at_ms: int, expires_ms: int, keep_ms: int) -> AnyWireJob:
    carried: dict[str, Any] = {
        "priority": "" if schedule.priority == "normal" else schedule.priority,
        "at_ms": at_ms,
        "expires_ms": expires_ms,
        "max_deliveries": schedule.max_deliveries,
        **schedule.carried,
        "keep_ms": keep_ms,
        "options": schedule.options.decode(),
    }
    carried = {name: value for name, value in carried.items() if value}
    return WireJob(schedule.queue, key, schedule.task, schedule.args, ANY_RESULT, carried)


def declare(
    keys: AppKeys,
    service: str,
    digest: str,
    patience_ms: int,
    schedules: Iterable[tuple[str, bytes, int | None]],
    *,
    at: int | Literal["again"],
    total: int,
) -> Verb[Declared]:
    """Declare these (name, definition, next) as schedules of this service: a page that begins at `at`, of `total`.

    All executors of a version must declare the same schedules in the same order. With `again` as `at`, it declares once
    more some schedules that belonged to another service.
    """
    arrow = script("declare")
    args: list[Word] = [keys.prefix, service, digest, patience_ms, total, at]
    for name, definition, next_ms in schedules:
        args += (name, definition, _moment(next_ms))
    return Verb(arrow, arrow.of(keys), args, _declared)


def look(
    keys: AppKeys,
    service: str,
    version: str,
    *,
    again: bool,
    longest_ms: int,
    limit: int = 100,
    after: Position | None = None,
) -> Verb[Look]:
    """A page of the due schedules. `again`: this process has looked before. `longest_ms`: it will look again after at
    most this time. `after`: begin the page after this position."""
    arrow = script("look")
    args = [keys.prefix, service, version, int(again), longest_ms, limit, *(after or (0, ""))]
    return Verb(arrow, arrow.of(keys), args, _look)


def tick(keys: AppKeys, claim: Claim) -> Verb[bool]:
    """Claim the due ticks of a schedule, and write their jobs to the outbox. True for only one of several claimers."""
    arrow = script("tick")
    seen = claim.seen
    args: list[Word] = [
        keys.prefix,
        seen.name,
        seen.definition,
        seen.next_ms,
        seen.last_job,
        seen.queued,
        _moment(claim.next_ms),
        _moment(claim.last_run_ms),
        claim.skipped,
        "" if claim.queued is None else orjson.dumps(claim.queued),
        claim.last_error,
        _moment(claim.last_error_ms),
    ]
    for job in claim.jobs:
        args += (job.id, job.to_wire())
    return Verb(arrow, arrow.of(keys), args, bool)


def unqueue(
    keys: AppKeys,
    seen: Seen,
    rest: Sequence[int],
    run_ms: int,
    job: AnyWireJob,
    error: tuple[str, int | None] = ("", None),
) -> Verb[bool]:
    """Claim the first of the runs that wait behind an unfinished one. True for only one of several claimers. `error` is
    that of the run before, and its time."""
    arrow = script("unqueue")
    left = orjson.dumps(rest) if rest else b""
    args: list[Word] = [keys.prefix, seen.name, seen.definition, seen.last_job, seen.queued, left, run_ms]
    return Verb(arrow, arrow.of(keys), [*args, job.id, job.to_wire(), error[0], _moment(error[1])], bool)


def schedule(
    keys: AppKeys, what: Change, name: str, value: bytes | str = "", next_ms: int | None = None
) -> Verb[int]:
    """Change a schedule at run time. Returns 1 done, 0 unknown schedule, -1 only the code may do this. `value` is the
    new definition, or the id of the job that was sent by hand."""
    arrow = script("schedule")
    args: list[Word] = [keys.prefix, what, name, value, _moment(next_ms), PATIENCE_MS]
    return Verb(arrow, arrow.of(keys), args, int)


def names(keys: AppKeys, cursor: str = "0") -> Command[tuple[str, list[str]]]:
    """The cursor of the next page ("0" after the last), and a page of all schedules. A name may occur twice."""

    def read(reply: Any) -> tuple[str, list[str]]:
        return text(reply[0]), [text(name) for name in reply[1]]

    return Command(["SSCAN", keys["cron:names"], cursor, "COUNT", _NAMES], read)


def state(keys: AppKeys, name: str) -> Command[dict[str, bytes]]:
    """The state of a schedule; empty when it does not exist."""

    def read(reply: Any) -> dict[str, bytes]:
        return {text(reply[i]): reply[i + 1] for i in range(0, len(reply), 2)}

    return Command(["HGETALL", keys.schedule(name)], read)


def queued(keys: AppKeys, names: Sequence[str]) -> Command[Mapping[str, list[int]]]:
    """For each of these schedules, the ticks whose runs wait for the run before them."""

    def read(reply: Any) -> Mapping[str, list[int]]:
        return {name: runs_of(raw or b"") for name, raw in zip(names, reply, strict=True)}

    return Command(["HMGET", keys["cron:queued"], *names], read)


def denied(keys: AppKeys, service: str) -> Command[dict[str, str]]:
    """Schedule of this service → the source that owns it; empty when both declare the same schedule."""

    def read(reply: Any) -> dict[str, str]:
        return {text(reply[i]): text(reply[i + 1]) for i in range(0, len(reply), 2)}

    return Command(["HGETALL", keys.denied(service)], read)


def service_seen(keys: AppKeys, service: str) -> Command[int | None]:
    """The time of the last look by a worker of this service, by the server's clock; None when no look is known."""

    def read(reply: Any) -> int | None:
        return int(reply) if reply else None

    if not service:
        return Command(["HGET", keys["cron:meta"], "heard"], read)
    return Command(["HGET", keys["cron:sources"], f"seen:{service}"], read)


def runs_of(raw: bytes) -> list[int]:
    """The ticks whose runs wait, decoded."""
    return [int(due) for due in cast("list[int]", orjson.loads(raw))] if raw else []


def _declared(reply: Any) -> Declared:
    state, at, removed = reply
    return Declared(cast("Any", text(state)), int(at), [text(name) for name in removed])


def _look(reply: Any) -> Look:
    now, awake, version, wait, handing, queued, turn, due, waiting, denied, more, last, last_name = reply
    return Look(
        int(now),
        int(awake),
        text(version),
        int(wait),
        int(handing),
        int(queued),
        turn == 1,
        [_seen(row) for row in due],
        [_seen(row) for row in waiting],
        int(denied),
        more == 1,
        Position(text(last), last_name) if last else None,
    )


def _seen(row: Any) -> Seen:
    name, definition, next_ms, job, on_its_way, queued = row
    return Seen(text(name), definition, int(next_ms or 0), text(job), on_its_way == 1, queued)


def _moment(ms: int | None) -> str:
    return "" if ms is None else str(ms)
