"""Recurring jobs: who declares them, which are due, who claims a tick, and how its job gets to its queue."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

import orjson

from fennelq.broker.keys import AppKeys, QueueKeys
from fennelq.broker.scripts import script
from fennelq.broker.verb import Command, Verb, Word, text
from fennelq.model.codec import ANY_RESULT
from fennelq.model.schedule import WireSchedule
from fennelq.model.wire import AnyWireJob, WireJob

HANDED_KEPT_MS = 24 * 3_600_000
"""How long the record of a handed job stays at least, so that a repeated hand-over finds it."""

PATIENCE_MS = 60_000
"""How long a version of a service, or a service, may be silent before another one takes over its schedules."""

MOST_DECLARED = 100
MOST_DECLARED_BYTES = 1 << 20
"""A declaration comes in pages of at most so many schedules and bytes, so that no call blocks the server for long."""

_PAGE = 50
_NAMES = 1000

Change = Literal["put", "pause", "resume", "remove", "run"]


class Seen(NamedTuple):
    """A schedule with something to do, as it was when somebody looked."""

    name: str
    definition: bytes
    next_ms: int
    """0 when there is none."""
    last_job: str
    last_job_on_its_way: bool
    queued: bytes
    """The runs that wait for the last job to end, as they were written."""


class Position(NamedTuple):
    """Of a due schedule among the others."""

    due: str
    """Its time, as Redis wrote it."""
    name: bytes


class Declared(NamedTuple):
    """How far the declaration of a service has come."""

    state: Literal["held", "open", "done"]
    """`held`: a later version holds, nothing was written. `open`: there is more to declare, or to remove."""
    at: int
    """Where the next page begins."""
    removed: list[str]
    """Schedules of this service that its code declares no more."""


class Look(NamedTuple):
    """What there is to do about recurring jobs."""

    now_ms: int
    awake_ms: int
    """Since when somebody has been looking. Ticks up to then that nobody has claimed were missed."""
    version: str
    """Which version of this service's code holds; empty when none does, or this one has something to declare."""
    wait_ms: int
    """Until the next schedule is due; -1 when none is."""
    handing: int
    """Jobs on their way to their queues."""
    queued: int
    """Schedules with runs that wait for the one before them."""
    turn: bool
    """Whether it is this process's turn to look after those two."""
    due: list[Seen]
    waiting: list[Seen]
    """Some of the schedules with runs that wait, when it is this process's turn."""
    denied: int = 0
    """Schedules of this service whose names belong to another one."""
    more: bool = False
    """Whether more are due, after this page."""
    last: Position | None = None
    """The last one on this page."""


class Claim(NamedTuple):
    """What a claimer decided about the due ticks of a schedule."""

    seen: Seen
    next_ms: int | None
    last_run_ms: int | None
    skipped: int
    queued: list[int] | None
    """The runs that now wait behind an unfinished one; None leaves them as they are."""
    last_error: str
    last_error_ms: int | None
    jobs: list[AnyWireJob]


class Handing(NamedTuple):
    """A page of the jobs that are on their way."""

    cursor: str
    """Where the next page begins; "0" after the last."""
    jobs: list[AnyWireJob]
    unreadable: list[str]
    """Ids of those that only a later version can read."""


def job_of(schedule: WireSchedule, due_ms: int) -> AnyWireJob:
    """The job of a tick. Its key is the tick's, so it can be made any number of times and is one job."""
    starts_ms = schedule.put_off(due_ms)
    return _job(
        schedule,
        schedule.job_key(due_ms),
        at_ms=starts_ms if schedule.jitter_ms else 0,
        expires_ms=schedule.expires_ms and schedule.expires_ms + starts_ms - due_ms,
        keep_ms=HANDED_KEPT_MS,
    )


