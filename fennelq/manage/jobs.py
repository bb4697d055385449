"""Operations on single jobs, by their ids: look at a job, wait for its end, cancel it, retry it."""

from __future__ import annotations

from typing import Any, NamedTuple

from fennelq import sync_waiting
from fennelq.broker import verbs
from fennelq.broker.keys import queue_keys
from fennelq.broker.talk import Talk, ask
from fennelq.errors import JobError, ResultExpired
from fennelq.loops import check_loop
from fennelq.manage.dead_letter import ReplayReport
from fennelq.manage.offered import Awaiting, Blocking, Family, Operation
from fennelq.manage.search import dlq_entry, replayed
from fennelq.model.job import Event, JobInfo, Status, split_id
from fennelq.result import history_of, info_of, status_of


class JobEnd(NamedTuple):
    """How a job ended."""

    id: str
    status: Status
    result: Any = None
    error: str | None = None
    """The reason, when the job ended without a result."""


class JobAnswer(NamedTuple):
    """The answer to a request to cancel or retry a job."""

    id: str
    done: bool
    text: str
    """The action that was taken, or the reason why none was."""
    known: bool = True
    """False when Redis has no record of the job."""


class JobTalks(Family):
    """The operations on single jobs."""

    _attribute = "jobs"

    @Operation
    def info(self, job_id: str) -> Talk[JobInfo | None]:
        """Everything known about a job, and why it waits; None when it has no record. Raises InvalidJobId when the text
        is not a job id."""
        return (yield from info_of(self._app, job_id))

    @Operation
    def history(self, job_id: str) -> Talk[list[Event]]:
        """The unusual things that happened to a job, the oldest first; the last fifty are kept."""
        return (yield from history_of(self._app, job_id))

    @Operation
    def retry(self, job_id: str) -> Talk[JobAnswer]:
        """Run a dead job again, with all its retries."""
        report = yield from self._replayed(job_id)
        if report.replayed:
            return JobAnswer(job_id, True, "replayed")
        if report.key_taken:
            return JobAnswer(job_id, False, "its idempotency key is taken by another job")
        if report.broken:
            return JobAnswer(job_id, False, "its record cannot be read")
        return (yield from self._too_late(job_id, "not dead"))

    def _not_cancelled(self, job_id: str) -> Talk[JobAnswer]:
        """Why a job was not cancelled."""
        queue, key = split_id(job_id)
        info = yield from ask(verbs.jobs.outline(queue_keys(self._app.namespace, queue), key))
        if info is not None and info.stopping is not None:
            return JobAnswer(job_id, False, "asked to stop")
        return (yield from self._too_late(job_id, "too late"))

    def _replayed(self, job_id: str) -> Talk[ReplayReport]:
        queue, key = split_id(job_id)
        keys = queue_keys(self._app.namespace, queue)
        entry = dlq_entry((yield from ask(verbs.jobs.record(keys, key))))
        dead = (yield from ask(verbs.dead.dead_entry(keys, entry))) if entry else None
        return (yield from replayed(keys, [dead])) if dead else ReplayReport()

    def _too_late(self, job_id: str, why: str) -> Talk[JobAnswer]:
        status = yield from status_of(self._app, job_id)
        if status is Status.UNKNOWN:
            return JobAnswer(job_id, False, "unknown", known=False)
        return JobAnswer(job_id, False, f"{why}: {status}")


class Jobs(JobTalks, Awaiting):
    """Single jobs of an app, by their ids."""

    async def cancel(self, job_id: str, reason: str = "cancelled", *, wait: float = 5.0) -> JobAnswer:
        """Cancel a job. One that is running is asked to stop, and this waits for its end, at most `wait` seconds."""
        if await self._app.result(job_id).cancel(reason, wait=wait):
            return JobAnswer(job_id, True, "cancelled")
        return await self._app.client.converse(self._not_cancelled(job_id))

    async def wait(self, job_id: str, timeout: float | None = None) -> JobEnd:
        """Wait for the end of a job, well or not. Raises ResultTimeout, or ResultExpired when the job is unknown or its
        result has expired."""
        result = self._app.result(job_id)
        try:
            return JobEnd(job_id, Status.SUCCESS, await result.get(timeout))
        except ResultExpired:
            raise
        except JobError as error:
            return JobEnd(job_id, await result.status(), error=str(error))


class BlockingJobs(JobTalks, Blocking):
    """Single jobs of an app, for code without an event loop: `app.sync.jobs`."""

    def cancel(self, job_id: str, reason: str = "cancelled", *, wait: float = 5.0) -> JobAnswer:
        """Cancel a job. One that is running is asked to stop, and this waits for its end, at most `wait` seconds."""
        check_loop("app.sync.jobs.cancel", "await app.jobs.cancel(…)")
        if self._app.sync.result(job_id).cancel(reason, wait=wait):
            return JobAnswer(job_id, True, "cancelled")
        return sync_waiting.converse(self._app, self._not_cancelled(job_id))

    def wait(self, job_id: str, timeout: float | None = None) -> JobEnd:
        """Wait for the end of a job, well or not. Raises ResultTimeout, or ResultExpired when the job is unknown or its
        result has expired."""
        check_loop("app.sync.jobs.wait", "await app.jobs.wait(…)")
        result = self._app.sync.result(job_id)
        try:
            return JobEnd(job_id, Status.SUCCESS, result.get(timeout))
        except ResultExpired:
            raise
        except JobError as error:
            return JobEnd(job_id, result.status(), error=str(error))
