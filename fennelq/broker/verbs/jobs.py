"""A job: send, cancel, wait for, look at."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, cast

import orjson

from fennelq import clock
from fennelq.broker.keys import LANES, QueueKeys
from fennelq.broker.scripts import script
from fennelq.broker.verb import Command, Verb, Word, as_is, text
from fennelq.model.fields import STATUSES
from fennelq.model.job import AnyJob, Event, JobInfo, Priority, Status
from fennelq.model.lifetimes import Lifetimes
from fennelq.model.outcome import failure_from_wire


def enqueue(keys: QueueKeys, jobs: Sequence[AnyJob]) -> Verb[list[Any]]:
    """Create these jobs, each once. Answers per job; see the script."""
    arrow = script("enqueue")
    args: list[Word] = [keys.prefix]
    for job in jobs:
        args += (job.key, LANES[job.priority], _due(job), job.task, job.args, _extra(job))
    return Verb(arrow, arrow.of(keys), args, as_is)


def cancel(
    keys: QueueKeys, jobs: Sequence[str], lifetimes: Lifetimes, why: str = "cancelled"
) -> Verb[list[int]]:
    """End jobs that have not started: per job 1 cancelled, 0 too late, -1 unknown."""
    arrow = script("cancel")
    return Verb(arrow, arrow.of(keys), [keys.prefix, keys.queue, *lifetimes, why, *jobs], as_is)


def watch(
    keys: QueueKeys, channel: str, jobs: Sequence[str]
) -> Verb[list[tuple[str, str | None, bytes | None]]]:
    """The ends of these jobs, or a message on `channel` when they come: (code, task, envelope) per job.

    With an empty channel it only looks.
    """
    arrow = script("watch")
    return Verb(arrow, arrow.of(keys), [keys.prefix, channel, *jobs], _watched)


def _due(job: AnyJob) -> str:
    if job.at_ms:
        return f"@{job.at_ms}"
    return f"+{job.delay_ms}" if job.delay_ms else ""


def _extra(job: AnyJob) -> bytes:
    extra: dict[str, Any] = {}
    if job.options:
        extra["o"] = job.options.decode()
    if job.expires_ms:
        extra["x"] = job.expires_ms
    if job.idempotency:
        extra["k"], extra["w"] = job.idempotency, job.window_ms
    if job.nonce:
        extra["u"] = job.nonce
    if job.max_deliveries:
        extra["d"] = job.max_deliveries
    if job.keep_ms:
        extra["l"] = job.keep_ms
    return orjson.dumps(extra) if extra else b""


def _watched(reply: Any) -> list[tuple[str, str | None, bytes | None]]:
    return [(text(code), None if task is None else text(task), envelope) for code, task, envelope in reply]


_PRIORITY: dict[str, Priority] = {"s:high": "high", "s:low": "low"}

_OUTLINE = ("t", "s", "p", "m", "n", "w", "x", "U", "Y")


def record(keys: QueueKeys, key: str) -> Command[JobInfo | None]:
    """Everything the record says, or None."""

    def read(reply: Any) -> JobInfo | None:
        return _job_info(keys.queue, key, reply)

    return Command(["HGETALL", keys.record(key)], read)


def outline(keys: QueueKeys, key: str) -> Command[JobInfo | None]:
    """Where the job is in its life, without its arguments and what else may be long."""

    def read(reply: Any) -> JobInfo | None:
        there = [(name, value) for name, value in zip(_OUTLINE, reply, strict=True) if value is not None]
        return _job_info(keys.queue, key, [word for pair in there for word in pair])

    return Command(["HMGET", keys.record(key), *_OUTLINE], read)


def history(keys: QueueKeys, key: str) -> Command[list[Event]]:
    """The unusual things that happened to a job, the oldest first; the last fifty are kept."""

    def read(reply: Any) -> list[Event]:
        return [_event(line) for line in reply]

    return Command(["LRANGE", keys.history(key), 0, -1], read)


def status(keys: QueueKeys, key: str) -> Command[Status]:
    """Only the status: absent in a record means sent, absent with the record means unknown."""

    def read(reply: Any) -> Status:
        task, letter = reply
        if task is None and letter is None:
            return Status.UNKNOWN
        return STATUSES.get(text(letter or b"Q"), Status.UNKNOWN)

    return Command(["HMGET", keys.record(key), "t", "s"], read)


def due(keys: QueueKeys, place: str, key: str) -> Command[int | None]:
    """When a scheduled job is due, in server milliseconds."""

    def read(reply: Any) -> int | None:
        return None if reply is None else int(float(reply))

    return Command(["ZSCORE", keys[place], key], read)


def _job_info(queue: str, key: str, reply: Any) -> JobInfo | None:
    raw = {text(reply[i]): cast("bytes", reply[i + 1]) for i in range(0, len(reply), 2)}
    if not raw:
        return None
    said = {name: text(value) for name, value in raw.items()}
    status = STATUSES.get(said.get("s", "Q"), Status.UNKNOWN)
    failure = failure_from_wire(raw["x"])[0] if "x" in raw else None
    place = said.get("p")
    owner, started, starts = _run(said.get("w", ""))
    return JobInfo(
        id=f"{queue}:{key}",
        task=said.get("t", ""),
        queue=queue,
        status=status,
        priority=_PRIORITY.get(said.get("m") or said.get("p", "").partition("/")[0], "normal"),
        tries=int(said.get("n", 0)) + (1 if said.get("s") in ("X", "S", "N") else 0),
        deliveries=starts,
        place=None if status.ended and status is not Status.DEAD else place,
        owner=owner if status is Status.EXECUTING else None,
        reason=said.get("y"),
        waiting_because=None if status.ended or status is Status.EXECUTING else _too_old(said, starts),
        error=failure,
        enqueued_at=_moment(said, "c", clock.from_ms),
        started_at=clock.from_ms(started) if started else None,
        ended_at=_moment(said, "z", clock.from_ms),
        expires_at=_moment(said, "E", clock.from_ms),
        replays=int(said.get("R", 0)),
        key=said["k"][1:].partition(":")[2] if "k" in said else None,
        headers=_headers(raw.get("o", b"")),
        arguments=raw.get("a", b""),
    )


def _run(text: str) -> tuple[str | None, int, int]:
    """The latest start of a job: who runs it, since when, and how many starts there have been."""
    found = re.fullmatch(r"(.*) (\d+) (\d+)", text, re.ASCII)
    return (found[1], int(found[2]), int(found[3])) if found else (None, 0, 0)


def _too_old(said: dict[str, str], starts: int) -> str | None:
    """Why the workers that have taken the job could not run it; None when it has begun since."""
    after, _, why = said.get("Y", "").partition(" ")
    if not after or after != str(starts):
        return None
    since = _moment(said, "U", clock.from_ms)
    when = f" since {since:%Y-%m-%d %H:%M:%S} UTC" if since else ""
    return f"the workers that took it{when} could not run it (is their code older than the sender's?): {why}"


def _moment(said: dict[str, str], field: str, of: Callable[[int], Any]) -> Any:
    return of(int(said[field])) if said.get(field) else None


def _headers(options: bytes) -> dict[str, str]:
    try:
        return dict(orjson.loads(options).get("h", {})) if options else {}
    except (ValueError, AttributeError):
        return {}


def _event(line: bytes) -> Event:
    said = orjson.loads(line)
    begun = said.get("begun")
    return Event(
        at=clock.from_ms(int(said["at"])),
        what=said["what"],
        owner=said.get("owner"),
        begun=clock.from_ms(int(begun)) if begun else None,
        more=said.get("more"),
    )
