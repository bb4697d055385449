"""Verbs for jobs: send, cancel, wait, inspect."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args

import orjson

from fennelq import clock
from fennelq.broker.keys import LANES, NORMAL, QUARANTINE, QueueKeys
from fennelq.broker.scripts import script
from fennelq.broker.verb import Command, Verb, Word, as_is, text
from fennelq.model.dedupe import mode_of
from fennelq.model.fields import LETTERS, NAMES, SENT, SHOWN, STATUSES
from fennelq.model.job import Event, JobInfo, Priority, Status
from fennelq.model.lifetimes import Lifetimes
from fennelq.model.options import OPTIONS, moment
from fennelq.model.outcome import failure_from_wire
from fennelq.model.progress import Reported, from_wire
from fennelq.model.runs import Copy, Traces
from fennelq.model.wire import AnyWireJob, key_task_args_carried

if TYPE_CHECKING:
    from fennelq.model.query import State

CANCELLED: Final = 1
ASKED: Final = 2
"""The job is running, and its executor was asked to stop it."""
TOO_LATE: Final = 0
"""The job has ended."""
UNKNOWN: Final = -1
PASSED: Final = -2
"""The job is not, or no longer, one that the operation asks for."""


def enqueue(keys: QueueKeys, jobs: Sequence[AnyWireJob], most: int | None = None) -> Verb[list[Any]]:
    """Create these jobs, each once; with `most`, only as long as fewer jobs than that wait. Returns an answer per job:
    see the script."""
    arrow = script("enqueue")
    args: list[Word] = [keys.prefix, "" if most is None else most]
    return Verb(arrow, arrow.of(keys), _add_jobs(args, jobs), as_is)


def displace(keys: QueueKeys, jobs: Sequence[AnyWireJob], most: int, lifetimes: Lifetimes) -> Verb[list[Any]]:
    """Create these jobs, each once. For each job that is more than `most`, the oldest one that waits is dropped."""
    arrow = script("displace")
    args: list[Word] = [keys.prefix, most, keys.queue, *lifetimes]
    return Verb(arrow, arrow.of(keys), _add_jobs(args, jobs), as_is)


def _add_jobs(args: list[Word], jobs: Sequence[AnyWireJob]) -> list[Word]:
    for job in jobs:
        key, task, encoded, carried = key_task_args_carried(job)
        if carried:
            fields = _fields(carried)
            lane, due = LANES[job.priority], _due(carried)
            args += (key, lane, due, task, encoded, len(fields) or "", *fields)
        else:
            args += (key, NORMAL, "", task, encoded, "")
    return args


class Chosen(NamedTuple):
    """The jobs on which an operation may act, checked in the step that acts."""

    states: Collection[State] = ()
    """They must be in one of these; without any, every job is chosen."""
    sent_until_ms: int | None = None
    """They must have been sent until then."""

    def words(self) -> tuple[Word, Word]:
        """The same for a script."""
        states = f" {' '.join(sorted(self.states))} " if self.states else ""
        return states, "" if self.sent_until_ms is None else self.sent_until_ms


EVERY_JOB: Final = Chosen()


def cancel(
    keys: QueueKeys,
    jobs: Sequence[str],
    lifetimes: Lifetimes,
    why: str = "cancelled",
    chosen: Chosen = EVERY_JOB,
) -> Verb[list[int]]:
    """End jobs that are not running, and ask running ones to stop: per job CANCELLED, ASKED, TOO_LATE, UNKNOWN or
    PASSED."""
    arrow = script("cancel")
    args: list[Word] = [keys.prefix, keys.queue, *lifetimes, why, *chosen.words(), *jobs]
    return Verb(arrow, arrow.of(keys), args, as_is)


def run_now(keys: QueueKeys, jobs: Sequence[str], chosen: Chosen = EVERY_JOB) -> Verb[list[int]]:
    """Move jobs that are due later to their lanes: per job 1, 0 when it does not wait for a time, or UNKNOWN."""
    arrow = script("run_now")
    return Verb(arrow, arrow.of(keys), [keys.prefix, *chosen.words(), *jobs], as_is)


def watch(
    keys: QueueKeys, channel: str, jobs: Sequence[str], lifetimes: Lifetimes, *, follows: bool = False
) -> Verb[list[tuple[str, str | None, bytes | None]]]:
    """The ends of these jobs, or later a message on `channel` for each: (code, task, envelope) per job.

    With an empty channel it registers nothing. A job that has expired and has not begun is cancelled. With `follows`,
    each job that goes on comes with its progress in place of an envelope, and further progress is published on the
    channel as well.
    """
    arrow = script("watch")
    args: list[Word] = [keys.prefix, keys.queue, *lifetimes, channel, "1" if follows else "", *jobs]
    return Verb(arrow, arrow.of(keys), args, _watched)


def progress(keys: QueueKeys, key: str) -> Command[Reported | None]:
    """The latest progress of the job; None when its task has reported none."""
    return Command(["HGET", keys.record(key), LETTERS["progress"]], from_wire)


def _due(carried: Mapping[str, Any]) -> str:
    if "at_ms" in carried:
        return f"@{carried['at_ms']}"
    delay = carried.get("delay_ms") or carried.get("wait_ms")
    return f"+{delay}" if delay else ""


def _fields(carried: Mapping[str, Any]) -> list[Word]:
    """The letters and values of the fields that the job carries."""
    fields: list[Word] = []
    for name, value in carried.items():
        if name in SENT:
            fields += (SENT[name], value)
    return fields


def _watched(reply: Any) -> list[tuple[str, str | None, bytes | None]]:
    return [(text(code), None if task is None else text(task), envelope) for code, task, envelope in reply]


_PRIORITIES: Final[Mapping[str, Priority]] = {LANES[priority]: priority for priority in get_args(Priority)}
_STATUS: Final = tuple(LETTERS[name] for name in ("task", "status"))
_TRACES: Final = tuple(LETTERS[name] for name in ("run", "place", "stopping", "twin"))
_OUTLINE: Final = tuple(
    LETTERS[name]
    for name in (
        "task",
        "status",
        "place",
        "lane",
        "tries",
        "run",
        "failure",
        "too_old_since",
        "too_old_because",
        "stopping",
    )
)


def record(keys: QueueKeys, key: str) -> Command[JobInfo | None]:
    """All fields of the record; None when the job has no record."""

    def read(reply: Any) -> JobInfo | None:
        return _job_info(keys.queue, key, reply)

    return Command(["HGETALL", keys.record(key)], read)


def outline(keys: QueueKeys, key: str) -> Command[JobInfo | None]:
    """The status and the place of the job, without its arguments and other long fields."""

    def read(reply: Any) -> JobInfo | None:
        there = [(name, value) for name, value in zip(_OUTLINE, reply, strict=True) if value is not None]
        return _job_info(keys.queue, key, [word for pair in there for word in pair])

    return Command(["HMGET", keys.record(key), *_OUTLINE], read)


def history(keys: QueueKeys, key: str) -> Command[list[Event]]:
    """The events that made a job run more than once, the oldest first; the last fifty are kept."""

    def read(reply: Any) -> list[Event]:
        return [_event(line) for line in reply]

    return Command(["LRANGE", keys.history(key), 0, -1], read)


def traces(keys: QueueKeys, key: str) -> Command[Traces]:
    """What the record shows of the runs of the job, beyond the attributes of JobInfo."""

    def read(reply: Any) -> Traces:
        run, place, stopping, twin = ("" if value is None else text(value) for value in reply)
        return Traces(_run(run)[0], place.startswith(f"{QUARANTINE}/"), bool(stopping), _copy(twin))

    return Command(["HMGET", keys.record(key), *_TRACES], read)


def status(keys: QueueKeys, key: str) -> Command[Status]:
    """Only the status. A record without a status means sent; no record means unknown."""

    def read(reply: Any) -> Status:
        task, letter = reply
        if task is None and letter is None:
            return Status.UNKNOWN
        return Status.SENT if letter is None else STATUSES.get(text(letter), Status.UNKNOWN)

    return Command(["HMGET", keys.record(key), *_STATUS], read)


def nonce(keys: QueueKeys, key: str) -> Command[str]:
    """The nonce of the call that has created a job with a client-given id; empty without one."""

    def read(reply: Any) -> str:
        return text(reply or b"")

    return Command(["HGET", keys.record(key), LETTERS["nonce"]], read)


class Outline(NamedTuple):
    """The facts about a job by which it can be chosen."""

    task: str
    status: Status
    created_ms: int


def in_outline(keys: QueueKeys, key: str) -> Command[Outline | None]:
    """The facts by which a job can be chosen; None when it has no record."""

    def read(reply: Any) -> Outline | None:
        task, letter, created = reply
        if task is None and letter is None:
            return None
        status = Status.SENT if letter is None else STATUSES.get(text(letter), Status.UNKNOWN)
        return Outline(text(task or ""), status, int(created or 0))

    return Command(["HMGET", keys.record(key), *_STATUS, LETTERS["created"]], read)


def due(keys: QueueKeys, place: str, key: str) -> Command[int | None]:
    """The time at which a scheduled job is due, in milliseconds of the server's clock."""

    def read(reply: Any) -> int | None:
        return None if reply is None else int(float(reply))

    return Command(["ZSCORE", keys[place], key], read)


