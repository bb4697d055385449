"""The same tasks for code without an event loop: scripts, Django views, threads, forked processes.

Verbs are values, so this is only another way to say them: no event loop in a hidden thread, nothing a fork
breaks.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack

from fennelq import clock
from fennelq.broker.batch import pages
from fennelq.broker.blocking import Subscription
from fennelq.broker.keys import QueueKeys, channel_name, queue_keys
from fennelq.broker.trouble import Trouble, classify
from fennelq.broker.verb import Command, Verb
from fennelq.broker.verbs import inspect, lifecycle, presence
from fennelq.client import Answer, joined
from fennelq.errors import BrokerUnavailable, DuplicateJob, FennelqError, ResultExpired, ResultTimeout
from fennelq.model.codec import ResultCodec
from fennelq.model.job import Job, JobInfo, Status, split_id
from fennelq.result import value_of
from fennelq.waiting import RECHECK, Ended

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.model.options import OptionArgs
    from fennelq.task import Task

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")


class BlockingTask(Generic[P, R]):
    """A task whose `delay()` blocks the calling thread instead of being awaited."""

    def __init__(self, task: Task[P, R]) -> None:
        self._task = task

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> BlockingResult[R]:
        """Send a call. When this returns, the job is in Redis and will not be lost."""
        return enqueue(self._task.app, [self._task.job(*args, **kwargs)])[0]

    def map(self, *columns: Iterable[Any]) -> list[BlockingResult[R]]:
        """Send one call for each element, like the built-in `map`."""
        job: Callable[..., Job[R]] = self._task.job
        return enqueue(self._task.app, [job(*args) for args in zip(*columns, strict=True)])

    def options(self, **options: Unpack[OptionArgs]) -> BlockingTask[P, R]:
        """The same task with other options."""
        return BlockingTask(self._task.options(**options))


class BlockingResult(Generic[R]):
    """The handle of a job, for code without an event loop."""

    __slots__ = ("_app", "_returns", "deduplicated", "id")

    def __init__(
        self, app: App, job_id: str, returns: ResultCodec[R] | None, *, deduplicated: bool = False
    ) -> None:
        self._app, self._returns = app, returns
        self.id = job_id
        self.deduplicated = deduplicated

    def __repr__(self) -> str:
        return f"<BlockingResult {self.id}>"

    def get(self, timeout: float | None = None) -> R:
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
    every = list(jobs)
    handles: list[BlockingResult[R] | None] = [None] * len(every)
    failures: dict[int, Exception] = {}
    for queue in dict.fromkeys(job.queue for job in every):
        places = [i for i, job in enumerate(every) if job.queue == queue]
        for page in pages(places, lambda i: every[i].size, lifecycle.MOST_JOBS, lifecycle.MOST_BYTES):
            _send(app, queue_keys(app.namespace, queue), every, page, handles, failures)
    if failures:
        raise joined(every, handles, failures)
    return [handle for handle in handles if handle is not None]


def _send(
    app: App,
    keys: QueueKeys,
    jobs: list[Job[R]],
    page: list[int],
    handles: list[BlockingResult[R] | None],
    failures: dict[int, Exception],
) -> None:
    try:
        if app.noted.is_due(keys.queue):
            _ask(app, presence.note_queues(app.namespace, [keys.queue]))
            app.noted.done(keys.queue)
        answers: list[Answer] = _run(app, lifecycle.enqueue(keys, [jobs[i] for i in page]))
    except BrokerUnavailable as error:
        failures.update({i: BrokerUnavailable(error.reason, [jobs[i]]) for i in page})
        return
    except Exception as error:
        if len(page) == 1:
            failures[page[0]] = FennelqError(f"Redis refused job {jobs[page[0]].id}: {error}")
        for i in page if len(page) > 1 else ():
            _send(app, keys, jobs, [i], handles, failures)
        return
    for i, answer in zip(page, answers, strict=True):
        if answer == -1:
            failures[i] = DuplicateJob(jobs[i].id, jobs[i].task)
        else:
            handles[i] = _handle(app, jobs[i], answer)


def _handle(app: App, job: Job[R], answer: Answer) -> BlockingResult[R]:
    if isinstance(answer, bytes):
        return BlockingResult(app, f"{job.queue}:{answer.decode()}", job.returns, deduplicated=True)
    return BlockingResult(app, job.id, job.returns, deduplicated=answer == 2)


def _end_of(app: App, job_id: str, timeout: float | None) -> Ended:
    """Subscribe, then look: an end in between is a message. Looking again makes up for a lost one."""
    keys, key = _place(app, job_id)
    channel = channel_name(app.namespace, os.urandom(9).hex())
    deadline = None if timeout is None else clock.monotonic() + timeout
    with app.blocking.subscription(channel) as subscription:
        while True:
            ended = _look(app, keys, key, channel, subscription, deadline)
            if ended is not None:
                return ended
            if deadline is not None and clock.monotonic() >= deadline:
                raise ResultTimeout(job_id, timeout or 0.0)


def _look(
    app: App, keys: QueueKeys, key: str, channel: str, subscription: Subscription, deadline: float | None
) -> Ended | None:
    left = RECHECK if deadline is None else min(RECHECK, max(0.0, deadline - clock.monotonic()))
    patience = app.settings.enqueue_timeout if deadline is None else left
    _patiently(patience, subscription.open)
    code, task, envelope = _patiently(
        patience, lambda: app.blocking.run(lifecycle.watch(keys, channel, [key]))
    )[0]
    if code == "end":
        return Ended(task, envelope or b"")
    if code == "gone":
        raise ResultExpired(f"{keys.queue}:{key}")
    message = subscription.message(left)
    return None if message is None else Ended(task, message.partition(b"\n")[2])


def _place(app: App, job_id: str) -> tuple[QueueKeys, str]:
    queue, key = split_id(job_id)
    return queue_keys(app.namespace, queue), key


def _run(app: App, verb: Verb[A]) -> A:
    return _patiently(app.settings.enqueue_timeout, lambda: app.blocking.run(verb))


def _ask(app: App, command: Command[A]) -> A:
    return _patiently(app.settings.enqueue_timeout, lambda: app.blocking.ask(command))


def _patiently(patience: float, attempt: Callable[[], A]) -> A:
    """Try until it works, the trouble is not a passing one, or the time is up."""
    deadline = clock.monotonic() + patience
    pause = 0.05
    while True:
        try:
            return attempt()
        except Exception as error:
            trouble = classify(error)
            if trouble is Trouble.BUG:
                raise
            wait = pause * random.uniform(0.5, 1.0)
            if not trouble.passes or clock.monotonic() + wait > deadline:
                raise BrokerUnavailable(str(error) or type(error).__name__) from error
        time.sleep(wait)
        pause = min(pause * 2, 1.0)
