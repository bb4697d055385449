"""The sending side on one event loop. One job and many take the same path; calls of the same moment share a batch.

Operations that need several steps with Redis are conversations, which `fennelq.sync.sync` runs as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import closing
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fennelq import clock
from fennelq.broker.dispatch import dispatch
from fennelq.broker.group_commit import GroupCommit
from fennelq.broker.keys import QueueKeys, queue_keys
from fennelq.broker.noting import noted
from fennelq.broker.patience import Patience
from fennelq.broker.talk import Finding, Finds, Talk, ask, patient, pause
from fennelq.broker.trouble import ReplyError, Trouble, classify
from fennelq.broker.verb import Step
from fennelq.errors import (
    BrokerUnavailable,
    DuplicateJob,
    EnqueueFailed,
    FennelqError,
    QueueFull,
    QueuePaused,
)
from fennelq.middleware import within
from fennelq.model.events import JobSent
from fennelq.model.job import AnyJob, Event, JobInfo
from fennelq.model.pause import QueuePause
from fennelq.model.wire import AnyWireJob, WireJob
from fennelq.result import AsyncResult, history_of, info_of
from fennelq.room import Attempts, creating, found_full, full
from fennelq.waiting import reasons
from fennelq.waiting.looks import Ended
from fennelq.waiting.waiting import Waiting

if TYPE_CHECKING:
    from fennelq.app import App

A = TypeVar("A")
R = TypeVar("R")
H = TypeVar("H")

Answer = int | bytes | list[bytes] | list[int]
"""The reply of `enqueue` about a job."""
Reply = Answer | Exception
"""The same, or the error because of which the job was not sent."""
_queue: Callable[[AnyWireJob], str] = attrgetter("queue")
_size: Callable[[AnyWireJob], int] = attrgetter("size")
_SENT_AT_ONCE = 1000
_ASKING_WHY = 20
"""The most waiters that look up their reason at a time: each lookup takes two round trips, and the timeouts of
thousands of waiters may be over at once."""


class Client:
    """The sending side of an app on one event loop."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.broker = app.wiring.broker(app.address)
        self.waiting = Waiting(
            app.namespace, self.broker, app.lifetimes, patience=app.settings.enqueue_timeout
        )
        self._outgoing: GroupCommit[Given, Answer] = GroupCommit(self._send, _SENT_AT_ONCE)
        self._replied = 0.0
        self._asking_why = 0

    def send(self, job: WireJob[R]) -> Coroutine[Any, Any, AsyncResult[R]]:
        """Send one job, in one batch with all others that are sent in this turn of the loop."""
        surrounding = self.app.middleware.surrounding
        if surrounding is None:
            return self._send_one(job)
        return within(surrounding, [job], partial(self._send_one, job))

    def send_all(self, jobs: Sequence[WireJob[R]]) -> Coroutine[Any, Any, list[AsyncResult[R]]]:
        """Send many jobs. When some are refused, the others are sent, and it raises EnqueueFailed."""
        surrounding = self.app.middleware.surrounding
        if surrounding is None or not jobs:
            return self._send_many(jobs)
        return within(surrounding, jobs, partial(self._send_many, jobs))

    async def _send_one(self, job: WireJob[R]) -> AsyncResult[R]:
        if (senders := self.app.middleware.senders) is not None:
            job = senders.through(job)
        now = clock.monotonic()
        try:
            reply = await self._outgoing.submit(Given(job, now))
        except Exception as error:
            return handle_of(AsyncResult, self.app, job, error)
        if isinstance(reply, list) and found_full(reply):
            (last,) = await self._until_there_is_room([job], now, [reply])
            return handle_of(AsyncResult, self.app, job, last)
        return handle_of(AsyncResult, self.app, job, reply)

    async def _send_many(self, jobs: Sequence[WireJob[R]]) -> list[AsyncResult[R]]:
        if (senders := self.app.middleware.senders) is not None:
            jobs = senders.through_all(jobs)
        now = clock.monotonic()
        sending = [self._outgoing.submit(Given(job, now)) for job in jobs]
        replies = await asyncio.gather(*sending, return_exceptions=True)
        if self.app.bounds and any(map(found_full, replies)):
            replies = await self._until_there_is_room(jobs, now, replies)
        return handles_of(partial(handle_of, AsyncResult, self.app), jobs, replies)

    async def converse(self, talk: Talk[A]) -> A:
        """Run a conversation, step by step; raises BrokerUnavailable when Redis does not reply."""
        return await self.broker.converse(patient(talk, self._patience()))

    async def ask(self, step: Step[A]) -> A:
        """Run one step, which may be repeated; raises BrokerUnavailable when Redis does not reply."""
        return await self.converse(ask(step))

    async def each(self, finding: Finding[A]) -> AsyncIterator[A]:
        """Run a conversation and yield each value as soon as it is found."""
        finds = Finds(finding)
        with closing(finding):
            while (found := await self.converse(finds.next())) is not None:
                yield found

    async def info(self, job_id: str) -> JobInfo | None:
        """Everything known about a job, or None."""
        return await self.converse(info_of(self.app, job_id))

    async def history(self, job_id: str) -> list[Event]:
        """The events that made a job run more than once, the oldest first."""
        return await self.converse(history_of(self.app, job_id))

    async def end_within(self, job_id: str, seconds: float) -> Ended | None:
        """How a job has ended; None when it goes on for longer than this. Raises ResultExpired when the job is unknown
        or its result has expired."""
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await self.waiting.end_of(job_id)
        except TimeoutError:
            if not limit.expired():
                raise
            return None

    async def why_not_ended(self, job_id: str, timeout: float) -> str | None:
        """The reason why a job has not ended, for a caller who has waited this long: what it waits for, or which
        executor runs it. With very many callers at once, a text that names where to look."""
        if self._asking_why >= _ASKING_WHY:
            return reasons.NOT_LOOKED_UP
        self._asking_why += 1
        try:
            return await self.broker.converse(reasons.after_timeout(self.app, job_id, timeout))
        finally:
            self._asking_why -= 1

    def keys(self, queue: str) -> QueueKeys:
        """The keys of a queue of this app."""
        return queue_keys(self.app.namespace, queue)

    async def close(self) -> None:
        """Finish the calls under way, then close every connection."""
        await self._outgoing.drain()
        await self.app.subscribers.drain()
        await self.waiting.close()
        await self.broker.close()

    async def _until_there_is_room(
        self, jobs: Sequence[AnyWireJob], since: float, replies: Sequence[Reply | BaseException]
    ) -> list[Reply | BaseException]:
        """The final replies about jobs of which some met a full queue. It waits outside of the batches, so calls for
        other queues go on."""
        attempts, final = Attempts(self.app, jobs, since), list(replies)
        while places := attempts.next(final):
            await asyncio.sleep(attempts.pause())
            sending = [self._outgoing.submit(Given(jobs[place], attempts.since)) for place in places]
            received = await asyncio.gather(*sending, return_exceptions=True)
            for place, reply in zip(places, received, strict=True):
                final[place] = reply
        return attempts.final(final)

    async def _send(self, batch: list[Given]) -> list[Reply]:
        # Time counts from the call or from the last reply. So a long batch may take long, and yet a page does not get
        # the whole time anew when the server did not reply to the page before it.
        patience = self._patience(max(batch[0].since, self._replied))
        if len(batch) == 1 and (reply := await self._send_alone(batch[0].job, patience)) is not None:
            return [reply]
        jobs = [given.job for given in batch]
        replies = await self.broker.converse(patient(sent(self.app, jobs), patience))
        self._replied = patience.since
        # The oldest call of a batch sets its deadline: later calls have time left.
        timeout = self.app.settings.enqueue_timeout
        left = [place for place, reply in enumerate(replies) if batch[place].has_time_left(reply, timeout)]
        if left:
            for place, reply in zip(left, await self._send([batch[place] for place in left]), strict=True):
                replies[place] = reply
        return replies

    async def _send_alone(self, job: AnyWireJob, patience: Patience) -> Reply | None:
        """Send a single job without a conversation, which would take a tenth of the CPU time of a lone `delay()`. It
        returns None when the conversation must send the job: for the first time, or again after an error that may
        pass."""
        if self.app.noted.is_due(job.queue):
            return None
        try:
            replies = await self.broker.run(creating(self.app, job.queue, [job]), patience.left())
        except Exception as error:
            return await _refusal(job, error, patience)
        self._replied = clock.monotonic()
        reply: Reply = replies[0]
        return reply

    def _patience(self, since: float | None = None) -> Patience:
        return Patience(self.app.settings.enqueue_timeout, self.app.address, since)


