"""Turns jobs into one verb: one and many are the same path, coalesced with what is sent at the same time."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from fennelq import clock, reasons
from fennelq.broker import verbs
from fennelq.broker.batch import Batcher, pages
from fennelq.broker.broker import Broker
from fennelq.broker.keys import QueueKeys, queue_keys
from fennelq.broker.patience import Patience
from fennelq.broker.talk import Finding, Finds, Pause, Round, Talk
from fennelq.broker.trouble import ReplyError
from fennelq.broker.verb import Command, Step, Verb
from fennelq.errors import BrokerUnavailable, DuplicateJob, EnqueueFailed, FennelqError
from fennelq.model.job import Event, JobInfo, split_id
from fennelq.model.wire import AnyWireJob, WireJob
from fennelq.result import AsyncResult, history_of, info_of
from fennelq.waiting import Waiting

if TYPE_CHECKING:
    from fennelq.app import App

A = TypeVar("A")
R = TypeVar("R")

Answer = int | bytes
_SENT_AT_ONCE = 1000
_NOTED_FOR = 60.0
_ASKING_WHY = 20
"""Of thousands of waiters whose time is over at once, so many are told what their jobs wait for."""


class Client:
    """The sending side of an app on one event loop."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.broker = Broker(app.address)
        self.waiting = Waiting(app.namespace, self.broker, patience=app.settings.enqueue_timeout)
        self._outgoing: Batcher[_Given, Answer] = Batcher(self._send, _SENT_AT_ONCE)
        self._answered = 0.0
        self._asking_why = 0

    async def send(self, job: WireJob[R]) -> AsyncResult[R]:
        """Send one job, together with whatever else is sent in this turn of the loop."""
        return self._handle(job, await self._outgoing.submit(_Given(job, clock.monotonic())))

    async def send_all(self, jobs: Sequence[WireJob[R]]) -> list[AsyncResult[R]]:
        """Send many; when some are refused the others are sent, and EnqueueFailed tells them apart."""
        now = clock.monotonic()
        sending = [self._outgoing.submit(_Given(job, now)) for job in jobs]
        answers = await asyncio.gather(*sending, return_exceptions=True)
        handles: list[AsyncResult[R] | None] = [None] * len(jobs)
        failures: dict[int, Exception] = {}
        for place, (job, answer) in enumerate(zip(jobs, answers, strict=True)):
            try:
                handles[place] = self._handle(job, answer)
            except FennelqError as error:
                failures[place] = error
        if failures:
            raise joined(jobs, handles, failures)
        return [handle for handle in handles if handle is not None]

    async def run(self, verb: Verb[A]) -> A:
        """Say a verb that may be said twice; raises BrokerUnavailable when Redis does not answer."""
        return await self._patiently(lambda patience: self.broker.run(verb, patience.left()))

    async def ask(self, command: Command[A]) -> A:
        """Ask for something that changes nothing; raises BrokerUnavailable when Redis does not answer."""
        return await self._patiently(lambda patience: self.broker.ask(command, patience.left()))

    async def hold(self, talk: Talk[A]) -> A:
        """Run a conversation, step by step; raises BrokerUnavailable when Redis does not answer."""
        return await _held(talk, self._replies)

    async def each(self, finding: Finding[A]) -> AsyncIterator[A]:
        """Run a conversation and yield what it hands out, as it comes."""
        finds = Finds(finding)
        with closing(finding):
            while (found := await self.hold(finds.next())) is not None:
                yield found

    async def info(self, job_id: str) -> JobInfo | None:
        """Everything known about a job, or None."""
        return await self.hold(info_of(self.app, job_id))

    async def why_not_ended(self, job_id: str, timeout: float) -> str | None:
        """What a job waits for, or who runs it, for a caller who has waited this long; None when that cannot be found
        out at once."""
        queue, key = split_id(job_id)
        if self._asking_why >= _ASKING_WHY:
            return None
        self._asking_why += 1
        try:
            async with asyncio.timeout(reasons.within(timeout)):
                return await _held(reasons.of_timeout(self.keys(queue), key), self._asked_once)
        except Exception:
            return None
        finally:
            self._asking_why -= 1

    async def history(self, job_id: str) -> list[Event]:
        """The unusual things that happened to a job."""
        return await self.hold(history_of(self.app, job_id))

    def keys(self, queue: str) -> QueueKeys:
        """The keys of a queue of this app."""
        return queue_keys(self.app.namespace, queue)

    async def close(self) -> None:
        """Send what is under way, then end every connection."""
        await self._outgoing.drain()
        await self.waiting.close()
        await self.broker.close()

    def _handle(self, job: WireJob[R], answer: Answer | BaseException) -> AsyncResult[R]:
        if isinstance(answer, BaseException):
            raise answer
        if answer == -1:
            raise DuplicateJob(job.id, job.task)
        if isinstance(answer, bytes):
            return AsyncResult(self.app, f"{job.queue}:{answer.decode()}", job.returns, deduplicated=True)
        return AsyncResult(self.app, job.id, job.returns, deduplicated=answer == 2)

    async def _send(self, batch: list[_Given]) -> list[Answer | BaseException]:
        by_queue: defaultdict[str, list[int]] = defaultdict(list)
        for place, (job, _) in enumerate(batch):
            by_queue[job.queue].append(place)
        answers: list[Answer | BaseException | None] = [None] * len(batch)
        for queue, places in by_queue.items():
            try:
                await self._send_queue(queue, places, batch, answers)
            except Exception as error:
                # It concerns this queue. What was sent before has its answers, and the other queues go on.
                for i in places:
                    if answers[i] is None:
                        answers[i] = not_sent(batch[i].job, error)
        return cast("list[Answer | BaseException]", answers)

    async def _send_queue(
        self, queue: str, places: list[int], batch: list[_Given], answers: list[Answer | BaseException | None]
    ) -> None:
        for page in pages(places, lambda i: batch[i].job.size, verbs.jobs.MOST_JOBS, verbs.jobs.MOST_BYTES):
            said = await self._say(self.keys(queue), [batch[i].job for i in page], batch[page[0]].since)
            for i, answer in zip(page, said, strict=True):
                answers[i] = answer

    async def _replies(self, said: Round) -> list[Any] | None:
        if isinstance(said, Pause):
            await asyncio.sleep(said.seconds)
            return None
        if len(said) == 1:
            return [await self._reply(said[0])]
        # One by one, and still one round trip: the link sends what is asked for in one turn of the loop together.
        return await asyncio.gather(*map(self._reply, said))

    async def _asked_once(self, said: Round) -> list[Any] | None:
        """Without patience, for what is worth little when it takes long."""
        assert not isinstance(said, Pause)
        sent = (self.broker.run(step) if isinstance(step, Verb) else self.broker.ask(step) for step in said)
        return await asyncio.gather(*sent)

    async def _reply(self, step: Step[A]) -> A:
        return await (self.run(step) if isinstance(step, Verb) else self.ask(step))

    async def _patiently(self, attempt: Callable[[Patience], Awaitable[A]], since: float | None = None) -> A:
        """Try until it works, the trouble is not a passing one, or `enqueue_timeout` is over."""
        patience = Patience(self.app.settings.enqueue_timeout, self.app.address, since)
        while True:
            try:
                return await attempt(patience)
            except Exception as error:
                pause = patience.pause_after(error)
            await asyncio.sleep(pause)

    async def _say(
        self, keys: QueueKeys, jobs: list[AnyWireJob], since: float
    ) -> Sequence[Answer | BaseException]:
        """Say it until it is answered or time is up. Saying it twice is harmless: a job is created once.

        Time counts from the call or the last answer: a long batch may take long, but does not wait for each page anew.
        """
        since = max(since, self._answered)
        try:
            return await self._patiently(lambda patience: self._say_once(keys, jobs, patience), since)
        except BrokerUnavailable as error:
            return [error.concerning([job]) for job in jobs]
        except Exception as error:
            return await self._one_by_one(keys, jobs, since, error)

    async def _say_once(self, keys: QueueKeys, jobs: list[AnyWireJob], patience: Patience) -> list[Answer]:
        if self.app.noted.is_due(keys.queue):
            await self._note(keys.queue, patience)
        answers = await self.broker.run(verbs.jobs.enqueue(keys, jobs), patience.left())
        self._answered = clock.monotonic()
        return answers

    async def _one_by_one(
        self, keys: QueueKeys, jobs: list[AnyWireJob], since: float, error: Exception
    ) -> Sequence[Answer | BaseException]:
        """The script failed: find out whose fault it is, so that each caller gets an answer of its own."""
        if len(jobs) == 1:
            return [not_sent(jobs[0], error)]
        return [answer for job in jobs for answer in await self._say(keys, [job], since)]

    async def _note(self, queue: str, patience: Patience) -> None:
        await self.broker.ask(verbs.queues.note_queues(self.app.namespace, [queue]), patience.left())
        self.app.noted.done(queue)