def _job_info(queue: str, key: str, reply: Any) -> JobInfo | None:
    raw = _by_name(reply)
    if not raw:
        return None
    record = {name: text(value) for name, value in raw.items()}
    status = STATUSES.get(record["status"], Status.UNKNOWN) if "status" in record else Status.SENT
    place = record.get("place", "")
    owner, started, starts = _run(record.get("run", ""))
    facts: dict[str, Any] = {
        "task": "",
        "priority": _PRIORITIES.get(record.get("lane") or place.partition("/")[0], "normal"),
        "tries": int(record.get("tries", 0)) + (1 if status in (Status.EXECUTING, Status.SUCCESS) else 0),
        "deliveries": starts,
        "place": None if status.ended and status is not Status.DEAD else record.get("place"),
        "owner": owner if status is Status.EXECUTING else None,
        "waiting_because": (None if status.ended or status is Status.EXECUTING else _too_old(record, starts)),
        "stopping": None if status.ended else record.get("stopping"),
        "error": failure_from_wire(raw["failure"])[0] if "failure" in raw else None,
        "started_at": clock.from_ms(started) if started else None,
        **_deduplication(record),
        "headers": _headers(raw.get("options", b"")),
        "arguments": raw.get("arguments", b""),
    }
    facts |= {field.shown: field.read(record[field.name]) for field in SHOWN if field.name in record}
    return JobInfo(id=f"{queue}:{key}", queue=queue, status=status, **facts)


