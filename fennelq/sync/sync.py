"""Sends jobs and waits for them without an event loop: for scripts, Django views, threads, forked processes.

Verbs and conversations are values: they are the same with an event loop and without one. So this needs no event loop in
a hidden thread, which a fork would break.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Never, ParamSpec, Protocol, TypeVar, Unpack, overload

from fennelq import clock
from fennelq.broker.verbs.jobs import ASKED, CANCELLED, TOO_LATE
from fennelq.client import handle_of, handles_of, sent_with_room
from fennelq.errors import ResultExpired
from fennelq.loops import check_loop, running_loop
from fennelq.model.job import Event, JobInfo, Status
from fennelq.model.progress import Progress
from fennelq.model.result_codec import ResultCodec
from fennelq.model.wire import WireJob
from fennelq.result import (
    ASK_AGAIN,
    cancel,
    deadline_of,
    history_of,
    info_of,
    progress_of,
    shown_progress,
    status_of,
    value_of,
    was_cancelled,
)
from fennelq.sync.waiting import End, converse, end_of, end_within, progress_until_end, unless_error

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.model.options import OptionArgs
    from fennelq.task import Task

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
A = TypeVar("A")
B = TypeVar("B")
A_contra = TypeVar("A_contra", contravariant=True)
B_contra = TypeVar("B_contra", contravariant=True)


class _OneParameter(Protocol[A_contra, R_co]):
    """A task that can be called with one argument."""

    def delay(self, first: A_contra, /) -> BlockingResult[R_co]: ...


class _TwoParameters(Protocol[A_contra, B_contra, R_co]):
    """A task that can be called with two arguments."""

    def delay(self, first: A_contra, second: B_contra, /) -> BlockingResult[R_co]: ...


class BlockingTask(Generic[P, R]):
    """A task whose `delay()` blocks the calling thread instead of being awaited."""

    def __init__(self, task: Task[P, R]) -> None:
        self._task = task

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> BlockingResult[R]:
        """Send a call. When this returns, the job is in Redis and will not be lost."""
        self._check("delay")
        job = self._task._encoded(args, kwargs)  # pyright: ignore[reportPrivateUsage] - users see a Job
        return enqueue(self._task.app, [job])[0]

    @overload
    def map(self: _OneParameter[A, R], column: Iterable[A], /) -> list[BlockingResult[R]]: ...
    @overload
    def map(
        self: _TwoParameters[A, B, R], first: Iterable[A], second: Iterable[B], /
    ) -> list[BlockingResult[R]]: ...
    @overload
    def map(
        self, first: Iterable[Any], second: Iterable[Any], third: Iterable[Any], /, *more: Iterable[Any]
    ) -> list[BlockingResult[R]]: ...
    def map(self, *columns: Iterable[Any]) -> list[BlockingResult[R]]:
        """Send one call for each element, like the built-in `map`: `resize.sync.map(["a.png", "b.png"])`."""
        self._check("map")
        jobs = self._task._described(columns)  # pyright: ignore[reportPrivateUsage]
        return enqueue(self._task.app, jobs)

    def options(self, *nameless: Never, **options: Unpack[OptionArgs]) -> BlockingTask[P, R]:
        """The same task with other options for the calls made through it."""
        return BlockingTask(self._task.options(*nameless, **options))

    def _check(self, method: str) -> None:
        if running_loop() is None:  # true for most calls, which then skip computing the names
            return
        name = self._task.name.rpartition(":")[2]
        check_loop(f"{name}.sync.{method}", f"await {name}.{method}(…)")


class BlockingResult(Generic[R_co]):
    """The handle of a job, for code without an event loop. It can be made again anywhere from the job's id:
    `app.sync.result(id)`."""

    __slots__ = ("_app", "_returns", "deduplicated", "id")

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
        return f"<BlockingResult {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlockingResult) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def get(self, timeout: float | None = None) -> R_co:
        """The value that the task returned.

        Waits until the job has ended. Raises TaskFailed, JobCancelled or JobExpired when it ended without a value, and
        ResultExpired when the job is unknown or its result has expired. After `timeout` seconds it raises
        ResultTimeout, which has the reason: what the job waits for, or which executor runs it. The job goes on. With
        `timeout=0` it checks once, and waits only for the reply of Redis.
        """
        _check_result("get")
        return value_of(self._app, self.id, self._returns, end_of(self._app, self.id, timeout))

    def status(self) -> Status:
        """The current status of the job."""
        _check_result("status")
        return converse(self._app, status_of(self._app, self.id))

    def info(self) -> JobInfo | None:
        """Everything known about the job, or None when it has no record."""
        _check_result("info")
        return converse(self._app, info_of(self._app, self.id))

    def history(self) -> list[Event]:
        """The events that made the job run more than once: failed tries, recoveries, releases, replays, the oldest
        first."""
        _check_result("history")
        return converse(self._app, history_of(self._app, self.id))

    def progress(self) -> Progress | None:
        """The latest progress that the task has reported; None when it has reported none. A job that has ended keeps
        its last progress as long as its record."""
        _check_result("progress")
        return shown_progress(converse(self._app, progress_of(self._app, self.id)))

    def watch(self) -> Generator[Progress]:
        """Yields the latest progress of the job, then newer ones, until the job has ended: `for progress in
        result.watch()`. It does not raise when the job fails or is unknown; call `get` afterwards for its result."""
        check_loop("BlockingResult.watch", "async for progress in app.result(id).watch()")
        return progress_until_end(self._app, self.id)

    def cancel(self, reason: str = "cancelled", *, wait: float = 5.0) -> bool:
        """Cancel the job. Returns True if it is cancelled: it will not run, or it has stopped.

        A job that has not started is cancelled at once. One that is running is asked to stop: an `async def` task gets
        a CancelledError, and `job.cancelled` is the reason. Then the method waits at most `wait` seconds for its end;
        with `wait=0` it returns False at once. The request stays with the job, so the job does not run again even if
        the caller stops waiting. If the task returns a value nevertheless, the job has succeeded. Returns False also
        for a job that has ended in another way, and for one that is unknown.
        """
        _check_result("cancel")
        app, deadline = self._app, deadline_of(wait)
        answer = converse(app, cancel(app, self.id, reason))
        if answer != ASKED:
            return answer == CANCELLED
        try:
            while (left := deadline - clock.monotonic()) > 0:
                if (ended := end_within(app, self.id, min(left, ASK_AGAIN))) is not None:
                    return was_cancelled(ended)
                answer = converse(app, cancel(app, self.id, reason))
            if answer == TOO_LATE:  # it has ended at the last moment
                ended = end_within(app, self.id, 0)
                return ended is not None and was_cancelled(ended)
        except ResultExpired:
            return False  # it has ended, and nothing is known of its end any more
        return answer == CANCELLED


def _check_result(method: str) -> None:
    check_loop(f"BlockingResult.{method}", f"await app.result(id).{method}(…)")


def enqueue(app: App, jobs: list[WireJob[R]]) -> list[BlockingResult[R]]:
    """Send any number of jobs, as `App.enqueue` does."""
    _ = app.blocking  # raises a mistake in the configuration once, and not as an error of each job
    surrounding = app.middleware.surrounding
    if surrounding is None or not jobs:
        return _enqueue(app, jobs)
    with surrounding(jobs):
        return _enqueue(app, jobs)


def _enqueue(app: App, jobs: list[WireJob[R]]) -> list[BlockingResult[R]]:
    if (senders := app.middleware.senders) is not None:
        jobs = senders.through_all(jobs)
    replies = converse(app, sent_with_room(app, jobs))
    return handles_of(partial(handle_of, BlockingResult, app), jobs, replies)


def value_at(app: App, result: BlockingResult[R], end: End) -> R:
    """The value that a job returned; raises the exception that its end describes."""
    returns = result._returns  # pyright: ignore[reportPrivateUsage] - the codec is not part of the public handle
    return value_of(app, result.id, returns, unless_error(end))
