"""Makes the JSON objects of `--json`. Only this module defines the documented form of each kind of value."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import orjson

from fennelq import clock
from fennelq.manage.dead_letter import DeadLetter, ReplayReport
from fennelq.manage.executors import ExecutorInfo
from fennelq.manage.jobs import JobAnswer, JobEnd
from fennelq.manage.queues import QueueInfo
from fennelq.manage.schedules import ScheduleInfo
from fennelq.manage.server import ServerInfo
from fennelq.model.job import Event, JobInfo
from fennelq.model.progress import Progress

Document = dict[str, Any]
"""The members of a JSON object. It may contain bytes, datetimes and enums: `plain` turns them into texts."""

# Jobs


def of_job(job: JobInfo) -> Document:
    """A job."""
    document = asdict(job)
    document["error"] = job.error._asdict() if job.error else None
    document["arguments"] = of_call(job.arguments)
    return document


def of_progress(progress: Progress) -> Document:
    """How far a job has come."""
    return asdict(progress)


def words_of(progress: Progress) -> str:
    """How far a job has come: `3 of 10 (30 %), rows`."""
    percent = "" if progress.fraction is None else f" ({int(progress.fraction * 100)} %)"
    note = f", {progress.note}" if progress.note else ""
    return f"{counts_of(progress)}{percent}{note}"


def counts_of(progress: Progress) -> str:
    """`3 of 10`, or `3` when the total is unknown."""
    done, total = (None if number is None else _shown(number) for number in (progress.done, progress.total))
    return f"{done}" if total is None else f"{done} of {total}"


def _shown(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:.10g}"


def of_event(event: Event) -> Document:
    """A line of a job's history."""
    return {name: None if value is None else plain(value) for name, value in event._asdict().items()}


def of_end(end: JobEnd) -> Document:
    """How a job ended: with a result, or with an error."""
    how = {"result": end.result} if end.error is None else {"error": end.error}
    return {"id": end.id, "status": end.status, **how}


def of_answer(answer: JobAnswer) -> Document:
    """The answer to a request to cancel or retry a job."""
    return {"id": answer.id, "done": answer.done, "answer": answer.text}


def of_call(arguments: bytes) -> object:
    """The arguments of a call, `[[…],{…}]`; a text when they are not JSON, None when they were not kept."""
    if not arguments:
        return None
    try:
        return orjson.loads(arguments)
    except ValueError:
        return text_of(arguments)


def text_of(arguments: bytes) -> str:
    """The arguments of a call as the text that is stored."""
    return arguments.decode("utf-8", "backslashreplace")


# Dead jobs


def of_letter(letter: DeadLetter) -> Document:
    """A dead job, with all known facts about it."""
    names = ("id", "queue", "task", "error_type", "message", "reason", "died_at")
    document = {name: getattr(letter, name) for name in names}
    if letter.info is None:
        return document
    info = of_job(letter.info)
    more = ("enqueued_at", "started_at", "priority", "replays", "key", "headers", "arguments")
    return {
        **document,
        "tries": letter.tries,
        "traceback": letter.traceback,
        **{name: info[name] for name in more},
    }


def of_report(report: ReplayReport) -> Document:
    """The result of a replay."""
    return asdict(report)


# Queues, executors and the server


def of_queue(queue: QueueInfo) -> Document:
    """A queue, with its numbers of jobs by state."""
    return asdict(queue)


def of_executor(executor: ExecutorInfo) -> Document:
    """An executor: its state, and the facts it has reported."""
    return {"name": executor.name, "state": executor.state, **executor.facts}


def of_server(server: ServerInfo) -> Document:
    """A Redis server."""
    name, memory, limit, clients = server
    return {"server": name, "memory": memory, "memory_limit": limit, "clients": clients}


# Schedules


def of_schedule(info: ScheduleInfo, now: datetime) -> Document:
    """A schedule, its definition and its runs."""
    return {
        "name": info.name,
        "state": state_of(info),
        "source": "code" if info.declared else "runtime",
        "service": info.service,
        "service_seen": in_zone(info.service_seen, "UTC"),
        **_of_definition(info),
        **_of_runs(info, now),
    }


def state_of(info: ScheduleInfo) -> str:
    """Whether a schedule will run again."""
    if info.paused:
        return "paused"
    return "active" if info.next_run else "over"


def _of_definition(info: ScheduleInfo) -> Document:
    schedule = info.schedule
    return {
        "task": schedule.task,
        "queue": schedule.queue,
        "priority": schedule.priority,
        "arguments": of_call(schedule.args),
        "options": of_call(schedule.options),
        "expires": schedule.expires_ms / 1000 or None,
        "cron": schedule.cron,
        "every": schedule.every_ms / 1000 if schedule.every_ms else None,
        "tz": schedule.tz,
        "overlap": schedule.overlap,
        "catchup": schedule.catchup,
        "jitter": schedule.jitter_ms / 1000 or None,
        "start": in_zone(_moment(schedule.start_ms), schedule.tz),
        "end": in_zone(_moment(schedule.end_ms), schedule.tz),
    }


def _of_runs(info: ScheduleInfo, now: datetime) -> Document:
    zone = info.schedule.tz
    return {
        "next_run": in_zone(info.next_run, zone),
        "next_in": in_words(info.next_run, now) if info.next_run else None,
        "last_run": in_zone(info.last_run, zone),
        "last_ago": in_words(info.last_run, now) if info.last_run else None,
        "last_job": info.last_job,
        "last_status": info.last_status,
        "last_error": info.last_error,
        "last_error_at": in_zone(info.last_error_at, zone),
        "runs": info.run_count,
        "waiting": info.waiting,
        "skipped": info.skipped,
    }


def of_tick(tick: datetime, tz: str, now: datetime) -> Document:
    """A time at which a schedule is due."""
    return {"at": in_zone(tick, tz), "in": in_words(tick, now)}


# Moments and other texts


def in_words(when: datetime, now: datetime) -> str:
    """`in 4 min`, `2 h 5 min ago`, `in 3 days`."""
    seconds = (when - now).total_seconds()
    length = _length(int(abs(seconds)))
    if not length:
        return "now"
    return f"in {length}" if seconds > 0 else f"{length} ago"


def _length(seconds: int) -> str:
    if seconds < 60:
        return f"{seconds} s" if seconds else ""
    minutes = seconds // 60
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours // 24:,} days"


def in_zone(value: datetime | None, tz: str) -> str | None:
    """A moment in ISO 8601, in this time zone."""
    return value.astimezone(ZoneInfo(tz)).isoformat(timespec="milliseconds") if value else None


def _moment(ms: int) -> datetime | None:
    return clock.from_ms(ms) if ms else None


def plain(value: Any) -> Any:
    """A value that JSON cannot represent, as a text."""
    return text_of(value) if isinstance(value, bytes) else str(value)