async def _refusal(job: AnyWireJob, error: Exception, patience: Patience) -> Exception | None:
    """The error of a job that could not be sent. None when the error may pass: then it is time for the next attempt,
    and the patience knows the error, which is the cause if no attempt succeeds."""
    if isinstance(error, BrokerUnavailable):
        return _not_sent(job, error)  # no time was left for the first attempt
    trouble = classify(error)
    if not trouble.passes:
        return _not_sent(job, patience.verdict(error))
    if trouble is Trouble.CONNECTION:
        # Without a pause: most often an idle connection was cut, and the next attempt makes a new one.
        patience.remember(error)
    else:
        await asyncio.sleep(patience.pause_after(error))
    return None


class Given(NamedTuple):
    """A job to be sent, and the time of the call."""

    job: AnyWireJob
    since: float

    def has_time_left(self, reply: Reply, timeout: float) -> bool:
        """Whether this reply means that the job was not sent, and its own call has time left."""
        unavailable = isinstance(reply, BrokerUnavailable) and reply.retriable
        return unavailable and self.since + timeout > clock.monotonic()


# Sending, with an event loop or without


def sent(app: App, jobs: Sequence[AnyWireJob]) -> Talk[list[Reply]]:
    """Send jobs; returns the reply or the error for each. Sending a job twice is harmless: it is created once."""

    def enqueue(queue: str, page: list[AnyWireJob]) -> Talk[Sequence[Answer]]:
        if app.noted.is_due(queue):
            yield from noted(app.namespace, [queue])
            app.noted.done(queue)
        return (yield from ask(creating(app, queue, page)))

    replies = yield from dispatch(jobs, _queue, enqueue, _size)
    for place, reply in enumerate(replies):
        if isinstance(reply, Exception):
            replies[place] = _not_sent(jobs[place], reply)
    return replies


