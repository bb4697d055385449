"""Handles of jobs, to wait for their results."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import orjson

from fennelq import clock
from fennelq.broker import verbs
from fennelq.broker.keys import QueueKeys, queue_keys
from fennelq.broker.talk import Talk, ask
from fennelq.broker.verbs.jobs import ASKED, CANCELLED, TOO_LATE
from fennelq.errors import JobCancelled, JobExpired, ResultExpired, ResultTimeout, TaskFailed
from fennelq.model.checks import check_reason
from fennelq.model.job import Event, JobInfo, Status, split_id
from fennelq.model.outcome import failure_from_wire
from fennelq.model.progress import Newest, Progress, Reported
from fennelq.model.result_codec import ANY_RESULT, ResultCodec
from fennelq.usage import is_over
from fennelq.waiting import reasons

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.waiting.looks import Ended

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

ASK_AGAIN: Final = 1.0
"""Seconds after which a caller who waits for the end of a running job asks again: the message may be lost, and a worker
of an earlier version may have let the job fail, so that it waits for its next try."""
_OK = b'{"ok":'
_CANCELLED = b'{"cancelled":'


class AsyncResult(Generic[R_co]):
    """The handle of a job. It can be made again anywhere from the job's id: `app.result(id)`."""

    __slots__ = ("_app", "_queue_key", "_returns", "deduplicated", "id")

    id: str
    """`queue:key`; store it to make the handle again later."""
    deduplicated: bool
    """True when the call created no job, because an earlier call with the same key or id had created this one."""

    def __init__(
        self, app: App, job_id: str, returns: ResultCodec[R_co] | None, *, deduplicated: bool = False
    ) -> None:
        self._app, self._returns = app, returns
        self.id, self.deduplicated = job_id, deduplicated

    def __repr__(self) -> str:
        return f"<AsyncResult {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AsyncResult) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    async def get(self, timeout: float | None = None) -> R_co:
        """The value that the task returned.

        Waits until the job has ended. Raises TaskFailed, JobCancelled or JobExpired when it ended without a value, and
        ResultExpired when the job is unknown or its result has expired. After `timeout` seconds it raises
        ResultTimeout, which has the reason: what the job waits for, or which executor runs it. The job goes on. With
        `timeout=0` it checks once, and waits only for the reply of Redis.
        """
        waiting = self._app.client.waiting
        if timeout is not None and is_over(timeout):
            found = await waiting.look(self.id)
            if found is None:
                raise ResultTimeout(self.id, timeout)
            return value_of(self._app, self.id, self._returns, found)
        if timeout is None:
            return value_of(self._app, self.id, self._returns, await waiting.end_of(self.id))
        ended = await self._app.client.end_within(self.id, timeout)
        if ended is None:
            reason = await self._app.client.why_not_ended(self.id, timeout)
            raise ResultTimeout(self.id, timeout, reason)
        return value_of(self._app, self.id, self._returns, ended)

    async def status(self) -> Status:
        """The current status of the job."""
        return await self._app.client.converse(status_of(self._app, self.id))

    async def info(self) -> JobInfo | None:
        """Everything known about the job, or None when it has no record."""
        return await self._app.client.info(self.id)

    async def history(self) -> list[Event]:
        """The events that made the job run more than once: failed tries, recoveries, releases, replays, the oldest
        first."""
        return await self._app.client.history(self.id)

    async def progress(self) -> Progress | None:
        """The latest progress that the task has reported; None when it has reported none. A job that has ended keeps
        its last progress as long as its record."""
        return shown_progress(await self._app.client.converse(progress_of(self._app, self.id)))

    async def watch(self) -> AsyncGenerator[Progress]:
        """Yields the latest progress of the job, then newer ones, until the job has ended: `async for progress in
        result.watch()`. It does not raise when the job fails or is unknown; call `get` afterwards for its result."""
        client, newest = self._app.client, Newest()
        async with aclosing(client.waiting.follow(self.id)) as reports:
            async for reported in reports:
                if (progress := newest.news_in(reported)) is not None:
                    yield progress
        # The end may have been found by a look, and the last message may be lost.
        if (last := newest.news_in(await client.converse(progress_of(self._app, self.id)))) is not None:
            yield last

    async def cancel(self, reason: str = "cancelled", *, wait: float = 5.0) -> bool:
        """Cancel the job. Returns True if it is cancelled: it will not run, or it has stopped.

        A job that has not started is cancelled at once. One that is running is asked to stop: an `async def` task gets
        a CancelledError, and `job.cancelled` is the reason. Then the method waits at most `wait` seconds for its end;
        with `wait=0` it returns False at once. The request stays with the job, so the job does not run again even if
        the caller stops waiting. If the task returns a value nevertheless, the job has succeeded. Returns False also
        for a job that has ended in another way, and for one that is unknown.
        """
        client, deadline = self._app.client, deadline_of(wait)
        answer = await client.converse(cancel(self._app, self.id, reason))
        if answer != ASKED:
            return answer == CANCELLED
        try:
            while (left := deadline - clock.monotonic()) > 0:
                ended = await client.end_within(self.id, min(left, ASK_AGAIN))
                if ended is not None:
                    return was_cancelled(ended)
                answer = await client.converse(cancel(self._app, self.id, reason))
            if answer == TOO_LATE:  # it has ended at the last moment
                ended = await client.waiting.look(self.id)
                return ended is not None and was_cancelled(ended)
        except ResultExpired:
            return False  # it has ended, and nothing is known of its end any more
        return answer == CANCELLED


