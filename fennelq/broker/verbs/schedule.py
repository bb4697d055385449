"""Recurring jobs: who declares them, which are due, who claims a tick, and how its job gets to its queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import orjson

from fennelq.broker.keys import AppKeys
from fennelq.broker.scripts import script
from fennelq.broker.verb import Command, Verb, Word, text
from fennelq.model.codec import ANY_RESULT
from fennelq.model.job import AnyJob, Job
from fennelq.model.schedule import Schedule

HANDED_KEPT_MS = 24 * 3_600_000
"""How long the record of a handed job stays at least, so that a repeated hand-over finds it."""

Change = Literal["put", "pause", "resume", "remove"]


class Due(NamedTuple):
    """A schedule whose time has come."""

    name: str
    definition: bytes
    next_ms: int
    last_job: str
    last_job_on_its_way: bool


class Look(NamedTuple):
    """What there is to do about recurring jobs."""

    now_ms: int
    seen_ms: int
    """When anybody last looked."""
    wait_ms: int
    """Until the next schedule is due; -1 when none is."""
    handing: int
    """Jobs on their way to their queues."""
    queued: int
    """Schedules with runs that wait for the one before them."""
    due: list[Due]


class Claim(NamedTuple):
    """What a claimer decided about the due ticks of a schedule."""

    due: Due
    next_ms: int | None
    last_run_ms: int | None
    skipped: int
    queued: list[int] | None
    """The runs that now wait behind an unfinished one; None leaves them as they are."""
    last_error: str
    jobs: list[AnyJob]


def job_of(schedule: Schedule, key: str, at_ms: int = 0) -> AnyJob:
    """The job of a tick. Its key is the tick's, so it can be made any number of times and is one job."""
    return Job(
        queue=schedule.queue,
        key=key,
        task=schedule.task,
        args=schedule.args,
        returns=ANY_RESULT,
        options=schedule.options,
        priority=schedule.priority,
        at_ms=at_ms if schedule.jitter_ms else 0,
        keep_ms=HANDED_KEPT_MS,
    )


def declare(
    keys: AppKeys, digest: str, patience_ms: int, schedules: Iterable[tuple[str, bytes, int | None]]
) -> Verb[int]:
    """Make these (name, definition, next) the schedules of the code. Answers 0 when a later version of it holds."""
    arrow = script("declare")
    args: list[Word] = [keys.prefix, digest, patience_ms]
    for name, definition, next_ms in schedules:
        args += (name, definition, _moment(next_ms))
    return Verb(arrow, arrow.of(keys), args, int)


def look(keys: AppKeys, limit: int = 100) -> Verb[Look]:
    """What is due."""
    arrow = script("look")
    return Verb(arrow, arrow.of(keys), [keys.prefix, limit], _look)


def tick(keys: AppKeys, claim: Claim) -> Verb[bool]:
    """Claim the due ticks of a schedule, and write their jobs down to be handed over. True for one claimer only."""
    arrow = script("tick")
    args: list[Word] = [
        keys.prefix,
        claim.due.name,
        claim.due.definition,
        claim.due.next_ms,
        _moment(claim.next_ms),
        _moment(claim.last_run_ms),
        claim.skipped,
        "" if claim.queued is None else orjson.dumps(claim.queued),
        claim.last_error,
    ]
    for job in claim.jobs:
        args += (job.id, _job_to_wire(job))
    return Verb(arrow, arrow.of(keys), args, bool)


def unqueue(keys: AppKeys, name: str, queued: bytes, rest: list[int], run_ms: int, job: AnyJob) -> Verb[bool]:
    """Claim the first of the runs that wait behind an unfinished one. True for one claimer only."""
    arrow = script("unqueue")
    left = orjson.dumps(rest) if rest else ""
    args: list[Word] = [keys.prefix, name, queued, left, run_ms, job.id, _job_to_wire(job)]
    return Verb(arrow, arrow.of(keys), args, bool)


def change(
    keys: AppKeys, what: Change, name: str, definition: bytes = b"", next_ms: int | None = None
) -> Verb[int]:
    """What people do to a schedule: 1 done, 0 no such schedule, -1 it is the code's."""
    arrow = script("schedule")
    return Verb(arrow, arrow.of(keys), [keys.prefix, what, name, definition, _moment(next_ms)], int)


def names(keys: AppKeys) -> Command[list[str]]:
    """Every schedule."""
    return Command(["SMEMBERS", keys["cron:names"]], lambda reply: sorted(text(name) for name in reply))


def state(keys: AppKeys, name: str) -> Command[dict[str, bytes]]:
    """The state of a schedule; empty when there is none."""

    def read(reply: Any) -> dict[str, bytes]:
        return {text(reply[i]): reply[i + 1] for i in range(0, len(reply), 2)}

    return Command(["HGETALL", keys.schedule(name)], read)


def queued(keys: AppKeys) -> Command[Mapping[str, bytes]]:
    """Schedule → the runs that wait, as they were written."""

    def read(reply: Any) -> Mapping[str, bytes]:
        return {text(reply[i]): reply[i + 1] for i in range(0, len(reply), 2)}

    return Command(["HGETALL", keys["cron:queued"]], read)


def handing(keys: AppKeys) -> Command[list[AnyJob]]:
    """Some of the jobs that are on their way to their queues."""

    def read(reply: Any) -> list[AnyJob]:
        flat = reply[1]
        return [_job_from_wire(flat[i + 1]) for i in range(0, len(flat), 2)]

    return Command(["HSCAN", keys["out"], 0, "COUNT", 200], read)


def handed(keys: AppKeys, ids: Sequence[str]) -> Command[int]:
    """These jobs have arrived."""
    return Command(["HDEL", keys["out"], *ids], int)


def server_now() -> Command[int]:
    """The server's clock, in milliseconds."""
    return Command(["TIME"], lambda reply: int(reply[0]) * 1000 + int(reply[1]) // 1000)


def _look(reply: Any) -> Look:
    now, seen, wait, out, queued, due = reply
    return Look(
        int(now),
        int(seen),
        int(wait),
        int(out),
        int(queued),
        [
            Due(text(name), raw, int(moment), text(job), on_its_way == 1)
            for name, raw, moment, job, on_its_way in due
        ],
    )


def _moment(ms: int | None) -> str:
    return "" if ms is None else str(ms)


def _job_to_wire(job: AnyJob) -> bytes:
    said = {
        "queue": job.queue,
        "key": job.key,
        "task": job.task,
        "args": job.args.decode(),
        "options": job.options.decode(),
        "priority": job.priority,
        "at_ms": job.at_ms,
    }
    return orjson.dumps(said)


def _job_from_wire(raw: bytes) -> AnyJob:
    said = orjson.loads(raw)
    args, options = said.pop("args").encode(), said.pop("options").encode()
    return Job(**said, args=args, options=options, returns=ANY_RESULT, keep_ms=HANDED_KEPT_MS)
