"""Cancels a job only if it has not started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fennelq.broker import verbs
from fennelq.broker.keys import queue_keys
from fennelq.broker.talk import Talk, ask
from fennelq.broker.verbs.jobs import CANCELLED, Chosen
from fennelq.manage.jobs import JobAnswer
from fennelq.model.job import Status, split_id
from fennelq.model.query import State
from fennelq.result import status_of

if TYPE_CHECKING:
    from fennelq.app import App

_UNSTARTED: Final = frozenset({State.WAITING, State.LIMITED, State.SCHEDULED, State.RETRY})


def deleted(app: App, job_id: str, reason: str = "deleted") -> Talk[JobAnswer]:
    """Cancel a job that has not started, or waits for its next try. A job that runs is left alone."""
    queue, key = split_id(job_id)
    now_ms = yield from ask(verbs.server.now())
    chosen = Chosen(_UNSTARTED, now_ms)
    (answer,) = yield from ask(
        verbs.jobs.cancel(queue_keys(app.namespace, queue), [key], app.lifetimes, reason, chosen)
    )
    if answer == CANCELLED:
        return JobAnswer(job_id, True, "cancelled")
    status = yield from status_of(app, job_id)
    return JobAnswer(job_id, False, f"too late: {status}", known=status is not Status.UNKNOWN)
