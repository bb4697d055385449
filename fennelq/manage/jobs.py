"""Operations on single jobs: read the end of a job, cancel it, retry it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fennelq.errors import JobError, ResultExpired
from fennelq.model.job import Event, JobInfo, Status

if TYPE_CHECKING:
    from fennelq.app import App


class JobEnd(NamedTuple):
    """How a job ended."""

    id: str
    status: Status
    result: Any = None
    error: str | None = None
    """The reason, when the job ended without a result."""


class Answer(NamedTuple):
    """The answer to a request to cancel or retry a job."""

    id: str
    done: bool
    text: str
    """The action that was taken, or the reason why none was."""
    known: bool = True
    """False when Redis has no record of the job."""


async def look(app: App, job: str) -> tuple[JobInfo | None, list[Event]]:
    """Everything known about a job, and its history."""
    return await app.client.info(job), await app.client.history(job)


async def end_of(app: App, job: str, timeout: float | None) -> JobEnd:
    """Wait for the end of a job; raises ResultTimeout, or ResultExpired when the job is unknown."""
    try:
        return JobEnd(job, Status.SUCCESS, await app.result(job).get(timeout))
    except ResultExpired:
        raise
    except JobError as error:
        return JobEnd(job, await app.result(job).status(), error=str(error))


async def cancel(app: App, job: str) -> Answer:
    """Cancel a job that is not running and has not ended."""
    if await app.result(job).cancel():
        return Answer(job, True, "cancelled")
    return await _too_late(app, job, "too late")


async def retry(app: App, job: str) -> Answer:
    """Run a dead job again, with all its retries."""
    report = await app.dlq.replay(ids=[job])
    if report.replayed:
        return Answer(job, True, "replayed")
    if report.key_taken:
        return Answer(job, False, "its idempotency key is taken by another job")
    if report.broken:
        return Answer(job, False, "its record cannot be read")
    return await _too_late(app, job, "not dead")


async def _too_late(app: App, job: str, why: str) -> Answer:
    status = await app.result(job).status()
    if status is Status.UNKNOWN:
        return Answer(job, False, "unknown", known=False)
    return Answer(job, False, f"{why}: {status}")
