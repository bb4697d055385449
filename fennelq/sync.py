"""The same for code without an event loop: scripts, Django views, threads, forked processes.

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
from fennelq.client import handle_of, handles_of, sent
from fennelq.errors import BrokerUnavailable, ResultExpired, ResultTimeout
from fennelq.loops import check_loop, running_loop
from fennelq.model.codec import ResultCodec
from fennelq.model.job import Event, JobInfo, Status, split_id
from fennelq.model.wire import WireJob
from fennelq.result import cancel, history_of, info_of, status_of, value_of
from fennelq.usage import is_over
from fennelq.waiting import FIRST_POLL, LONGEST_POLL, RECHECK, Ended, Look, ended, report_refusal, watched

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
"""How a job has ended, or why that cannot be known: a ResultExpired, or an error that concerns this job only."""

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
        if running_loop() is None:  # most calls: they need no names
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
    """True when the call found the job of an earlier call with the same key or id."""

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
        """What the task returned.

        Raises TaskFailed, JobCancelled or JobExpired when it ended otherwise, ResultExpired when nothing is
        known of the job (any more), ResultTimeout when `timeout` seconds have passed; the job then goes on.
        With `timeout=0` it checks once and returns; it then waits for nothing but the reply of Redis.
        """
        _check_result("get")
        return value_of(self._app, self.id, self._returns, end_of(self._app, self.id, timeout))

    def status(self) -> Status:
        """Where the job is in its life."""
        _check_result("status")
        return converse(self._app, status_of(self._app, self.id))

    def info(self) -> JobInfo | None:
        """Everything known about the job, or None when there is no record of it."""
        _check_result("info")
        return converse(self._app, info_of(self._app, self.id))

    def history(self) -> list[Event]:
        """Why it ran more than once, if it did: failed tries, recoveries, releases, replays, the oldest first."""
        _check_result("history")
        return converse(self._app, history_of(self._app, self.id))

    def cancel(self) -> bool:
        """True if the job will not run: it had not started, and now it never will."""
        _check_result("cancel")
        return converse(self._app, cancel(self._app, self.id))


def _check_result(method: str) -> None:
    check_loop(f"BlockingResult.{method}", f"await app.result(id).{method}(…)")


def enqueue(app: App, jobs: list[WireJob[R]]) -> list[BlockingResult[R]]:
    """Send any number of jobs; as `App.enqueue`."""
    _ = app.blocking  # a mistake in the configuration concerns all of them: it is raised as it is
    replies = converse(app, sent(app, jobs))
    return handles_of(partial(handle_of, BlockingResult, app), jobs, replies)


def value_at(app: App, result: BlockingResult[R], end: End) -> R:
    """What a job returned, or the exception that its end stands for."""
    returns = result._returns  # pyright: ignore[reportPrivateUsage] - it is no part of the public handle
    return value_of(app, result.id, returns, _unless_error(end))


def end_of(app: App, job_id: str, timeout: float | None) -> Ended:
    """How a job has ended; raises ResultTimeout, or ResultExpired when nothing is known of it."""
    with closing(ends_of(app, [job_id], timeout)) as ends:
        for _, end in ends:
            return _unless_error(end)
    if not timeout or is_over(timeout):
        raise ResultTimeout(job_id, timeout or 0.0)
    reason = app.blocking.converse(reasons.after_timeout(app, job_id, timeout))
    raise ResultTimeout(job_id, timeout, reason)


def ends_of(app: App, ids: Iterable[str], timeout: float | None) -> Generator[tuple[str, End]]:
    """Each job with its end, as it ends; without those that have not ended in time. With `timeout=0` it looks once."""
    over = timeout is not None and is_over(timeout)
    waiting = _Waiting(app, ids, timeout)
    return waiting.ended_by_now() if over else waiting.ends()


def _unless_error(end: End) -> Ended:
    if isinstance(end, Exception):
        raise end
    return end


class _Waiting:
    """One thread that waits for the ends of jobs: it subscribes, then looks, so an end in between is a message.
    Looking again makes up for a lost one."""

    def __init__(self, app: App, ids: Iterable[str], timeout: float | None) -> None:
        self._app = app
        self._going_on: dict[str, str | None] = dict.fromkeys(ids)
        """Jobs, with their tasks as far as they are known."""
        for job_id in self._going_on:
            split_id(job_id)
        self._deadline = math.inf if timeout is None else clock.monotonic() + timeout

    def ended_by_now(self) -> Generator[tuple[str, End]]:
        """Each that has ended already."""
        yield from self._look("", Patience(self._app.settings.enqueue_timeout, self._app.address))

    def ends(self) -> Generator[tuple[str, End]]:
        """Each as it ends."""
        channel, pauses = channel_name(self._app.namespace, process_name()), _pauses()
        with self._app.blocking.inbox.wait_for(channel, *self._going_on) as ticket:
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
        # A very short timeout still leaves the time to look once.
        seconds = min(self._app.settings.enqueue_timeout, max(self._left(), _SHORTEST_LOOK))
        return Patience(seconds, self._app.address, renewable=False)

    def _look(self, channel: str, patience: Patience) -> list[tuple[str, End]]:
        """Ask for every job that goes on; those that have ended. An error that concerns one of them is its end here."""
        ids = list(self._going_on)
        looks = self._app.blocking.converse(patient(watched(self._app.namespace, channel, ids), patience))
        found: list[tuple[str, End]] = []
        for job_id, look in zip(ids, looks, strict=True):
            if isinstance(look, BrokerUnavailable) and look.retriable:
                raise look
            end = _end(job_id, look)
            if end is not None:
                del self._going_on[job_id]
                found.append((job_id, end))
            elif not isinstance(look, Exception):
                self._going_on[job_id] = look[1]
        return found

    def _messages(self, ticket: Ticket) -> Iterator[tuple[str, End]]:
        """The ends that come as messages, until it is time to look again."""
        look_again = min(clock.monotonic() + RECHECK, self._deadline)
        while self._going_on:
            message = ticket.message(max(0.0, look_again - clock.monotonic()))
            if message is None:
                return
            topic, _, envelope = message.partition(b"\n")
            job_id = topic.decode()
            if job_id in self._going_on:
                yield job_id, Ended(self._going_on.pop(job_id), envelope)


def _end(job_id: str, look: Look | Exception) -> End | None:
    if isinstance(look, Exception):
        return look
    try:
        return ended(job_id, look)
    except ResultExpired as error:
        return error


def _subscribed(app: App, ticket: Ticket, patience: Patience) -> bool:
    """Whether messages are heard; False when the server refuses the subscription, and has to be polled."""
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
    """Seconds between two looks where nothing is heard."""
    pause = FIRST_POLL
    while True:
        yield pause
        pause = min(pause * 2, LONGEST_POLL)


def converse(app: App, talk: Talk[A]) -> A:
    """Run a conversation, step by step; raises BrokerUnavailable when Redis does not reply."""
    return app.blocking.converse(patient(talk, Patience(app.settings.enqueue_timeout, app.address)))


def each(app: App, finding: Finding[A]) -> Iterator[A]:
    """Run a conversation and yield what it hands out, as it comes."""
    finds = Finds(finding)
    with closing(finding):
        while (found := converse(app, finds.next())) is not None:
            yield found
