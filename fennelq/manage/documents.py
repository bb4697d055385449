"""Makes the JSON objects of `--json`. Only this module defines the documented form of each kind of value."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from fennelq import clock
from fennelq.manage.words_of_time import in_words, in_zone
from fennelq.model.secrets import REDACTED
from fennelq.model.times import Times, rounded
from fennelq.redaction import UNKNOWN, WITH_SECRETS, Redaction, is_array, is_object

if TYPE_CHECKING:
    # Every command imports this module, and shows one or two of these values.
    from fennelq.manage.attention import Need
    from fennelq.manage.audit_entry import AuditEntry
    from fennelq.manage.dead.importing import ImportReport
    from fennelq.manage.dead.letter import DeadLetter, Group, ReplayReport
    from fennelq.manage.dead.plan import ReplayPlan
    from fennelq.manage.executors.info import ExecutorInfo, ExecutorStacks
    from fennelq.manage.executors.profile import ExecutorProfile
    from fennelq.manage.jobs import JobAnswer, JobEnd
    from fennelq.manage.limits import LimitInfo
    from fennelq.manage.operation_record import OperationInfo
    from fennelq.manage.operations import OperationPlan
    from fennelq.manage.queues.info import QueueInfo
    from fennelq.manage.running import RunningJob
    from fennelq.manage.schedules import ScheduleInfo
    from fennelq.manage.server import ServerInfo
    from fennelq.manage.times import TaskTimes
    from fennelq.manage.watch import Snapshot
    from fennelq.model.happened import StoryLine
    from fennelq.model.job import Event, JobInfo
    from fennelq.model.pause import QueuePause
    from fennelq.model.progress import Progress
    from fennelq.model.story import Story

_LARGEST = 1 << 1023
_MOST_LINES = 10
"""Lines of a task in a profile."""
Document = dict[str, Any]
"""The members of a JSON object. It may contain bytes, datetimes and enums: `plain` turns them into texts."""

# Jobs


def of_job(job: JobInfo, redaction: Redaction = UNKNOWN) -> Document:
    """A job, without its secrets. `redaction` is that of the app: it knows the names of positional arguments."""
    document = asdict(job)
    document["error"] = job.error._asdict() if job.error else None
    document["arguments"] = _of_call(redaction.call(job.task, job.arguments))
    document["headers"] = redaction.headers(job.headers)
    return document


def of_exported(app: str, job: JobInfo, redaction: Redaction = UNKNOWN) -> Document:
    """A line of an export of jobs. Later versions add members; one that changes their meaning has another `v`."""
    document = of_job(job, redaction)
    return {"v": 1, "app": app, **document, "redacted": _is_redacted(job, document)}


def of_plan(plan: OperationPlan, redaction: Redaction = UNKNOWN) -> Document:
    """What an operation on many jobs would do, without the secrets of these jobs."""
    where = redaction.filter(plan.where)
    document = {"count": plan.total, "act": plan.act, "where": where, "until": plan.until}
    return {**document, "samples": [of_job(job, redaction) for job in plan.samples]}


def of_bulk(operation: OperationInfo, redaction: Redaction = UNKNOWN) -> Document:
    """An operation on many jobs. The header of a filter may be secret."""
    return {**asdict(operation), "where": redaction.filter(operation.where)}


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


def of_story(story: Story) -> Document:
    """The story of a job."""
    runs = [run._asdict() | {"seconds": run.seconds} for run in story.runs]
    return {"sentence": story.sentence, "runs": runs, "lines": list(map(of_line, story.lines))}


def of_line(line: StoryLine) -> Document:
    """Something that happened to a job."""
    return line._asdict()


def of_end(end: JobEnd) -> Document:
    """How a job ended: with a result, or with an error."""
    how = {"result": end.result} if end.error is None else {"error": end.error}
    return {"id": end.id, "status": end.status, **how}


def of_answer(answer: JobAnswer) -> Document:
    """The answer to a request to cancel or retry a job."""
    return {"id": answer.id, "done": answer.done, "answer": answer.text}


def text_of_call(call: object) -> str:
    """The arguments of a call as JSON on one line; empty when they were not kept."""
    from pydantic_core import to_json

    if call is None:
        return ""
    try:
        return to_json(call).decode()
    except ValueError:
        return REDACTED


def _of_call(value: Any) -> Any:
    """The arguments of a call. An integer of more than 64 bits becomes a float, because most readers of JSON have no
    other number for it."""
    if isinstance(value, int):
        return (
            value if -(1 << 63) <= value < 1 << 64 else float(value) if abs(value) < _LARGEST else str(value)
        )
    if is_array(value):
        return [_of_call(one) for one in value]
    if is_object(value):
        return {name: _of_call(one) for name, one in value.items()}
    return value


# Dead jobs


def of_letter(letter: DeadLetter, redaction: Redaction = UNKNOWN) -> Document:
    """A dead job, with all known facts about it, but without its secrets."""
    names = ("id", "queue", "task", "error_type", "message", "reason", "died_at", "fingerprint")
    document = {name: getattr(letter, name) for name in names}
    if letter.info is None:
        return document
    info = of_job(letter.info, redaction)
    more = ("enqueued_at", "started_at", "priority", "replays", "key", "headers", "arguments")
    return {
        **document,
        "tries": letter.tries,
        "traceback": letter.traceback,
        **{name: info[name] for name in more},
        "redacted": _is_redacted(letter.info, info),
    }


def _is_redacted(job: JobInfo, document: Document) -> bool:
    """Whether the document hides a part of the job: then no job can be made of it again."""
    shown = (document["arguments"], document["headers"])
    return shown != (_of_call(WITH_SECRETS.call(job.task, job.arguments)), dict(job.headers))


def of_group(group: Group) -> Document:
    """Dead jobs of one cause."""
    return asdict(group)


def of_report(report: ReplayReport) -> Document:
    """The result of a replay."""
    return asdict(report)


def of_replay_plan(plan: ReplayPlan, redaction: Redaction = UNKNOWN) -> Document:
    """What a replay would do."""
    names = (
        "count",
        "ready",
        "key_taken",
        "broken",
        "skipped",
        "unchecked",
        "refused",
        "problem",
        "newest",
        "made_at",
    )
    samples = [
        of_letter(letter, redaction) | of_rewritten(plan, letter, redaction) for letter in plan.samples
    ]
    return {name: getattr(plan, name) for name in names} | {"samples": samples}


def of_rewritten(plan: ReplayPlan, letter: DeadLetter, redaction: Redaction = UNKNOWN) -> Document:
    """The old and the new arguments of a sample by name, without secrets; empty when they stay as they are."""
    if letter.id not in plan.rewritten:
        return {}
    old, new = (_of_call(redaction.named(letter.task, one)) for one in plan.rewritten[letter.id])
    return {"old_arguments": old, "new_arguments": new}


def of_import(report: ImportReport) -> Document:
    """The result of an import."""
    return asdict(report)


# Queues, executors and the server


def of_queue(queue: QueueInfo) -> Document:
    """A queue, with its numbers of jobs by state."""
    return asdict(queue)


def of_snapshot(snapshot: Snapshot) -> Document:
    """The queues at one moment, and the rates of their counters."""
    queues = [{**of_queue(info), "rates": snapshot.rates.get(name)} for name, info in snapshot.queues.items()]
    return {"at": snapshot.at, "interval": round(snapshot.interval, 3), "queues": queues}


def of_need(need: Need) -> Document:
    """Something that needs attention."""
    return {**asdict(need), "urgency": need.urgency.name.lower()}


def of_running(job: RunningJob) -> Document:
    """A job that runs."""
    return asdict(job)


def of_pause(queue: str, pause: QueuePause | None) -> Document:
    """What is paused in a queue."""
    return {"queue": queue, "paused": None if pause is None else asdict(pause)}


def of_executor(executor: ExecutorInfo) -> Document:
    """An executor: its state, and the facts it has reported."""
    return {"name": executor.name, "state": executor.state, **executor.facts}


def of_stacks(stacks: ExecutorStacks) -> Document:
    """The stacks of an executor."""
    return {
        **stacks._asdict(),
        "blocked": stacks.blocked and stacks.blocked._asdict(),
        "stacks": [stack._asdict() for stack in stacks.stacks],
    }


def of_profile(profile: ExecutorProfile) -> Document:
    """The profile of an executor: what each task costs, and its most expensive lines."""
    facts = {name: value for name, value in profile._asdict().items() if name != "stacks"}
    return {
        **facts,
        "total": profile.total,
        "tasks": [
            {
                "task": task.task,
                "value": task.value,
                "share": round(task.share, 4),
                "lines": [{**call._asdict(), "value": value} for call, value in task.lines[:_MOST_LINES]],
            }
            for task in profile.tasks
        ],
    }


def of_task_times(times: TaskTimes) -> Document:
    """The run and wait times of a task, in seconds, and how its runs have ended."""
    return {
        "task": times.task,
        "run": _of_times(times.run),
        "wait": _of_times(times.wait),
        "ended": dict(times.ended),
    }


def _of_times(times: Times) -> Document:
    return {"count": times.count, "p50": rounded(times.p50), "p95": rounded(times.p95)}


def of_server(server: ServerInfo) -> Document:
    """A Redis server."""
    name, memory, limit, clients = server
    return {"server": name, "memory": memory, "memory_limit": limit, "clients": clients}


# Limits


def of_limit(limit: LimitInfo) -> Document:
    """A limit: its numbers, and the jobs that wait for it."""
    return asdict(limit)


# Operations


def of_operation(entry: AuditEntry) -> Document:
    """An operation that was recorded."""
    return asdict(entry)


# Schedules


def of_schedule(info: ScheduleInfo, now: datetime, redaction: Redaction = UNKNOWN) -> Document:
    """A schedule, its definition and its runs, without the secrets of its jobs."""
    return {
        "name": info.name,
        "state": state_of(info),
        "source": "code" if info.declared else "runtime",
        "service": info.service,
        "service_seen": in_zone(info.service_seen, "UTC"),
        **_of_definition(info, redaction),
        **_of_runs(info, now),
    }


def state_of(info: ScheduleInfo) -> str:
    """Whether a schedule will run again."""
    if info.paused:
        return "paused"
    return "active" if info.next_run else "over"


def _of_definition(info: ScheduleInfo, redaction: Redaction) -> Document:
    schedule = info.schedule
    return {
        "task": schedule.task,
        "queue": schedule.queue,
        "priority": schedule.priority,
        "arguments": _of_call(redaction.call(schedule.task, schedule.args)),
        "options": redaction.options(schedule.options),
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
        "error_count": info.error_count,
        "last_error": info.last_error,
        "last_error_at": in_zone(info.last_error_at, zone),
        "runs": info.run_count,
        "waiting": info.waiting,
        "skipped": info.skipped,
    }


def of_tick(tick: datetime, tz: str, now: datetime) -> Document:
    """A time at which a schedule is due."""
    return {"at": in_zone(tick, tz), "in": in_words(tick, now)}


# Other texts


def _moment(ms: int) -> datetime | None:
    return clock.from_ms(ms) if ms else None


def plain(value: Any) -> Any:
    """A value that JSON cannot represent, as a text."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