def sent_with_room(app: App, jobs: Sequence[AnyWireJob]) -> Talk[list[Reply]]:
    """Send jobs, and those again that met a full queue which is to be waited for."""
    since = clock.monotonic()
    replies = yield from sent(app, jobs)
    if not app.bounds:
        return replies
    attempts = Attempts(app, jobs, since)
    while places := attempts.next(replies):
        yield from pause(attempts.pause())
        received = yield from sent(app, [jobs[place] for place in places])
        for place, reply in zip(places, received, strict=True):
            replies[place] = reply
    return attempts.final(replies)


def handle_of(kind: Callable[..., H], app: App, job: WireJob[Any], reply: Reply | BaseException) -> H:
    """The handle of a job, made by `kind`; raises the error of a job that was refused."""
    if app.counting.on:
        app.counting.note_sent(job, reply)
    if isinstance(reply, BaseException):
        raise reply
    if reply == -1:
        raise DuplicateJob(job.id, job.task)
    if reply == 2 or isinstance(reply, bytes):
        _check_may_return(job, reply)
    if isinstance(reply, bytes):
        return kind(app, f"{job.queue}:{reply.decode()}", job.returns, deduplicated=True)
    if isinstance(reply, list):
        (why,) = reply
        raise full(app, job.queue, why, [job]) if isinstance(why, int) else refused(job.queue, why, [job])
    if app.subscribers.to_sent and reply != 2:
        app.subscribers.tell(JobSent(id=job.id, task=job.task, queue=job.queue))
    return kind(app, job.id, job.returns, deduplicated=reply == 2)


def _check_may_return(job: WireJob[Any], reply: Reply) -> None:
    """Raises DuplicateJob when a job of an earlier call is there, and the call is to raise then."""
    if job.carried.get("duplicate") == "raise":
        key = str(job.carried["idempotency"]).removeprefix(f"{job.task}:")
        raise DuplicateJob(
            f"{job.queue}:{reply.decode()}" if isinstance(reply, bytes) else job.id, job.task, key
        )


def refused(queue: str, pause: bytes, jobs: Sequence[AnyJob] = ()) -> QueuePaused:
    """The error of jobs that were not created because the queue is paused."""
    return QueuePaused(queue, QueuePause.from_wire(pause), jobs)


def handles_of(
    handle: Callable[[WireJob[R], Reply | BaseException], H],
    jobs: Sequence[WireJob[R]],
    replies: Sequence[Reply | BaseException],
) -> list[H]:
    """The handles of all jobs of one call. When some were refused, raises one error for the call."""
    handles: list[H | None] = [None] * len(jobs)
    failures: dict[int, Exception] = {}
    for place, (job, reply) in enumerate(zip(jobs, replies, strict=True)):
        try:
            handles[place] = handle(job, reply)
        except FennelqError as error:
            failures[place] = error
    if failures:
        raise _joined(jobs, handles, failures)
    return [handle for handle in handles if handle is not None]


def _joined(jobs: Sequence[WireJob[R]], handles: Sequence[Any], failures: dict[int, Exception]) -> Exception:
    """One error for a bulk call: that of its only job, a BrokerUnavailable or a QueueFull with all unsent jobs, a
    QueuePaused with all jobs, or EnqueueFailed."""
    if len(jobs) == 1:
        return failures[0]
    outages = [error for error in failures.values() if isinstance(error, BrokerUnavailable)]
    if len(outages) == len(failures):
        return outages[0].concerning([jobs[i] for i in failures])
    fulls = [error for error in failures.values() if isinstance(error, QueueFull)]
    if len(fulls) == len(failures) and len({error.queue for error in fulls}) == 1:
        return fulls[-1].concerning([jobs[i] for i in failures])
    pauses = [error for error in failures.values() if isinstance(error, QueuePaused)]
    if len(pauses) == len(jobs) and len({error.queue for error in pauses}) == 1:
        return pauses[0].concerning(jobs)
    return EnqueueFailed(failures, handles)


def _not_sent(job: AnyWireJob, error: Exception) -> FennelqError:
    """The error of one job of a batch. It is returned and not raised, so that the other jobs keep their replies."""
    if isinstance(error, BrokerUnavailable):
        return error.concerning([job])
    reason = (
        f"Redis refused job {job.id}" if isinstance(error, ReplyError) else f"job {job.id} cannot be sent"
    )
    refused = FennelqError(f"{reason}: {error}")
    refused.__cause__ = error
    return refused