def _deduplication(record: Mapping[str, str]) -> dict[str, Any]:
    if "idempotency" not in record:
        return {}
    held, name = record["idempotency"][:1], record["idempotency"][1:]
    # The name of a task contains a colon itself. A record without its task is damaged: then the name is a guess.
    task = record.get("task", "")
    key = name.removeprefix(f"{task}:") if task and name.startswith(f"{task}:") else name.partition(":")[2]
    return {"key": key, "dedupe": mode_of(held, debounced="due_by" in record)}


def _by_name(flat: Any) -> dict[str, bytes]:
    """The fields of a record by their names; a field that only a later version knows, by its letter."""
    letters = (text(letter) for letter in flat[::2])
    return {NAMES.get(letter, letter): value for letter, value in zip(letters, flat[1::2], strict=True)}


def _run(text: str) -> tuple[str | None, int, int]:
    """The latest start of a job: its executor, its time, and the number of starts so far."""
    found = re.fullmatch(r"(.*) (\d+) (\d+)", text, re.ASCII)
    return (found[1], int(found[2]), int(found[3])) if found else (None, 0, 0)


def _copy(twin: str) -> Copy | None:
    """The second copy of a job, as `lib/twins.lua` writes it."""
    if not twin or twin == "-":
        return None
    found = re.fullmatch(r"\S+ (.*) (\d+)", twin, re.ASCII)
    return Copy(found[1], clock.from_ms(int(found[2]))) if found else Copy(None, None)


def _too_old(record: Mapping[str, str], starts: int) -> str | None:
    """Why the workers that have taken the job could not run it; None when it has started again since then."""
    after, _, why = record.get("too_old_because", "").partition(" ")
    if not after or after != str(starts):
        return None
    since = moment(record.get("too_old_since", ""))
    when = f" since {since:%Y-%m-%d %H:%M:%S} UTC" if since else ""
    return f"the workers that took it{when} could not run it (is their code older than the sender's?): {why}"


def _headers(options: bytes) -> dict[str, str]:
    try:
        return dict(orjson.loads(options).get(OPTIONS["headers"].letter, {})) if options else {}
    except (ValueError, AttributeError):
        return {}


def _event(line: bytes) -> Event:
    fields = orjson.loads(line)
    begun = fields.get("begun")
    return Event(
        at=clock.from_ms(int(fields["at"])),
        what=fields["what"],
        owner=fields.get("owner"),
        begun=clock.from_ms(int(begun)) if begun else None,
        more=fields.get("more"),
    )
