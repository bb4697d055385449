"""Looking without touching: records, queue depths, the dead."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import orjson

from fennelq import clock
from fennelq.broker.keys import LANES, QUARANTINE, QueueKeys
from fennelq.broker.verb import Command, text
from fennelq.model.job import Event, JobInfo, Priority, Status
from fennelq.model.outcome import failure_from_wire

_STATUS = {
    "Q": Status.SENT,
    "L": Status.SCHEDULED,
    "X": Status.EXECUTING,
    "R": Status.RETRY,
    "S": Status.SUCCESS,
    "N": Status.SUCCESS,
    "D": Status.DEAD,
    "K": Status.CANCELLED,
}
_PRIORITY: dict[str, Priority] = {"s:high": "high", "s:low": "low"}
_OUTLINE = ("t", "s", "p", "m", "n", "w", "x", "U", "Y")


class DeadJob(NamedTuple):
    """An entry of the dead-letter queue."""

    queue: str
    entry: str
    key: str
    task: str
    error_type: str
    message: str
    reason: str

    @property
    def id(self) -> str:
        """The job's id."""
        return f"{self.queue}:{self.key}"

    @property
    def died_ms(self) -> int:
        """When, by the server's clock."""
        return int(self.entry.partition("-")[0])


class Waiting(NamedTuple):
    """An entry of a lane."""

    lane: str
    entry: str
    key: str


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
        return _STATUS.get(text(letter or b"Q"), Status.UNKNOWN)

    return Command(["HMGET", keys.record(key), "t", "s"], read)


def due(keys: QueueKeys, place: str, key: str) -> Command[int | None]:
    """When a scheduled job is due, in server milliseconds."""

    def read(reply: Any) -> int | None:
        return None if reply is None else int(float(reply))

    return Command(["ZSCORE", keys[place], key], read)


def length(keys: QueueKeys, name: str) -> Command[int]:
    """Entries of a lane, of the DLQ, or members of a sorted set."""
    return Command(["ZCARD" if name in ("sched", "retry") else "XLEN", keys[name]], int)


def stats(keys: QueueKeys) -> Command[dict[str, int]]:
    """The queue's counters."""

    def read(reply: Any) -> dict[str, int]:
        return {text(reply[i]): int(reply[i + 1]) for i in range(0, len(reply), 2)}

    return Command(["HGETALL", keys["stats"]], read)


def dead(keys: QueueKeys, after: str, limit: int, *, newest_first: bool = False) -> Command[list[DeadJob]]:
    """A page of the DLQ, starting behind the entry `after` ('' for the beginning)."""

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


def waiting(keys: QueueKeys, lane: str, after: str, limit: int) -> Command[list[Waiting]]:
    """A page of a lane, behind the entry `after`."""

    def read(reply: Any) -> list[Waiting]:
        return [Waiting(lane, text(entry), _fields(fields).get("i", "")) for entry, fields in reply]

    return Command(["XRANGE", keys[lane], f"({after}", "+", "COUNT", limit], read)


def lane_of(priority: Priority) -> str:
    """The lane of jobs of this priority."""
    return LANES[priority]


def lanes() -> tuple[str, ...]:
    """Every lane, in the order it is read."""
    return (*LANES.values(), QUARANTINE)


def _fields(flat: list[Any]) -> dict[str, str]:
    return {text(flat[i]): text(flat[i + 1]) for i in range(0, len(flat), 2)}


def _dead_job(queue: str, entry: str, flat: list[Any]) -> DeadJob:
    said = _fields(flat)
    return DeadJob(queue, entry, *(said.get(name, "") for name in "itemy"))


def _job_info(queue: str, key: str, reply: Any) -> JobInfo | None:
    raw = {text(reply[i]): cast("bytes", reply[i + 1]) for i in range(0, len(reply), 2)}
    if not raw:
        return None
    said = {name: text(value) for name, value in raw.items()}
    status = _STATUS.get(said.get("s", "Q"), Status.UNKNOWN)
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
