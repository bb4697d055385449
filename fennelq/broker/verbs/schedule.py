"""Recurring jobs: who declares them, which are due, who claims a tick, and how its job gets to its queue."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

import orjson

from fennelq.broker.keys import AppKeys
from fennelq.broker.scripts import script
from fennelq.broker.verb import Command, Verb, Word, text
from fennelq.model.codec import ANY_RESULT
from fennelq.model.job import AnyJob, Job
from fennelq.model.schedule import Schedule

HANDED_KEPT_MS = 24 * 3_600_000
"""How long the record of a handed job stays at least, so that a repeated hand-over finds it."""

_HANDED = ("priority", "at_ms", "expires_ms", "max_deliveries", "keep_ms")
_PAGE = 50

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


class Look(NamedTuple):
    """What there is to do about recurring jobs."""

    now_ms: int
    awake_ms: int
    """Since when somebody has been looking. Ticks up to then that nobody has claimed were missed."""
    version: str
    """Which version of the code declares; empty when none has."""
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
    jobs: list[AnyJob]


class Handing(NamedTuple):
    """A page of the jobs that are on their way."""

    cursor: str
    """Where the next page begins; "0" after the last."""
    jobs: list[AnyJob]
    unreadable: list[str]
    """Ids of those that only a later version can read."""


def job_of(schedule: Schedule, due_ms: int) -> AnyJob:
    """The job of a tick. Its key is the tick's, so it can be made any number of times and is one job."""
    starts_ms = schedule.put_off(due_ms)
    return Job(
        queue=schedule.queue,
        key=schedule.job_key(due_ms),
        task=schedule.task,
        args=schedule.args,
        returns=ANY_RESULT,
        options=schedule.options,
        priority=schedule.priority,
        at_ms=starts_ms if schedule.jitter_ms else 0,
        expires_ms=schedule.expires_ms and schedule.expires_ms + starts_ms - due_ms,
        max_deliveries=schedule.max_deliveries,
        keep_ms=HANDED_KEPT_MS,
    )


def job_by_hand(schedule: Schedule) -> AnyJob:
    """A job of the schedule that belongs to no tick."""
    key = f"cron.{schedule.name}.now.{os.urandom(8).hex()}"
    return job_of(schedule, 0)._replace(key=key, at_ms=0, expires_ms=schedule.expires_ms, keep_ms=0)


def declare(
    keys: AppKeys, digest: str, patience_ms: int, schedules: Iterable[tuple[str, bytes, int | None]]
) -> Verb[int]:
    """Make these (name, definition, next) the schedules of the code. Answers 0 when a later version of it holds."""
    arrow = script("declare")
    args: list[Word] = [keys.prefix, digest, patience_ms]
    for name, definition, next_ms in schedules:
        args += (name, definition, _moment(next_ms))
    return Verb(arrow, arrow.of(keys), args, int)


def look(keys: AppKeys, version: str, *, again: bool, longest_ms: int, limit: int = 100) -> Verb[Look]:
    """What is due. `again`: this process has looked before. `longest_ms`: it looks again after that at the latest."""
    arrow = script("look")
    return Verb(arrow, arrow.of(keys), [keys.prefix, version, int(again), longest_ms, limit], _look)


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
        args += (job.id, _job_to_wire(job))
    return Verb(arrow, arrow.of(keys), args, bool)


def unqueue(keys: AppKeys, seen: Seen, rest: Sequence[int], run_ms: int, job: AnyJob) -> Verb[bool]:
    """Claim the first of the runs that wait behind an unfinished one. True for one claimer only."""
    arrow = script("unqueue")
    left = orjson.dumps(rest) if rest else b""
    args: list[Word] = [keys.prefix, seen.name, seen.definition, seen.last_job, seen.queued, left, run_ms]
    return Verb(arrow, arrow.of(keys), [*args, job.id, _job_to_wire(job)], bool)


def schedule(
    keys: AppKeys, what: Change, name: str, value: bytes | str = "", next_ms: int | None = None
) -> Verb[int]:
    """What people do to a schedule: 1 done, 0 no such schedule, -1 it is the code's. `value` is its definition to be
    put, or the id of the job that was sent by hand."""
    arrow = script("schedule")
    return Verb(arrow, arrow.of(keys), [keys.prefix, what, name, value, _moment(next_ms)], int)


def names(keys: AppKeys) -> Command[list[str]]:
    """Every schedule."""

    def read(reply: Any) -> list[str]:
        return sorted(text(name) for name in reply)

    return Command(["SMEMBERS", keys["cron:names"]], read)


def state(keys: AppKeys, name: str) -> Command[dict[str, bytes]]:
    """The state of a schedule; empty when there is none."""

    def read(reply: Any) -> dict[str, bytes]:
        return {text(reply[i]): reply[i + 1] for i in range(0, len(reply), 2)}

    return Command(["HGETALL", keys.schedule(name)], read)


def queued(keys: AppKeys) -> Command[Mapping[str, list[int]]]:
    """Schedule → the ticks whose runs wait for the one before them."""

    def read(reply: Any) -> Mapping[str, list[int]]:
        return {text(reply[i]): runs_of(reply[i + 1]) for i in range(0, len(reply), 2)}

    return Command(["HGETALL", keys["cron:queued"]], read)


def runs_of(raw: bytes) -> list[int]:
    """The ticks whose runs wait, of what was written."""
    return [int(due) for due in cast("list[int]", orjson.loads(raw))] if raw else []


def handing(keys: AppKeys, cursor: str) -> Command[Handing]:
    """A page of the jobs that are on their way to their queues. Few at a time: they may be large."""
    return Command(["HSCAN", keys["out"], cursor, "COUNT", _PAGE], _handing)


def handed(keys: AppKeys, ids: Sequence[str]) -> Command[int]:
    """These jobs have arrived."""
    return Command(["HDEL", keys["out"], *ids], int)


def _look(reply: Any) -> Look:
    now, awake, version, wait, handing, queued, turn, due, waiting = reply
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
    )


def _seen(said: Any) -> Seen:
    name, definition, next_ms, job, on_its_way, queued = said
    return Seen(text(name), definition, int(next_ms or 0), text(job), on_its_way == 1, queued)


def _handing(reply: Any) -> Handing:
    cursor, flat = reply
    jobs: list[AnyJob] = []
    unreadable: list[str] = []
    for i in range(0, len(flat), 2):
        try:
            jobs.append(_job_from_wire(flat[i + 1]))
        except (ValueError, TypeError, KeyError, AttributeError):
            unreadable.append(text(flat[i]))
    return Handing(text(cursor), jobs, unreadable)


def _moment(ms: int | None) -> str:
    return "" if ms is None else str(ms)


def _job_to_wire(job: AnyJob) -> bytes:
    """A job that is to be handed over. What is as usual is left out: an older version can read it then."""
    said: dict[str, Any] = {"queue": job.queue, "key": job.key, "task": job.task, "args": job.args.decode()}
    usual = Job("", "", "", b"", ANY_RESULT)
    said |= {name: value for name in _HANDED if (value := getattr(job, name)) != getattr(usual, name)}
    return orjson.dumps(said | ({"options": job.options.decode()} if job.options else {}))


def _job_from_wire(raw: bytes) -> AnyJob:
    said = orjson.loads(raw)
    args, options = said.pop("args").encode(), said.pop("options", "").encode()
    return Job(**said, args=args, options=options, returns=ANY_RESULT)
