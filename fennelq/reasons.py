"""Finds the reason why a job has not ended yet. Conversations, for code with and without an event loop."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from fennelq import clock
from fennelq.broker import verbs
from fennelq.broker.diagnosis import diagnose
from fennelq.broker.keys import QueueKeys, queue_keys
from fennelq.broker.talk import Talk, ask, ask_all, at_most
from fennelq.broker.trouble import classify, lacks_permission
from fennelq.broker.verb import Step
from fennelq.errors import BrokerUnavailable
from fennelq.executors import Executors
from fennelq.model.job import JobInfo, Status, split_id

if TYPE_CHECKING:
    from fennelq.app import App

_LATER = ("sched", "retry")
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
    info = yield from ask(verbs.jobs.record(keys, key))
    if info is None or info.status.ended or info.status is Status.EXECUTING:
        return info
    if info.place in _LATER:
        info = _due_at(info, (yield from ask(verbs.jobs.due(keys, info.place, key))))
    executors = yield from executors_of(keys.app)
    if executors is None:
        return info
    return replace(info, waiting_because=_hindrance(info, executors, executors.now_ms))


def of_timeout(keys: QueueKeys, key: str) -> Talk[str | None]:
    """Why a job that a caller waits for has not ended, in at most two round trips."""
    steps: list[Step[Any]] = [
        verbs.jobs.outline(keys, key),
        verbs.server.now(),
        verbs.executors.known_executors(keys.app),
    ]
    info, now, facts = yield from ask_all(steps)
    if info is None or info.status.ended:
        return None
    executors = Executors(facts, now)
    if info.status is Status.EXECUTING:
        return _running(info, executors, now)
    if info.place in _LATER:
        info = _due_at(info, (yield from ask(verbs.jobs.due(keys, info.place, key))))
        return _hindrance(info, executors, now) or _later(info, now)
    if hindrance := _hindrance(info, executors, now):
        return hindrance
    lane = _lane(info)
    of_lane: list[Step[Any]] = [verbs.queues.length(keys, lane), verbs.queues.reading(keys, lane)]
    length, reading = yield from ask_all(of_lane)
    return _queued(info, max(0, length - reading.pending - 1), len(executors.serving(info.queue, lane)))


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


def _due_at(info: JobInfo, due: int | None) -> JobInfo:
    return info if due is None else replace(info, due_at=clock.from_ms(due))


def _hindrance(info: JobInfo, executors: Executors, now: int) -> str | None:
    """The problem that must be solved before the job can run; None when the job only has to wait for its turn."""
    if info.waiting_because is None and info.due_at is not None and info.due_at > clock.from_ms(now):
        return None
    return executors.unserved(info.queue, _lane(info)) or info.waiting_because


def _lane(info: JobInfo) -> str:
    place = info.place or ""
    return place.partition("/")[0] if "/" in place else verbs.queues.lane_of(info.priority)


def _running(info: JobInfo, executors: Executors, now: int) -> str:
    seconds = _ago(info.started_at, now)
    if info.owner is not None and executors.is_gone(info.owner):
        return (
            f"it was started {seconds} ago on {info.owner}, which does not answer any more "
            f"({executors.state(info.owner)}); another executor takes the job over when its lease has run out"
        )
    asked = f", and was asked to stop ({info.stopping})" if info.stopping else ""
    return f"it has been running for {seconds} on {info.owner}{asked}"


def _later(info: JobInfo, now: int) -> str:
    due = "now" if info.due_at is None else f"in {_span((info.due_at - clock.from_ms(now)).total_seconds())}"
    if info.status is not Status.RETRY or info.error is None:
        return f"it is scheduled, due {due}"
    return f"try {info.tries} has failed ({info.error.error_type}: {info.error.message}), the next one is due {due}"


def _queued(info: JobInfo, others: int, executors: int) -> str:
    served = f"{executors} executor{'s serve' if executors != 1 else ' serves'} it"
    with_others = f" with {others:,} other{'s' if others != 1 else ''}" if others else ""
    return f"it waits in queue {info.queue!r}{with_others}; {served}"


def _ago(moment: datetime | None, now: int) -> str:
    return _span(0.0 if moment is None else (clock.from_ms(now) - moment).total_seconds())


def _span(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
