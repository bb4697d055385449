"""Single jobs: everything known about one, cancel it, run it now, replay it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import Field

from fennelq.errors import UsageError
from fennelq.manage import documents
from fennelq.manage.jobs import JobAnswer
from fennelq.manage.stories import job_story_of
from fennelq.model.job import split_id
from fennelq.web.http.call import Answer, Call
from fennelq.web.http.forms import Body, Line
from fennelq.web.http.sending import check_may_send
from fennelq.web.visit import Forbidden, NotFound

_WAIT: Final = 5.0
"""Seconds to wait for the end of a job that was asked to stop."""
HIDDEN: Final = ("arguments", "headers", "key")
"""Members that only users see who may see arguments."""


async def get_job(call: Call) -> Answer:
    """Everything known about a job, and its story."""
    job = call.names["job"]
    split_id(job)
    found = await call.app.client.converse(job_story_of(call.app, job))
    if found is None:
        raise unknown(job)
    info = without_arguments(call, documents.of_job(found.info, call.redaction))
    events = [documents.of_event(event) for event in found.events]
    return Answer({**info, "story": documents.of_story(found.story), "events": events})


class CancelBody(Body):
    """Why a job is cancelled."""

    reason: Line = "cancelled"
    """The reason, which the task can read."""
    wait: float = Field(default=_WAIT, ge=0, le=_WAIT)
    """Seconds to wait for the end of a job that runs."""


async def cancel_job(call: Call) -> Answer:
    """Cancel a job; one that runs is asked to stop."""
    job, form = call.names["job"], call.given(CancelBody)
    split_id(job)
    async with call.site.recorded(call, "job cancel", target=job, filter=f"--reason {form.reason}") as record:
        answer = await call.app.jobs.cancel(job, form.reason, wait=form.wait)
        record.ended(int(answer.done), answer.text)
    return _answer(answer)


async def run_job(call: Call) -> Answer:
    """Run a job now that is due later."""
    job = call.names["job"]
    info = await call.app.jobs.info(job)
    if info is None:
        raise unknown(job)
    check_may_send(call, info.task)
    return await _one(call, "job run", call.app.jobs.run)


class ReplayBody(Body):
    """How a dead job goes back."""

    arguments: dict[str, Any] | None = None
    """New arguments, all of them by name; without them, it keeps its own."""


async def replay_job(call: Call) -> Answer:
    """Put a dead job back, with all its retries, and with new arguments if some are given."""
    new = call.given(ReplayBody).arguments
    if new is None:
        return await _one(call, "job retry", call.app.jobs.retry)
    if not call.can("edit"):
        raise Forbidden(f"{call.user.name} may not change arguments: its rights need edit.")

    async def edit(job: str) -> JobAnswer:
        answer: JobAnswer = await call.app.dlq.edit(job, new, who=call.who)
        return answer

    return await _one(call, "dlq edit", edit)


def without_arguments(call: Call, document: Mapping[str, Any]) -> dict[str, Any]:
    """A job as this user may see it."""
    if call.can("see_arguments"):
        return {**document}
    return {name: value for name, value in document.items() if name not in HIDDEN}


def unknown(job: str) -> NotFound:
    """The error about a job that has no record."""
    return NotFound(
        f"Redis has no record of {job}. Records of jobs that have ended are kept for a while (record_ttl) only."
    )


async def _one(call: Call, what: str, act: Any) -> Answer:
    job = call.names["job"]
    split_id(job)
    async with call.site.recorded(call, what, target=job) as record:
        answer: JobAnswer = await act(job)
        record.ended(int(answer.done), answer.text)
    return _answer(answer)


def _answer(answer: JobAnswer) -> Answer:
    if not answer.known:
        raise unknown(answer.id)
    status = 200 if answer.done else 202 if "stop" in answer.text else 409
    if status == 409:
        raise NotPossible(answer.id, answer.text)
    return Answer(documents.of_answer(answer), status)


class NotPossible(UsageError):
    """A job is not in a state in which this can be done."""

    def __init__(self, job: str, why: str) -> None:
        super().__init__(f"{job}: {why}. GET /api/v1/jobs/{job} shows its state")
