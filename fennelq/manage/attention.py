"""What needs the attention of an operator, in sentences: the same ones for `fennelq top` and for every other view.

Pure: it reads what a look has found, and asks Redis nothing. Names, reasons and messages come out of Redis, so each
sentence is cut, and free of characters that control a terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import Final, Literal

from fennelq import clock
from fennelq.broker.verbs.dead import OTHERS
from fennelq.manage.dead.letter import Group
from fennelq.manage.executors.info import ExecutorInfo
from fennelq.manage.queues.info import QueueInfo
from fennelq.manage.schedules import ScheduleInfo
from fennelq.manage.watch import Snapshot
from fennelq.manage.words_of_time import duration_in_words
from fennelq.model.bounds import WhenFull
from fennelq.model.job import Status
from fennelq.streams import clean
from fennelq.waiting.reasons import because_of_pause

LATE: Final = 60.0
"""Seconds for which the oldest job of a queue may be ready before the queue is late."""
VERY_LATE: Final = 600.0
NOT_MOVED: Final = 15.0
"""Seconds after which a job that is due, and still where it waits for its time, shows that no executor moves it."""
NEW: Final = 3600.0
"""Seconds after its first death for which a group of dead jobs is a new error."""
ENDED: Final = 900.0
"""Seconds for which an executor that did not end in order is reported."""
NEARLY_FULL: Final = 0.8

Kind = Literal[
    "damaged", "not served", "full", "late", "paused", "unknown", "new error", "blocked", "silent", "ended", "stuck",
    "missed", "failing",
]  # fmt: skip
Of = Literal["queue", "group", "executor", "schedule", "part"]

_LONGEST: Final = 300
"""Characters of a text out of Redis. Names are shorter, and the views of a job have its whole message."""
_NAMED: Final = 5
_FULL: Final[Mapping[WhenFull | None, str]] = {
    "raise": "callers get an error",
    "wait": "callers wait",
    "drop_oldest": "the oldest job is dropped for each new one",
}


class Urgency(IntEnum):
    """How much it matters."""

    URGENT = 0
    """Jobs do not run, or fail."""
    SOON = 1
    """Jobs run too slowly, or something is about to stop."""
    NOTE = 2
    """A person has decided it, or it cannot be seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Something that needs attention."""

    kind: Kind
    urgency: Urgency
    of: Of
    name: str
    """The name of the queue, executor or schedule, or the fingerprint of the group, as Redis has it. Of several queues,
    the first."""
    sentence: str
    """What it is, in one sentence without a full stop; it names its subject."""
    advice: str = ""
    """What to do: a command, or a sentence."""


def needs(
    snapshot: Snapshot,
    groups: Iterable[Group] = (),
    schedules: Iterable[ScheduleInfo] = (),
    *,
    now: datetime | None = None,
) -> list[Need]:
    """Everything that needs attention, the most urgent first; an empty list when nothing does. `now` is the time of the
    server when the snapshot was taken, by default."""
    now = now or snapshot.at or clock.from_ms(clock.wall_ms())
    queues, executors = snapshot.queues.values(), snapshot.executors.values()
    found = [
        *_unserved(queues),
        *(need for queue in queues for need in _of_queue(queue, now)),
        *(need for executor in executors for need in _of_executor(executor, now)),
        *(need for group in groups if (need := _of_group(group, now))),
        *(need for schedule in schedules if (need := _of_schedule(schedule, now))),
    ]
    return sorted(found, key=lambda need: need.urgency)  # stable: queues, executors, groups, schedules


def unread_need(what: str, why: str) -> Need:
    """Something that could not be read, and why."""
    return Need(
        kind="unknown",
        urgency=Urgency.NOTE,
        of="part",
        name=what,
        sentence=f"{_text(what)} unknown: {_text(why)}",
    )


def in_a_sentence(found: Sequence[Need], snapshot: Snapshot) -> str:
    """The most urgent need and the number of further ones, or that nothing needs attention. Without a full stop."""
    if not found:
        return f"Nothing needs attention: {_calm(snapshot)}"
    first, others = found[0].sentence, len(found) - 1
    sentence = first[:1].upper() + first[1:]
    return f"{sentence} (and {others:,} more)" if others else sentence


def _calm(snapshot: Snapshot) -> str:
    running = sum(queue.running for queue in snapshot.queues.values())
    living = sum(executor.alive for executor in snapshot.executors.values())
    executors = _counted(living, "executor") if snapshot.executors_known else "an unknown number of executors"
    return f"{_counted(len(snapshot.queues), 'queue')}, {executors}, {_counted(running, 'job')} running"


# Queues


def _unserved(queues: Iterable[QueueInfo]) -> Iterator[Need]:
    """Queues whose jobs no worker can run, or not all workers: one need for each reason. Often a single reason is true
    for all queues. Pauses have a need of their own."""
    found: dict[str, list[QueueInfo]] = {}
    for queue in queues:
        pause = because_of_pause(queue.name, queue.paused)
        for because in queue.waiting_because:
            if because != pause:
                found.setdefault(because, []).append(queue)
    for because, some in found.items():
        waiting = sum(_unstarted(queue) for queue in some)
        waits = f"{_counted(waiting, 'job')} {'waits' if waiting == 1 else 'wait'}"
        reason, _, advice = _text(because).partition("; ")
        yield Need(
            kind="not served",
            urgency=Urgency.URGENT,
            of="queue",
            name=some[0].name,
            sentence=f"{waits} in {_listed([queue.name for queue in some])}: {reason}",
            advice=advice,
        )


def _of_queue(queue: QueueInfo, now: datetime) -> Iterator[Need]:
    if queue.damage:
        yield _damaged(queue)
        return
    if queue.paused:
        yield _paused(queue)
    # While only callers are refused, its jobs run.
    stands = queue.paused is not None and queue.paused.consuming
    if not stands and not queue.waiting_because and (need := _late(queue, now)):
        yield need
    if need := _full(queue):
        yield need


def _damaged(queue: QueueInfo) -> Need:
    kind: Kind = "unknown" if queue.unknown else "damaged"
    state = "unknown" if queue.unknown else "not served"
    return Need(
        kind=kind,
        urgency=Urgency.NOTE if queue.unknown else Urgency.URGENT,
        of="queue",
        name=queue.name,
        sentence=f"queue {_text(queue.name)} is {state}: {_text(queue.damage)}",
    )


def _paused(queue: QueueInfo) -> Need:
    waiting = _unstarted(queue)
    and_waiting = f"; {_counted(waiting, 'job')} not started" if waiting else ""
    return Need(
        kind="paused",
        urgency=Urgency.NOTE,
        of="queue",
        name=queue.name,
        sentence=f"queue {_text(queue.name)}: {_text(str(queue.paused))}{and_waiting}",
        advice=f"fennelq queue resume {_text(queue.name)}",
    )


def _late(queue: QueueInfo, now: datetime) -> Need | None:
    """A queue whose oldest job has been ready for long, or whose due jobs are not moved."""
    name, urgency = _text(queue.name), Urgency.SOON
    if queue.next_due is not None and (due := _seconds(queue.next_due, now)) > NOT_MOVED:
        sentence = f"queue {name}: a job has been due for {duration_in_words(due)}, and no executor moves it"
        urgency, advice = Urgency.URGENT, "start a worker that serves the queue"
    elif queue.waiting_since is not None and (waits := _seconds(queue.waiting_since, now)) > LATE:
        sentence = (
            f"queue {name} is late: its oldest job has been ready for {duration_in_words(waits)}; "
            f"{queue.waiting:,} wait, {queue.running:,} run"
        )
        urgency = Urgency.URGENT if waits > VERY_LATE else Urgency.SOON
        advice = "start more workers, or raise their concurrency"
    else:
        return None
    return Need(kind="late", urgency=urgency, of="queue", name=queue.name, sentence=sentence, advice=advice)


def _full(queue: QueueInfo) -> Need | None:
    fullness = queue.fullness
    if fullness is None or fullness < NEARLY_FULL:
        return None
    waiting, full = queue.waiting + queue.in_lines, fullness >= 1
    then = f": {_FULL.get(queue.when_full, 'it takes no more')}" if full else ""
    how = "full" if full else "nearly full"
    return Need(
        kind="full",
        urgency=Urgency.URGENT if full else Urgency.SOON,
        of="queue",
        name=queue.name,
        sentence=f"queue {_text(queue.name)} is {how}, {waiting:,} of {queue.max_waiting:,} jobs wait{then}",
        advice="start more workers, or raise max_waiting",
    )


def _unstarted(queue: QueueInfo) -> int:
    return queue.waiting + queue.in_lines + queue.scheduled + queue.retry


# Executors


def _of_executor(executor: ExecutorInfo, now: datetime) -> Iterator[Need]:
    name, seen = _text(executor.name), executor.seen_at
    ago = None if seen is None else _seconds(seen, now)
    if executor.state == "silent":
        since = "" if ago is None else f" for {duration_in_words(ago)}"
        yield _need_of(executor, "silent", f"executor {name} has not reported{since}")
    elif executor.state.startswith("ended"):
        if ago is None or ago < ENDED:
            yield _need_of(executor, "ended", f"executor {name} has {_text(executor.state)}", Urgency.SOON)
    elif executor.state == "blocked" and (blocked := executor.blocked):
        took, where = duration_in_words(blocked.seconds), f"{_text(blocked.at)}, in {_text(blocked.job)}"
        sentence = f"executor {name} runs no other job: code blocks its event loop for {took} at {where}"
        yield _need_of(executor, "blocked", sentence, advice=f"fennelq worker stacks {name}")
    if executor.alive and executor.stuck > 0:
        runs = f"{_counted(executor.stuck, 'run')} of executor {name}"
        sentence = f"{runs} {'goes' if executor.stuck == 1 else 'go'} on although asked to stop"
        yield _need_of(executor, "stuck", sentence, Urgency.SOON, advice=f"fennelq worker stacks {name}")


def _need_of(
    executor: ExecutorInfo, kind: Kind, sentence: str, urgency: Urgency = Urgency.URGENT, advice: str = ""
) -> Need:
    return Need(
        kind=kind, urgency=urgency, of="executor", name=executor.name, sentence=sentence, advice=advice
    )


# Dead jobs and schedules


def _of_group(group: Group, now: datetime) -> Need | None:
    """A new error: a group whose first job has died lately."""
    if group.fingerprint == OTHERS or _seconds(group.first, now) > NEW:
        return None
    message = f": {_text(group.message)}" if group.message else ""
    return Need(
        kind="new error",
        urgency=Urgency.URGENT,
        of="group",
        name=group.fingerprint,
        sentence=(
            f"new error, first {duration_in_words(_seconds(group.first, now))} ago: {_counted(group.jobs, 'job')} of "
            f"{_text(group.task)} died of {_text(group.error_type or group.reason)}{message}"
        ),
        advice=f"fennelq dlq list --fingerprint {_text(group.fingerprint)}",
    )


def _of_schedule(schedule: ScheduleInfo, now: datetime) -> Need | None:
    name = _text(schedule.name)
    if schedule.next_run is not None and (due := _seconds(schedule.next_run, now)) > LATE:
        return Need(
            kind="missed",
            urgency=Urgency.URGENT,
            of="schedule",
            name=schedule.name,
            sentence=f"schedule {name} has been due for {duration_in_words(due)}, and no executor has run it",
            advice="start a worker",
        )
    if schedule.last_status is not Status.DEAD:
        return None
    error = f": {_text(schedule.last_error)}" if schedule.last_error else ""
    return Need(
        kind="failing",
        urgency=Urgency.SOON,
        of="schedule",
        name=schedule.name,
        sentence=f"the last run of schedule {name} died{error}",
        advice=f"fennelq job show {_text(schedule.last_job or '…')}",
    )


# Words


def _text(text: str) -> str:
    """A text out of Redis."""
    return clean(text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…")


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(_text, names[:_NAMED]))
    more = len(names) - _NAMED
    return f"{shown} and {_counted(more, 'more queue')}" if more > 0 else shown


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _seconds(since: datetime, now: datetime) -> float:
    return max(0.0, (now - since).total_seconds())
