"""The same for code without an event loop: scripts, Django views, threads, forked processes.

Verbs are values, so this is only another way to say them: no event loop in a hidden thread, nothing a fork
breaks.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from fennelq import clock, reasons
from fennelq.broker import verbs
from fennelq.broker.batch import pages
from fennelq.broker.broker import ANSWER_TIMEOUT
from fennelq.broker.inbox import Ticket, process_name
from fennelq.broker.keys import QueueKeys, channel_name, queue_keys
from fennelq.broker.patience import Patience
from fennelq.broker.talk import Finding, Finds, Pause, Round, Talk
from fennelq.broker.trouble import ReplyError, refuses_to_publish
from fennelq.broker.verb import Step
from fennelq.client import Answer, joined, not_sent
from fennelq.errors import BrokerUnavailable, DuplicateJob, FennelqError, ResultExpired, ResultTimeout
from fennelq.loops import check_loop, running_loop
from fennelq.model.codec import ResultCodec
from fennelq.model.job import Event, Job, JobInfo, Status, split_id
from fennelq.model.wire import WireJob
from fennelq.result import cancel, history_of, info_of, status_of, value_of
from fennelq.usage import is_over, jobs_given
from fennelq.waiting import FIRST_POLL, LONGEST_POLL, RECHECK, Ended, Look, ended, report_refusal

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

End = Ended | ResultExpired
"""How a job has ended, or that nothing is known of it (any more)."""

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
        return enqueue(self._task.app, [self._task.job(*args, **kwargs)])[0]

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
        return enqueue(self._task.app, self._task.described(columns))

    def options(self, **options: Unpack[OptionArgs]) -> BlockingTask[P, R]:
        """The same task with other options."""
        return BlockingTask(self._task.options(**options))

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
        return self.value_of(end_of(self._app, self.id, timeout))

    def value_of(self, end: End) -> R_co:
        """What an end comes to: the value, or the exception it stands for."""
        return value_of(self._app, self.id, self._returns, _unless_expired(end))

    def status(self) -> Status:
        """Where the job is in its life."""
        _check_result("status")
        return hold(self._app, status_of(self._app, self.id))

    def info(self) -> JobInfo | None:
        """Everything known about the job, or None when there is no record of it."""
        _check_result("info")
        return hold(self._app, info_of(self._app, self.id))

    def history(self) -> list[Event]:
        """Why it ran more than once, if it did: failed tries, recoveries, releases, replays, the oldest first."""
        _check_result("history")
        return hold(self._app, history_of(self._app, self.id))

    def cancel(self) -> bool:
        """True if the job will not run: it had not started, and now it never will."""
        _check_result("cancel")
        return hold(self._app, cancel(self._app, self.id))


def _check_result(method: str) -> None:
    check_loop(f"BlockingResult.{method}", f"await app.result(id).{method}(…)")


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

    def __init__(self, app: App, jobs: list[WireJob[R]]) -> None:
        self._app, self._jobs = app, jobs
        self._answers: list[Answer | FennelqError | None] = [None] * len(jobs)
        self._outage: BrokerUnavailable | None = None

    def answers(self) -> list[Answer | FennelqError]:
        """Send them all, queue by queue and page by page."""
        jobs = self._jobs
        for queue in dict.fromkeys(job.queue for job in jobs):
            places = [i for i, job in enumerate(jobs) if job.queue == queue]
            try:
                for page in pages(
                    places, lambda i: jobs[i].size, verbs.jobs.MOST_JOBS, verbs.jobs.MOST_BYTES
                ):
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
            answers = [outage.concerning([self._jobs[i]]) for i in page]
        except Exception as error:
            if len(page) > 1:
                # The script failed: find out whose fault it is, so that each job gets an answer of its own.
                for i in page:
                    self._send(keys, [i])
                return
            answers = [not_sent(self._jobs[page[0]], error)]
        for i, answer in zip(page, answers, strict=True):
            self._answers[i] = answer

    def _say(self, keys: QueueKeys, jobs: list[WireJob[R]]) -> list[Answer]:
        if self._outage is not None:
            # Patience is for the whole call, not for each page of it.
            raise self._outage
        noted = self._app.noted
        if noted.is_due(keys.queue):
            _ask(self._app, verbs.queues.note_queues(self._app.namespace, [keys.queue]))
            noted.done(keys.queue)
        return _ask(self._app, verbs.jobs.enqueue(keys, jobs))


def _handle(app: App, job: WireJob[R], answer: Answer | FennelqError) -> BlockingResult[R]:
    if isinstance(answer, FennelqError):
        raise answer
    if answer == -1:
        raise DuplicateJob(job.id, job.task)
    if isinstance(answer, bytes):
        return BlockingResult(app, f"{job.queue}:{answer.decode()}", job.returns, deduplicated=True)
    return BlockingResult(app, job.id, job.returns, deduplicated=answer == 2)


def end_of(app: App, job_id: str, timeout: float | None) -> Ended:
    """How a job has ended; raises ResultTimeout, or ResultExpired when nothing is known of it."""
    with closing(ends_of(app, [job_id], timeout)) as ends:
        for _, end in ends:
            return _unless_expired(end)
    raise ResultTimeout(job_id, timeout or 0.0, _why_not_ended(app, job_id, timeout or 0.0))


def ends_of(app: App, ids: Iterable[str], timeout: float | None) -> Generator[tuple[str, End]]:
    """Each job with its end, as it ends; without those that have not ended in time. With `timeout=0` it looks once."""
    over = timeout is not None and is_over(timeout)
    waiting = _Waiting(app, ids, timeout)
    return waiting.ended_by_now() if over else waiting.ends()


def _unless_expired(end: End) -> Ended:
    if isinstance(end, ResultExpired):
        raise end
    return end


class _Waiting:
    """One thread that waits for the ends of jobs: it subscribes, then looks, so an end in between is a message.
    Looking again makes up for a lost one."""

    def __init__(self, app: App, ids: Iterable[str], timeout: float | None) -> None:
        self._app = app
        self._going_on: dict[str, str | None] = dict.fromkeys(ids)
        """Jobs, with their tasks as far as they are known."""
        self._places = {job_id: split_id(job_id) for job_id in self._going_on}
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
        return Patience(seconds, self._app.address)

    def _look(self, channel: str, patience: Patience) -> list[tuple[str, End]]:
        """Ask for every job that goes on; those that have ended."""
        found: list[tuple[str, End]] = []
        by_queue: defaultdict[str, list[str]] = defaultdict(list)
        for job_id in self._going_on:
            by_queue[self._places[job_id][0]].append(job_id)
        for queue, ids in by_queue.items():
            for page in pages(ids, lambda _: 1, verbs.jobs.MOST_JOBS, verbs.jobs.MOST_JOBS):
                keys = [self._places[job_id][1] for job_id in page]
                watch = verbs.jobs.watch(queue_keys(self._app.namespace, queue), channel, keys)
                answers = _patiently(patience, partial(self._app.blocking.run, watch))
                found += self._ended(zip(page, answers, strict=True))
        return found

    def _ended(self, answers: Iterable[tuple[str, Look]]) -> Iterator[tuple[str, End]]:
        for job_id, answer in answers:
            try:
                end: End | None = ended(job_id, answer)
            except ResultExpired as error:
                end = error
            if end is None:
                self._going_on[job_id] = answer[1]
            else:
                del self._going_on[job_id]
                yield job_id, end

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


def _pauses() -> Iterator[float]:
    """Seconds between two looks where nothing is heard."""
    pause = FIRST_POLL
    while True:
        yield pause
        pause = min(pause * 2, LONGEST_POLL)


def _why_not_ended(app: App, job_id: str, timeout: float) -> str | None:
    """What a job waits for, or who runs it; None when that cannot be found out at once."""
    if timeout <= 0:
        return None
    queue, key = split_id(job_id)
    end = clock.monotonic() + reasons.within(timeout)

    def asked_once(said: Round) -> list[Any]:
        assert not isinstance(said, Pause)
        return app.blocking.send_all(said, max(0.001, end - clock.monotonic()))

    try:
        return _held(reasons.of_timeout(queue_keys(app.namespace, queue), key), asked_once)
    except Exception:
        return None


def hold(app: App, talk: Talk[A]) -> A:
    """Run a conversation, step by step; raises BrokerUnavailable when Redis does not answer."""
    return _held(talk, partial(_replies, app))


def _held(talk: Talk[A], replies: Callable[[Round], list[Any] | None]) -> A:
    """What a conversation returns. An error of a step is raised in the conversation, which may know what to do."""
    with closing(talk):
        try:
            said = talk.send(None)
            while True:
                try:
                    received = replies(said)
                except Exception as error:
                    said = talk.throw(error)
                else:
                    said = talk.send(received)
        except StopIteration as end:
            return cast("A", end.value)


def each(app: App, finding: Finding[A]) -> Iterator[A]:
    """Run a conversation and yield what it hands out, as it comes."""
    finds = Finds(finding)
    with closing(finding):
        while (found := hold(app, finds.next())) is not None:
            yield found


def _replies(app: App, said: Round) -> list[Any] | None:
    if isinstance(said, Pause):
        time.sleep(said.seconds)
        return None
    return _patiently(
        Patience(app.settings.enqueue_timeout, app.address), lambda left: app.blocking.send_all(said, left)
    )


def _ask(app: App, step: Step[A]) -> A:
    """One step. It does without the conversation, which would cost every job that is sent some microseconds."""
    return _patiently(
        Patience(app.settings.enqueue_timeout, app.address),
        lambda left: app.blocking.send_all([step], left)[0],
    )


def _patiently(patience: Patience, attempt: Callable[[float], A]) -> A:
    """Try until it works, the trouble is not a passing one, or the time is up."""
    while True:
        try:
            return attempt(min(patience.left(), ANSWER_TIMEOUT))
        except Exception as error:
            pause = patience.pause_after(error)
        time.sleep(pause)
