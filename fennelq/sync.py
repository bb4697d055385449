"""Sends jobs and waits for them without an event loop: for scripts, Django views, threads, forked processes.

Verbs and conversations are values: they are the same with an event loop and without one. So this needs no event loop in
a hidden thread, which a fork would break.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Never, ParamSpec, Protocol, TypeVar, Unpack, overload

from fennelq import clock, reasons
from fennelq.broker.broker import ANSWER_TIMEOUT
from fennelq.broker.inbox import Ticket, process_name
from fennelq.broker.keys import channel_name
from fennelq.broker.patience import Patience
from fennelq.broker.talk import Finding, Finds, Talk, patient
from fennelq.broker.trouble import ReplyError, refuses_to_publish
from fennelq.broker.verbs.jobs import ASKED, CANCELLED, TOO_LATE
from fennelq.client import handle_of, handles_of, sent
from fennelq.errors import BrokerUnavailable, ResultExpired, ResultTimeout
from fennelq.loops import check_loop, running_loop
from fennelq.model.codec import ResultCodec
from fennelq.model.job import Event, JobInfo, Status, split_id
from fennelq.model.progress import Newest, Progress, Reported, from_wire
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
from fennelq.usage import is_over
from fennelq.waiting import (
    FIRST_POLL,
    LONGEST_POLL,
    OF_PROGRESS,
    RECHECK,
    Ended,
    Look,
    ended,
    report_refusal,
    watched,
)

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

End = Ended | Exception
"""How a job has ended, or why that is unknown: a ResultExpired, or an error that concerns this job only."""

_SHORTEST_LOOK = 0.05


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
        `timeout=0` it checks once, and waits for nothing but the reply of Redis.
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
        """The events that made it run more than once: failed tries, recoveries, releases, replays, the oldest first."""
        _check_result("history")
        return converse(self._app, history_of(self._app, self.id))

    def progress(self) -> Progress | None:
        """How far the job has come, as its task has reported last; None when it has reported nothing. A job that has
        ended keeps its last progress as long as its record."""
        _check_result("progress")
        return shown_progress(converse(self._app, progress_of(self._app, self.id)))

    def watch(self) -> Generator[Progress]:
        """Yields the progress of the job, from the latest on, and ends with the job: `for progress in result.watch()`.
        It does not raise when the job fails or is unknown; call `get` afterwards for its result."""
        check_loop("BlockingResult.watch", "async for progress in app.result(id).watch()")
        return _progress(self._app, self.id)

    def cancel(self, reason: str = "cancelled", *, wait: float = 5.0) -> bool:
        """Cancel the job. Returns whether it was cancelled: True when it will not run, or does not run any more.

        A job that has not started is cancelled at once. One that is running is asked to stop: an `async def` task gets
        a CancelledError, and `job.cancelled` is the reason. This waits for its end, at most `wait` seconds; with
        `wait=0` it only asks, and returns False. The request lasts, whether the caller waits or not: the job does not
        run again. If the task succeeds nevertheless, that stands. False also for a job that has ended, or is unknown.
        """
        _check_result("cancel")
        app, deadline = self._app, deadline_of(wait)
        answer = converse(app, cancel(app, self.id, reason))
        if answer != ASKED:
            return answer == CANCELLED
        try:
            while (left := deadline - clock.monotonic()) > 0:
                if (ended := _end_within(app, self.id, min(left, ASK_AGAIN))) is not None:
                    return was_cancelled(ended)
                answer = converse(app, cancel(app, self.id, reason))
            if answer == TOO_LATE:  # it has ended at the last moment
                ended = _end_within(app, self.id, 0)
                return ended is not None and was_cancelled(ended)
        except ResultExpired:
            return False  # it has ended, and nothing is known of its end any more
        return answer == CANCELLED


def _check_result(method: str) -> None:
    check_loop(f"BlockingResult.{method}", f"await app.result(id).{method}(…)")


def enqueue(app: App, jobs: list[WireJob[R]]) -> list[BlockingResult[R]]:
    """Send any number of jobs, as `App.enqueue` does."""
    _ = app.blocking  # raises a mistake in the configuration once, and not as an error of each job
    if (senders := app.middleware.senders) is not None:
        jobs = senders.through_all(jobs)
    replies = converse(app, sent(app, jobs))
    return handles_of(partial(handle_of, BlockingResult, app), jobs, replies)


def value_at(app: App, result: BlockingResult[R], end: End) -> R:
    """The value that a job returned; raises the exception that its end describes."""
    returns = result._returns  # pyright: ignore[reportPrivateUsage] - the codec is not part of the public handle
    return value_of(app, result.id, returns, _unless_error(end))


def end_of(app: App, job_id: str, timeout: float | None) -> Ended:
    """How a job has ended; raises ResultTimeout, or ResultExpired when the job is unknown or its result has expired."""
    with closing(ends_of(app, [job_id], timeout)) as ends:
        for _, end in ends:
            return _unless_error(end)
    if not timeout or is_over(timeout):
        raise ResultTimeout(job_id, timeout or 0.0)
    reason = app.blocking.converse(reasons.after_timeout(app, job_id, timeout))
    raise ResultTimeout(job_id, timeout, reason)


def ends_of(app: App, ids: Iterable[str], timeout: float | None) -> Generator[tuple[str, End]]:
    """Yields each job and its end, as soon as it has ended, until the timeout. With `timeout=0` it checks once."""
    over = timeout is not None and is_over(timeout)
    waiting = _Waiting(app, ids, timeout)
    return waiting.ended_by_now() if over else waiting.ends()


def _end_within(app: App, job_id: str, seconds: float) -> Ended | None:
    """How a job has ended; None when it goes on for longer than this."""
    with closing(ends_of(app, [job_id], seconds)) as ends:
        for _, end in ends:
            return _unless_error(end)
    return None


def _progress(app: App, job_id: str) -> Generator[Progress]:
    newest = Newest()
    with closing(_Waiting(app, [job_id], None, follows=True).news()) as news:
        for _, new in news:
            if isinstance(new, Reported):
                if (progress := newest.news_in(new)) is not None:
                    yield progress
            elif isinstance(new, Exception) and not isinstance(new, ResultExpired):
                raise new
    # The end may have been found by a look, and the last message may be lost.
    if (last := newest.news_in(converse(app, progress_of(app, job_id)))) is not None:
        yield last


def _unless_error(end: End) -> Ended:
    if isinstance(end, Exception):
        raise end
    return end


class _Waiting:
    """One thread that waits for the ends of jobs. It subscribes before it looks, so an end after the look arrives as a
    message. It looks again from time to time, because messages can be lost."""

    def __init__(self, app: App, ids: Iterable[str], timeout: float | None, *, follows: bool = False) -> None:
        """With `follows`, `news` yields the progress of the jobs as well."""
        self._app = app
        self._going_on: dict[str, str | None] = dict.fromkeys(ids)
        """The jobs that have not ended yet, with their tasks as far as they are known."""
        for job_id in self._going_on:
            split_id(job_id)
        self._followed = frozenset(self._going_on) if follows else frozenset[str]()
        self._deadline = math.inf if timeout is None else clock.monotonic() + timeout

    def ended_by_now(self) -> Generator[tuple[str, End]]:
        """Yields each job that has ended already."""
        patience = Patience(self._app.settings.enqueue_timeout, self._app.address)
        yield from _ends_among(self._look("", patience))

    def ends(self) -> Generator[tuple[str, End]]:
        """Yields each job when it ends."""
        with closing(self.news()) as news:
            yield from _ends_among(news)

    def news(self) -> Generator[tuple[str, End | Reported]]:
        """Yields each job when it ends, and the progress of those that are followed."""
        channel, pauses = channel_name(self._app.namespace, process_name()), _pauses()
        progress = [OF_PROGRESS + job_id for job_id in self._followed]
        with self._app.blocking.inbox.wait_for(channel, *self._going_on, newest=progress) as ticket:
            while self._going_on:
                try:
                    patience = self._patience()
                    hearing = _subscribed(self._app, ticket, patience)
                    found = self._look(channel if hearing else "", patience)
                except BrokerUnavailable:
                    if clock.monotonic() < self._deadline:
                        raise
                    return
                yield from found
                if not self._going_on:
                    return
                if hearing:
                    yield from self._messages(ticket)
                else:
                    time.sleep(min(next(pauses), self._left()))
                if clock.monotonic() >= self._deadline:
                    return

    def _left(self) -> float:
        return max(0.0, self._deadline - clock.monotonic())

    def _patience(self) -> Patience:
        # Even with a very short timeout there must be enough time to look once.
        seconds = min(self._app.settings.enqueue_timeout, max(self._left(), _SHORTEST_LOOK))
        return Patience(seconds, self._app.address, renewable=False)

    def _look(self, channel: str, patience: Patience) -> list[tuple[str, End | Reported]]:
        """Ask for every job that goes on; returns those that have ended, and progress. The error of one job counts as
        its end here."""
        ids = list(self._going_on)
        asked = watched(self._app.namespace, channel, ids, self._followed)
        looks = self._app.blocking.converse(patient(asked, patience))
        found: list[tuple[str, End | Reported]] = []
        for job_id, look in zip(ids, looks, strict=True):
            if isinstance(look, BrokerUnavailable) and look.retriable:
                raise look
            end = _end(job_id, look)
            if end is not None:
                del self._going_on[job_id]
                found.append((job_id, end))
            elif not isinstance(look, Exception):
                self._going_on[job_id] = look[1]
                if (reported := from_wire(look[2])) is not None:
                    found.append((job_id, reported))
        return found

    def _messages(self, ticket: Ticket) -> Iterator[tuple[str, End | Reported]]:
        """Yields the ends and the progress that arrive as messages, until it is time to look again. A slow reader gets
        the newest progress of the messages that have arrived meanwhile."""
        look_again = min(clock.monotonic() + RECHECK, self._deadline)
        newest: dict[str, Reported] = {}
        while self._going_on:
            message = ticket.message(0.0 if newest else max(0.0, look_again - clock.monotonic()))
            if message is None and not newest:
                return
            topic, _, envelope = (message or b"").partition(b"\n")
            job_id = topic.decode()
            if job_id.startswith(OF_PROGRESS):
                if (reported := from_wire(envelope)) is not None:
                    newest[job_id.removeprefix(OF_PROGRESS)] = reported
                continue  # a later message may be newer
            reports, newest = newest, {}
            yield from reports.items()
            if job_id in self._going_on:
                yield job_id, Ended(self._going_on.pop(job_id), envelope)


def _ends_among(news: Iterable[tuple[str, End | Reported]]) -> Iterator[tuple[str, End]]:
    for job_id, new in news:
        if not isinstance(new, Reported):
            yield job_id, new


def _end(job_id: str, look: Look | Exception) -> End | None:
    if isinstance(look, Exception):
        return look
    try:
        return ended(job_id, look)
    except ResultExpired as error:
        return error


def _subscribed(app: App, ticket: Ticket, patience: Patience) -> bool:
    """Subscribe; False when the server refuses the subscription, and the caller has to poll."""
    while True:
        try:
            ticket.open(min(patience.left(), ANSWER_TIMEOUT))
            return True
        except Exception as error:
            if isinstance(error, ReplyError) and refuses_to_publish(error):
                report_refusal(app.namespace, error)
                return False
            pause = patience.pause_after(error)
        time.sleep(pause)


def _pauses() -> Iterator[float]:
    """The seconds between two looks of a caller that polls."""
    pause = FIRST_POLL
    while True:
        yield pause
        pause = min(pause * 2, LONGEST_POLL)


def converse(app: App, talk: Talk[A]) -> A:
    """Run a conversation, step by step; raises BrokerUnavailable when Redis does not reply."""
    return app.blocking.converse(patient(talk, Patience(app.settings.enqueue_timeout, app.address)))


def each(app: App, finding: Finding[A]) -> Iterator[A]:
    """Run a conversation and yield each value as soon as it is found."""
    finds = Finds(finding)
    with closing(finding):
        while (found := converse(app, finds.next())) is not None:
            yield found