def job_by_hand(schedule: WireSchedule) -> AnyWireJob:
    """A job of the schedule that belongs to no tick."""
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
    """Make these (name, definition, next) schedules of this service: a page of `total`, which begins `at`.

    All executors of a version must declare the same schedules in the same order. `again` declares some that another
    service has kept from this one.
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
    """What is due, a page. `again`: this process has looked before. `longest_ms`: it looks again after that at the
    latest. `after`: leave out what comes up to there."""
    arrow = script("look")
    args = [keys.prefix, service, version, int(again), longest_ms, limit, *(after or ("", ""))]
    return Verb(arrow, arrow.of(keys), args, _look)


def tick(keys: AppKeys, claim: Claim) -> Verb[bool]:
    """Claim the due ticks of a schedule, and write their jobs down to be handed over. True for one claimer only."""
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


def unqueue(keys: AppKeys, seen: Seen, rest: Sequence[int], run_ms: int, job: AnyWireJob) -> Verb[bool]:
    """Claim the first of the runs that wait behind an unfinished one. True for one claimer only."""
    arrow = script("unqueue")
    left = orjson.dumps(rest) if rest else b""
    args: list[Word] = [keys.prefix, seen.name, seen.definition, seen.last_job, seen.queued, left, run_ms]
    return Verb(arrow, arrow.of(keys), [*args, job.id, job.to_wire()], bool)


def schedule(
    keys: AppKeys, what: Change, name: str, value: bytes | str = "", next_ms: int | None = None
) -> Verb[int]:
    """What people do to a schedule: 1 done, 0 no such schedule, -1 it is the code's. `value` is its definition to be
    put, or the id of the job that was sent by hand."""
    arrow = script("schedule")
    args: list[Word] = [keys.prefix, what, name, value, _moment(next_ms), PATIENCE_MS]
    return Verb(arrow, arrow.of(keys), args, int)


def names(keys: AppKeys, cursor: str = "0") -> Command[tuple[str, list[str]]]:
    """A page of all schedules, and where the next begins: "0" after the last. A name may come twice."""

    def read(reply: Any) -> tuple[str, list[str]]:
        return text(reply[0]), [text(name) for name in reply[1]]

    return Command(["SSCAN", keys["cron:names"], cursor, "COUNT", _NAMES], read)


def state(keys: AppKeys, name: str) -> Command[dict[str, bytes]]:
    """The state of a schedule; empty when there is none."""

    def read(reply: Any) -> dict[str, bytes]:
        return {text(reply[i]): reply[i + 1] for i in range(0, len(reply), 2)}

    return Command(["HGETALL", keys.schedule(name)], read)


def queued(keys: AppKeys, names: Sequence[str]) -> Command[Mapping[str, list[int]]]:
    """Of these schedules, the ticks whose runs wait for the one before them."""

    def read(reply: Any) -> Mapping[str, list[int]]:
        return {name: runs_of(raw or b"") for name, raw in zip(names, reply, strict=True)}

    return Command(["HMGET", keys["cron:queued"], *names], read)


def denied(keys: AppKeys, service: str) -> Command[dict[str, str]]:
    """Schedule of this service → the source it belongs to; empty when both declare the same."""

    def read(reply: Any) -> dict[str, str]:
        return {text(reply[i]): text(reply[i + 1]) for i in range(0, len(reply), 2)}

    return Command(["HGETALL", keys.denied(service)], read)


def service_seen(keys: AppKeys, service: str) -> Command[int | None]:
    """When a worker of this service has looked last, by the server's clock. None: never, as far as is known."""

    def read(reply: Any) -> int | None:
        return int(reply) if reply else None

    if not service:
        return Command(["HGET", keys["cron:meta"], "heard"], read)
    return Command(["HGET", keys["cron:sources"], f"seen:{service}"], read)


def runs_of(raw: bytes) -> list[int]:
    """The ticks whose runs wait, of what was written."""
    return [int(due) for due in cast("list[int]", orjson.loads(raw))] if raw else []


def handing(keys: AppKeys | QueueKeys, cursor: str) -> Command[Handing]:
    """A page of the jobs in the outbox of the app or of a queue. Few at a time: they may be large."""
    return Command(["HSCAN", keys["out"], cursor, "COUNT", _PAGE], _handing)


def handed(keys: AppKeys | QueueKeys, ids: Sequence[str]) -> Command[int]:
    """These jobs have arrived: remove them from this outbox."""
    return Command(["HDEL", keys["out"], *ids], int)


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
        [_seen(said) for said in due],
        [_seen(said) for said in waiting],
        int(denied),
        more == 1,
        Position(text(last), last_name) if last else None,
    )


def _seen(said: Any) -> Seen:
    name, definition, next_ms, job, on_its_way, queued = said
    return Seen(text(name), definition, int(next_ms or 0), text(job), on_its_way == 1, queued)


def _handing(reply: Any) -> Handing:
    cursor, flat = reply
    jobs: list[AnyWireJob] = []
    unreadable: list[str] = []
    for i in range(0, len(flat), 2):
        if b"/" in flat[i]:
            # Not a job: something else in the outbox, which another part carries.
            continue
        try:
            jobs.append(AnyWireJob.from_wire(flat[i + 1]))
        except ValueError:
            unreadable.append(text(flat[i]))
    return Handing(text(cursor), jobs, unreadable)


def _moment(ms: int | None) -> str:
    return "" if ms is None else str(ms)