# Conversations about a job, for code with and without an event loop


def status_of(app: App, job_id: str) -> Talk[Status]:
    """The current status of a job."""
    return (yield from ask(verbs.jobs.status(*_place(app, job_id))))


def info_of(app: App, job_id: str) -> Talk[JobInfo | None]:
    """Everything known about a job, and why it waits; None when it has no record."""
    return (yield from reasons.known_of(*_place(app, job_id)))


def record_of(app: App, job_id: str) -> Talk[JobInfo | None]:
    """The record of a job, or None. For lists of jobs: without the reason why it waits, which needs more steps."""
    keys, key = _place(app, job_id)
    info = yield from ask(verbs.jobs.record(keys, key))
    return info and (yield from with_due(keys, info))


def with_due(keys: QueueKeys, info: JobInfo) -> Talk[JobInfo]:
    """The same job, with the time at which it is due if it waits for that."""
    if info.place not in ("sched", "retry"):
        return info
    due = yield from ask(verbs.jobs.due(keys, info.place, split_id(info.id)[1]))
    return info if due is None else replace(info, due_at=clock.from_ms(due))


def history_of(app: App, job_id: str) -> Talk[list[Event]]:
    """The events that made a job run more than once, the oldest first."""
    return (yield from ask(verbs.jobs.history(*_place(app, job_id))))


def progress_of(app: App, job_id: str) -> Talk[Reported | None]:
    """The latest report of a job's progress."""
    return (yield from ask(verbs.jobs.progress(*_place(app, job_id))))


def shown_progress(reported: Reported | None) -> Progress | None:
    """The progress in a report."""
    return None if reported is None else reported.progress


def cancel(app: App, job_id: str, reason: str) -> Talk[int]:
    """Cancel a job, or ask it to stop if it is running: CANCELLED, ASKED, TOO_LATE or UNKNOWN. It may be repeated."""
    check_reason("reason", reason)
    keys, key = _place(app, job_id)
    (answer,) = yield from ask(verbs.jobs.cancel(keys, [key], app.lifetimes, reason))
    return answer


def deadline_of(wait: float) -> float:
    """When a caller stops waiting for the end of a job that it has asked to stop."""
    return -math.inf if is_over(wait, "wait") else clock.monotonic() + wait


def was_cancelled(ended: Ended) -> bool:
    """Whether a job has ended as cancelled."""
    return ended.envelope.startswith(_CANCELLED)


def _place(app: App, job_id: str) -> tuple[QueueKeys, str]:
    queue, key = split_id(job_id)
    return queue_keys(app.namespace, queue), key


def value_of(app: App, job_id: str, returns: ResultCodec[R] | None, ended: Ended) -> R:
    """The value in an envelope; raises the exception that the envelope describes."""
    envelope = ended.envelope
    if returns is None:
        task = app.tasks.get(ended.task or "")
        returns = task.returns if task else ANY_RESULT
    if not envelope:
        return returns.decode(b"") if returns.is_none else returns.decode(b"null")
    if envelope.startswith(_OK):
        return returns.decode(envelope[len(_OK) : -1])
    end: dict[str, Any] = orjson.loads(envelope)
    if "ok" in end:
        return returns.decode(orjson.dumps(end["ok"]))
    if "cancelled" in end:
        raise (
            JobExpired(job_id) if end["cancelled"] == "expired" else JobCancelled(job_id, end["cancelled"])
        )
    failure, tries = failure_from_wire(orjson.dumps(end.get("dead")))
    raise TaskFailed(job_id, failure.error_type, failure.message, failure.traceback, tries)