async def _held(talk: Talk[A], replies: Callable[[Round], Awaitable[list[Any] | None]]) -> A:
    """What a conversation returns. An error of a step is raised in the conversation, which may know what to do."""
    with closing(talk):
        try:
            said = talk.send(None)
            while True:
                try:
                    received = await replies(said)
                except Exception as error:
                    said = talk.throw(error)
                else:
                    said = talk.send(received)
        except StopIteration as end:
            return cast("A", end.value)


class _Given(NamedTuple):
    """A job to be sent, and when it was asked for."""

    job: AnyWireJob
    since: float


class NotedQueues:
    """When each queue was last put on the app's list, where workers that serve every queue find it. It is
    said again now and then, lest a flush of Redis hides a queue for good."""

    def __init__(self) -> None:
        self._noted: dict[str, float] = {}

    def is_due(self, queue: str) -> bool:
        """Whether it is time to say it (again)."""
        return self._noted.get(queue, -_NOTED_FOR) + _NOTED_FOR <= clock.monotonic()

    def done(self, queue: str) -> None:
        """It has been said."""
        self._noted[queue] = clock.monotonic()


def not_sent(job: AnyWireJob, error: Exception) -> FennelqError:
    """The error of one job of a batch, so that the others keep their own answers."""
    reason = (
        f"Redis refused job {job.id}" if isinstance(error, ReplyError) else f"job {job.id} cannot be sent"
    )
    refused = FennelqError(f"{reason}: {error}")
    refused.__cause__ = error
    return refused


def joined(jobs: Sequence[WireJob[R]], handles: Sequence[Any], failures: dict[int, Exception]) -> Exception:
    """One error for a bulk call: the only job's, a BrokerUnavailable with all unsent jobs, or an account."""
    if len(jobs) == 1:
        return failures[0]
    outages = [error for error in failures.values() if isinstance(error, BrokerUnavailable)]
    if len(outages) == len(failures):
        return outages[0].concerning([jobs[i] for i in failures])
    return EnqueueFailed(failures, handles)
