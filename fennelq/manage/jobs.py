"""Finds the jobs that match a filter. Looks at single jobs by their ids, waits for them, cancels and retries them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fennelq.broker import verbs
from fennelq.broker.keys import QueueKeys, queue_keys
from fennelq.broker.talk import Finding, Talk, ask
from fennelq.broker.verbs.dead import DeadJob
from fennelq.errors import JobError, ResultExpired
from fennelq.loops import check_loop
from fennelq.manage.dead.letter import ReplayReport
from fennelq.manage.dead.new_arguments import Rewriting
from fennelq.manage.dead.search import dlq_entry, replayed
from fennelq.manage.finding import MOST_HITS, OnSearch, jobs_found, number_found, read_filter
from fennelq.manage.offered import Awaiting, Blocking, Family, Operation, Scan
from fennelq.manage.stories import story_of
from fennelq.model.checks import check_count
from fennelq.model.job import Event, JobInfo, Status, split_id
from fennelq.model.runs import REPLAYED
from fennelq.model.story import Story
from fennelq.result import history_of, info_of, status_of
from fennelq.sync import waiting as sync_waiting

if TYPE_CHECKING:
    from fennelq.app import App


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
    """The operations on jobs."""

    _attribute, _item = "jobs", "job"

    @Scan
    def find(
        self, where: str = "", *, limit: int | None = MOST_HITS, progress: OnSearch | None = None
    ) -> Finding[JobInfo]:
        """Yields the jobs that match a filter, such as `state:dead task:welcome since:2h`, at most `limit`; None: all.

        It yields each job as soon as it is found, queue by queue: scheduled jobs and those between two tries, by their
        time; jobs in lines; those that wait and run, lane by lane; dead ones, the newest first. Jobs that have ended
        otherwise are only found by their ids. The search takes at most a fifth of the time of the server. Raises
        InvalidFilter.
        """
        if limit is not None:
            check_count("limit", limit)
        query = yield from read_filter(where)
        yield from jobs_found(self._app, query, limit, progress)

    @Operation
    def count(self, where: str = "", *, progress: OnSearch | None = None) -> Talk[int]:
        """How many jobs match a filter. It searches as `find` does."""
        return (yield from number_found(self._app, (yield from read_filter(where)), progress))

    @Operation
    def info(self, job_id: str) -> Talk[JobInfo | None]:
        """Everything known about a job, and why it waits; None when it has no record. Raises InvalidJobId when the text
        is not a job id."""
        return (yield from info_of(self._app, job_id))

    @Operation
    def history(self, job_id: str) -> Talk[list[Event]]:
        """The events that made a job run more than once, the oldest first; the last fifty are kept."""
        return (yield from history_of(self._app, job_id))

    @Operation
    def story(self, job_id: str) -> Talk[Story | None]:
        """What happened to a job, in words: where it is, why it ran more than once, why it does not run yet, why it is
        dead. None when it has no record."""
        return (yield from story_of(self._app, job_id))

    @Operation
    def retry(self, job_id: str) -> Talk[JobAnswer]:
        """Run a dead job again, with all its retries."""
        queue, key = split_id(job_id)
        keys = queue_keys(self._app.namespace, queue)
        dead = yield from _dead_job(keys, key)
        report = (yield from replayed(keys, [dead])) if dead else ReplayReport()
        if report.gone and (yield from _is_back(keys, key)):
            report = ReplayReport(replayed=1)
        return (yield from _answer(self._app, job_id, report, "replayed"))

    @Operation
    def run(self, job_id: str) -> Talk[JobAnswer]:
        """Run a job now that is due later: a scheduled one, or one that waits for its next try."""
        queue, key = split_id(job_id)
        (answer,) = yield from ask(verbs.jobs.run_now(queue_keys(self._app.namespace, queue), [key]))
        if answer == 1:
            return JobAnswer(job_id, True, "due now")
        return (yield from _too_late(self._app, job_id, "not due later"))

    def _not_cancelled(self, job_id: str) -> Talk[JobAnswer]:
        """Why a job was not cancelled."""
        queue, key = split_id(job_id)
        info = yield from ask(verbs.jobs.outline(queue_keys(self._app.namespace, queue), key))
        if info is not None and info.stopping is not None:
            return JobAnswer(job_id, False, "asked to stop")
        return (yield from _too_late(self._app, job_id, "too late"))


class Jobs(JobTalks, Awaiting):
    """Single jobs of an app, by their ids."""

    async def cancel(self, job_id: str, reason: str = "cancelled", *, wait: float = 5.0) -> JobAnswer:
        """Cancel a job. One that is running is asked to stop, and this waits for its end, at most `wait` seconds."""
        if await self._app.result(job_id).cancel(reason, wait=wait):
            return JobAnswer(job_id, True, "cancelled")
        return await self._app.client.converse(self._not_cancelled(job_id))

    async def wait(self, job_id: str, timeout: float | None = None) -> JobEnd:
        """Wait for the end of a job. Raises ResultTimeout, or ResultExpired when the job is unknown or its
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
        """Wait for the end of a job. Raises ResultTimeout, or ResultExpired when the job is unknown or its
        result has expired."""
        check_loop("app.sync.jobs.wait", "await app.jobs.wait(…)")
        result = self._app.sync.result(job_id)
        try:
            return JobEnd(job_id, Status.SUCCESS, result.get(timeout))
        except ResultExpired:
            raise
        except JobError as error:
            return JobEnd(job_id, result.status(), error=str(error))


def edited(app: App, job_id: str, rewriting: Rewriting) -> Talk[JobAnswer]:
    """Put a dead job back with other arguments."""
    queue, key = split_id(job_id)
    keys = queue_keys(app.namespace, queue)
    dead = yield from _dead_job(keys, key)
    report = ReplayReport()
    if dead is not None:
        call = yield from ask(verbs.dead.call(keys, key))
        change = rewriting.change(call) if call else None
        report = ReplayReport(broken=1)
        if change is not None:
            report = yield from replayed(keys, [dead], {dead.entry: change})
            if report.gone and (yield from _is_back(keys, key, change.before)):
                report = ReplayReport(replayed=1)
    return (yield from _answer(app, job_id, report, "replayed with other arguments"))


def _dead_job(keys: QueueKeys, key: str) -> Talk[DeadJob | None]:
    entry = dlq_entry((yield from ask(verbs.jobs.outline(keys, key))))
    return (yield from ask(verbs.dead.dead_entry(keys, entry))) if entry else None


def _is_back(keys: QueueKeys, key: str, changed: str | None = None) -> Talk[bool]:
    """Whether a job that was dead before a call, and is gone after it, was replayed, and with this change if one is
    given. After a lost reply, the repeated call finds that the job is gone."""
    events = yield from ask(verbs.jobs.history(keys, key))
    replays = [event.more for event in events if event.what == REPLAYED]
    return bool(replays) and changed in (None, replays[-1])


def _answer(app: App, job_id: str, report: ReplayReport, done: str) -> Talk[JobAnswer]:
    if report.replayed:
        return JobAnswer(job_id, True, done)
    if report.key_taken:
        return JobAnswer(job_id, False, "its idempotency key is taken by another job")
    if report.broken:
        return JobAnswer(job_id, False, "its record cannot be read")
    return (yield from _too_late(app, job_id, "not dead"))


def _too_late(app: App, job_id: str, why: str) -> Talk[JobAnswer]:
    status = yield from status_of(app, job_id)
    if status is Status.UNKNOWN:
        return JobAnswer(job_id, False, "unknown", known=False)
    return JobAnswer(job_id, False, f"{why}: {status}")
