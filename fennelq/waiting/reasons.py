"""Finds the reason why a job has not ended yet. Conversations, for code with and without an event loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fennelq import clock
from fennelq.broker import verbs
from fennelq.broker.diagnosis import diagnose
from fennelq.broker.keys import QueueKeys, queue_keys
from fennelq.broker.talk import Talk, ask, ask_all, at_most, together
from fennelq.broker.trouble import ReplyError, classify, lacks_permission
from fennelq.broker.verb import Step
from fennelq.errors import BrokerUnavailable
from fennelq.executors import Executors
from fennelq.model import because
from fennelq.model.gates import CONCURRENCY, in_words, line_of
from fennelq.model.job import JobInfo, Status, split_id
from fennelq.model.pause import QueuePause

if TYPE_CHECKING:
    from fennelq.app import App

_LATER = ("sched", "retry")
LINE = "line"
"""The place of a job that waits for its limits."""
_HOLDERS = 3
"""So many jobs that hold a limit are named."""
SHORTEST, LONGEST = 0.05, 0.5
"""Seconds within which a reason must be found, so that looking it up does not make a timeout much longer."""


NOT_LOOKED_UP = (
    "many results timed out at once, so the reason was not looked up; `info()` returns what it waits for"
)


def after_timeout(app: App, job_id: str, timeout: float) -> Talk[str | None]:
    """Why a job has not ended although a caller has waited this long. When Redis does not reply, that is the reason.
    None when the job has ended in the meantime, and when Redis refuses the lookup."""
    queue, key = split_id(job_id)
    seconds = within(timeout)
    try:
        return (yield from at_most(seconds, of_timeout(queue_keys(app.namespace, queue), key)))
    except TimeoutError:
        return f"Redis at {app.address.shown} did not reply within {seconds:g} s"
    except Exception as error:
        if not classify(error).passes:
            return None
        return f"Redis at {app.address.shown} {diagnose(app.address, error).reason}"


def within(timeout: float) -> float:
    """How many more seconds a caller who has waited for `timeout` seconds may wait for the reason."""
    return min(max(timeout / 10, SHORTEST), LONGEST)


def known_of(keys: QueueKeys, key: str) -> Talk[JobInfo | None]:
    """Everything known about a job, and why it waits."""
    info: JobInfo | None
    pause: QueuePause | None
    talks: list[Talk[Any]] = [ask(verbs.jobs.record(keys, key)), pause_of(keys)]
    info, pause = yield from together(talks)
    if info is None or info.status.ended or info.status is Status.EXECUTING:
        return info
    if info.place in _LATER:
        info = _due_at(info, (yield from ask(verbs.jobs.due(keys, info.place, key))))
    executors = yield from executors_of(keys.app)
    if executors is None:
        later = info.due_at is not None or pause is None
        return info if later else replace(info, waiting_because=because_of_pause(info.queue, pause))
    reason = _hindrance(info, executors, executors.now_ms, pause)
    if reason is None and info.place == LINE:
        reason = yield from in_line(keys, info)
    return replace(info, waiting_because=reason)


def of_timeout(keys: QueueKeys, key: str) -> Talk[str | None]:
    """Why a job that a caller waits for has not ended, in at most two round trips, or four for a job in a line."""
    steps: list[Step[Any]] = [
        verbs.jobs.outline(keys, key),
        verbs.server.now(),
        verbs.executors.known_executors(keys.app),
    ]
    talks: list[Talk[Any]] = [ask_all(steps), pause_of(keys)]
    (info, now, facts), pause = yield from together(talks)
    if info is None or info.status.ended:
        return None
    executors = Executors(facts, now)
    if info.status is Status.EXECUTING:
        return because.running(info, clock.from_ms(now), gone_of(info, executors))
    if info.place in _LATER:
        info = _due_at(info, (yield from ask(verbs.jobs.due(keys, info.place, key))))
        return _hindrance(info, executors, now, pause) or because.later(info, clock.from_ms(now))
    if hindrance := _hindrance(info, executors, now, pause):
        return hindrance
    if info.place == LINE and (reason := (yield from in_line(keys, info))):
        return reason
    lane = lane_of(info)
    of_lane: list[Step[Any]] = [verbs.queues.length(keys, lane), verbs.queues.reading(keys, lane)]
    length, reading = yield from ask_all(of_lane)
    others, serving = max(0, length - reading.pending - 1), executors.serving(info.queue, lane)
    return because.queued(info, others, len(serving))


def executors_of(app: str) -> Talk[Executors | None]:
    """The facts that the executors of an app report; None when the user of Redis may not read them."""
    steps: list[Step[Any]] = [verbs.server.now(), verbs.executors.known_executors(app)]
    try:
        now, facts = yield from ask_all(steps)
    except BrokerUnavailable as error:
        if lacks_permission(error):
            return None
        raise
    return Executors(facts, now)


def pause_of(keys: QueueKeys) -> Talk[QueuePause | None]:
    """What people have paused in a queue; None when nothing is, and when the user of Redis may not read that."""
    try:
        return (yield from ask(verbs.queues.paused(keys)))
    except (ReplyError, BrokerUnavailable) as error:
        if isinstance(error, ReplyError) or lacks_permission(error):
            return None
        raise


def because_of_pause(queue: str, pause: QueuePause | None) -> str | None:
    """Why no executor starts the jobs of a queue, and how to change that; None when consuming is not paused."""
    if pause is None or not pause.consuming:
        return None
    return (
        f"consuming of queue {queue!r} is paused{pause.origin}; `fennelq queue resume {queue}` ends the pause"
    )


def in_line(keys: QueueKeys, info: JobInfo) -> Talk[str | None]:
    """Which gate keeps a job in its line, how many jobs are before it there, and which hold the gate; None when the job
    has left the line."""
    _, key = split_id(info.id)
    gates = yield from ask(verbs.lines.gates(keys, key))
    line = line_of(gates, verbs.queues.lane_of(info.priority))
    of_line: list[Step[Any]] = [verbs.lines.gate_of(keys, line), verbs.lines.before(keys, line, key)]
    gate, before = yield from ask_all(of_line)
    if not gate or before is None:
        return None
    of_gate: list[Step[Any]] = [
        verbs.lines.through(keys, gate, _HOLDERS + 1),
        verbs.lines.alarm(keys, gate),
        verbs.server.now(),
    ]
    through, due, now = yield from ask_all(of_gate)
    others = (
        "next in its line" if not before else f"with {before:,} other{'s' if before > 1 else ''} before it"
    )
    return f"it waits for {in_words(gate)}, {others}{_holding(keys.queue, gate, through, due, now)}"


def _holding(queue: str, gate: str, through: Sequence[str], due: int | None, now: int) -> str:
    """Which jobs keep a gate shut, or when it opens."""
    if through:
        shown = ", ".join(f"{queue}:{job}" for job in through[:_HOLDERS])
        more = ", …" if len(through) > _HOLDERS else ""
        return f"; {'held by' if gate[:1] == CONCURRENCY else 'after'} {shown}{more}"
    return "" if due is None else f"; it opens in {because.span((due - now) / 1000)}"


def _due_at(info: JobInfo, due: int | None) -> JobInfo:
    return info if due is None else replace(info, due_at=clock.from_ms(due))


def _hindrance(info: JobInfo, executors: Executors, now: int, pause: QueuePause | None) -> str | None:
    """The problem that must be solved before the job can run; None when the job only has to wait for its turn."""
    if info.waiting_because is None and info.due_at is not None and info.due_at > clock.from_ms(now):
        return None
    paused = because_of_pause(info.queue, pause)
    return paused or executors.unserved(info.queue, lane_of(info)) or info.waiting_because


def gone_of(info: JobInfo, executors: Executors) -> str | None:
    """The state of the executor that runs a job, if it does not answer any more."""
    owner = info.owner
    return executors.state(owner) if owner is not None and executors.is_gone(owner) else None


def lane_of(info: JobInfo) -> str:
    """The lane in which a job waits, or will wait."""
    place = info.place or ""
    return place.partition("/")[0] if "/" in place else verbs.queues.lane_of(info.priority)
