"""The same tasks for code without an event loop: scripts, Django views, threads, forked processes.

Verbs are values, so this is only another way to say them: no event loop in a hidden thread, nothing a fork
breaks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack, cast

from fennelq import clock
from fennelq.broker.batch import pages
from fennelq.broker.broker import ANSWER_TIMEOUT
from fennelq.broker.inbox import Ticket, process_name
from fennelq.broker.keys import QueueKeys, channel_name, queue_keys
from fennelq.broker.patience import Patience
from fennelq.broker.trouble import ReplyError, refuses_to_publish
from fennelq.broker.verb import Command, Verb
from fennelq.broker.verbs import inspect, lifecycle, presence
from fennelq.client import Answer, joined, not_sent
from fennelq.errors import BrokerUnavailable, DuplicateJob, FennelqError, ResultTimeout
from fennelq.model.codec import ResultCodec
from fennelq.model.job import Job, JobInfo, Status, split_id
from fennelq.result import value_of
from fennelq.usage import jobs_given
from fennelq.waiting import FIRST_POLL, LONGEST_POLL, RECHECK, Ended, Look, ended, report_refusal

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.model.options import OptionArgs
    from fennelq.task import Task

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
A = TypeVar("A")

_SHORTEST_LOOK = 0.05


class BlockingTask(Generic[P, R]):
    """A task whose `delay()` blocks the calling thread instead of being awaited."""

    def __init__(self, task: Task[P, R]) -> None:
        self._task = task

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> BlockingResult[R]:
        """Send a call. When this returns, the job is in Redis and will not be lost."""
        return enqueue(self._task.app, [self._task.job(*args, **kwargs)])[0]

    def map(self, *columns: Iterable[Any]) -> list[BlockingResult[R]]:
        """Send one call for each element, like the built-in `map`."""
        return enqueue(self._task.app, self._task.jobs(*columns))

    def options(self, **options: Unpack[OptionArgs]) -> BlockingTask[P, R]:
        """The same task with other options."""
        return BlockingTask(self._task.options(**options))


class BlockingResult(Generic[R_co]):
    """The handle of a job, for code without an event loop."""

    __slots__ = ("_app", "_returns", "deduplicated", "id")

    def __init__(
        self, app: App, job_id: str, returns: ResultCodec[R_co] | None, *, deduplicated: bool = False
    ) -> None:
        self._app, self._returns = app, returns
        self.id = job_id
        self.deduplicated = deduplicated

    def __repr__(self) -> str:
        return f"<BlockingResult {self.id}>"

    def get(self, timeout: float | None = None) -> R_co:
        """What the task returned; raises as `AsyncResult.get` does."""
        return value_of(self._app, self.id, self._returns, _end_of(self._app, self.id, timeout))

    def status(self) -> Status:
        """Where the job is in its life."""
        keys, key = _place(self._app, self.id)
        return _ask(self._app, inspect.status(keys, key))

    def info(self) -> JobInfo | None:
        """Everything known about the job, or None when there is no record of it."""
        keys, key = _place(self._app, self.id)
        info = _ask(self._app, inspect.record(keys, key))
        if info is None or info.place not in ("sched", "retry"):
            return info
        due = _ask(self._app, inspect.due(keys, info.place, key))
        return info if due is None else replace(info, due_at=clock.from_ms(due))

    def cancel(self) -> bool:
        """True if the job will not run: it had not started, and now it never will."""
        keys, key = _place(self._app, self.id)
        return _run(self._app, lifecycle.cancel(keys, [key], self._app.lifetimes))[0] == 1


def enqueue(app: App, jobs: Iterable[Job[R]]) -> list[BlockingResult[R]]:
    """Send any number of jobs; as `App.enqueue`."""
    every = jobs_given("enqueue", jobs)
    _ = app.blocking  # a mistake in the configuration concerns all of them: it is raised as it is
    handles: list[BlockingResult[R] | None] = [None] * len(every)
    failures: dict[int, Exception] = {}
    for place, (job, answer) in enumerate(zip(every, _Sending(app, every).answers(), strict=True)):
        try:
            handles[place] = _handle(app, job, answer)
        except FennelqError as error:
            failures[place] = error
    if failures:
        raise joined(every, handles, failures)
    return [handle for handle in handles if handle is not None]


class _Sending(Generic[R]):
    """One call of `enqueue`: an answer for each of its jobs."""

    def __init__(self, app: App, jobs: list[Job[R]]) -> None:
        self._app, self._jobs = app, jobs
        self._answers: list[Answer | FennelqError | None] = [None] * len(jobs)
        self._outage: BrokerUnavailable | None = None

    def answers(self) -> list[Answer | FennelqError]:
        """Send them all, queue by queue and page by page."""
        jobs = self._jobs
        for queue in dict.fromkeys(job.queue for job in jobs):
            places = [i for i, job in enumerate(jobs) if job.queue == queue]
            try:
                for page in pages(places, lambda i: jobs[i].size, lifecycle.MOST_JOBS, lifecycle.MOST_BYTES):
                    self._send(queue_keys(self._app.namespace, queue), page)
            except Exception as error:
                # It concerns this queue. What was sent before has its answers, and the other queues go on.
                for i in places:
                    if self._answers[i] is None:
                        self._answers[i] = not_sent(jobs[i], error)
        return cast("list[Answer | FennelqError]", self._answers)

    def _send(self, keys: QueueKeys, page: list[int]) -> None:
        try:
            answers: Sequence[Answer | FennelqError] = self._say(keys, [self._jobs[i] for i in page])
        except BrokerUnavailable as outage:
            self._outage = outage
            answers = [BrokerUnavailable(outage.reason, [self._jobs[i]]) for i in page]
        except Exception as error:
            if len(page) > 1:
                # The script failed: find out whose fault it is, so that each job gets an answer of its own.
                for i in page:
                    self._send(keys, [i])
                return
            answers = [not_sent(self._jobs[page[0]], error)]
        for i, answer in zip(page, answers, strict=True):
            self._answers[i] = answer

    def _say(self, keys: QueueKeys, jobs: list[Job[R]]) -> list[Answer]:
        if self._outage is not None:
            # Patience is for the whole call, not for each page of it.
            raise self._outage
        noted = self._app.noted
        if noted.is_due(keys.queue):
            _ask(self._app, presence.note_queues(self._app.namespace, [keys.queue]))
            noted.done(keys.queue)
        return _run(self._app, lifecycle.enqueue(keys, jobs))


def _handle(app: App, job: Job[R], answer: Answer | FennelqError) -> BlockingResult[R]:
    if isinstance(answer, FennelqError):
        raise answer
    if answer == -1:
        raise DuplicateJob(job.id, job.task)
    if isinstance(answer, bytes):
        return BlockingResult(app, f"{job.queue}:{answer.decode()}", job.returns, deduplicated=True)
    return BlockingResult(app, job.id, job.returns, deduplicated=answer == 2)


def _end_of(app: App, job_id: str, timeout: float | None) -> Ended:
    """Subscribe, then look: an end in between is a message. Looking again makes up for a lost one."""
    keys, key = _place(app, job_id)
    if timeout is not None and timeout <= 0:
        answer = _look(app, keys, key, "", Patience(app.settings.enqueue_timeout))
        if (found := ended(job_id, answer)) is None:
            raise ResultTimeout(job_id, timeout)
        return found
    deadline = math.inf if timeout is None else clock.monotonic() + timeout
    channel = channel_name(app.namespace, process_name())
    with app.blocking.inbox.wait_for(channel, job_id) as ticket:
        pauses = _pauses()
        while True:
            try:
                found = _look_and_wait(app, keys, key, ticket, deadline, pauses)
            except BrokerUnavailable:
                if clock.monotonic() < deadline:
                    raise
                found = None
            if found is not None:
                return found
            if clock.monotonic() >= deadline:
                raise ResultTimeout(job_id, timeout or 0.0)


def _look_and_wait(
    app: App, keys: QueueKeys, key: str, ticket: Ticket, deadline: float, pauses: Iterator[float]
) -> Ended | None:
    # A very short timeout still leaves the time to look once.
    patience = Patience(min(app.settings.enqueue_timeout, max(deadline - clock.monotonic(), _SHORTEST_LOOK)))
    hearing = _subscribed(app, ticket, patience)
    answer = _look(app, keys, key, ticket.channel if hearing else "", patience)
    if (found := ended(f"{keys.queue}:{key}", answer)) is not None:
        return found
    left = max(0.0, deadline - clock.monotonic())
    if not hearing:
        time.sleep(min(next(pauses), left))
        return None
    message = ticket.message(min(RECHECK, left))
    return None if message is None else Ended(answer[1], message.partition(b"\n")[2])


def _subscribed(app: App, ticket: Ticket, patience: Patience) -> bool:
    """Whether messages are heard; False when the server refuses the subscription, and has to be polled."""

    def subscribe(left: float) -> bool:
        try:
            ticket.open(left)
        except ReplyError as error:
            if not refuses_to_publish(error):
                raise
            report_refusal(app.namespace, error)
            return False
        return True

    return _patiently(patience, subscribe)


def _look(app: App, keys: QueueKeys, key: str, channel: str, patience: Patience) -> Look:
    watch = lifecycle.watch(keys, channel, [key])
    return _patiently(patience, lambda left: app.blocking.run(watch, left))[0]


def _pauses() -> Iterator[float]:
    """Seconds between two looks where nothing is heard."""
    pause = FIRST_POLL
    while True:
        yield pause
        pause = min(pause * 2, LONGEST_POLL)


def _place(app: App, job_id: str) -> tuple[QueueKeys, str]:
    queue, key = split_id(job_id)
    return queue_keys(app.namespace, queue), key


def _run(app: App, verb: Verb[A]) -> A:
    return _patiently(Patience(app.settings.enqueue_timeout), lambda left: app.blocking.run(verb, left))


def _ask(app: App, command: Command[A]) -> A:
    return _patiently(Patience(app.settings.enqueue_timeout), lambda left: app.blocking.ask(command, left))


def _patiently(patience: Patience, attempt: Callable[[float], A]) -> A:
    """Try until it works, the trouble is not a passing one, or the time is up."""
    while True:
        try:
            return attempt(min(patience.left(), ANSWER_TIMEOUT))
        except Exception as error:
            pause = patience.pause_after(error)
        time.sleep(pause)
