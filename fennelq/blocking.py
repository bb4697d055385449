"""`app.sync`: everything an App can do, for code without an event loop."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Never, Self, TypeVar, Unpack, overload

from fennelq.errors import BrokerUnavailable, ResultTimeout
from fennelq.gathering import not_ended
from fennelq.loops import check_loop
from fennelq.model.job import Job, Status, split_id
from fennelq.model.units import Seconds
from fennelq.result import value_of
from fennelq.sync import BlockingResult, enqueue, value_at
from fennelq.sync_waiting import End, converse, end_of, ends_of
from fennelq.usage import gathered, job_given, jobs_given, results_given

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.manage.dead import BlockingDeadLetters
    from fennelq.manage.executors import BlockingExecutors
    from fennelq.manage.jobs import BlockingJobs
    from fennelq.manage.queues import BlockingQueues
    from fennelq.manage.schedules import BlockingSchedules
    from fennelq.model.options import OptionArgs
    from fennelq.task import AnyTask

R = TypeVar("R")
R1 = TypeVar("R1")
R2 = TypeVar("R2")
R3 = TypeVar("R3")
R4 = TypeVar("R4")
R5 = TypeVar("R5")
R6 = TypeVar("R6")


class BlockingApp:
    """Everything that an App can do, for code without an event loop: `app.sync`.

    The methods are those of the App, with the same parameters and errors; they block the calling thread instead of
    being awaited. Any number of threads may use it, and so may the children of a fork.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    def __repr__(self) -> str:
        return f"<BlockingApp {self._app.name}>"

    # Sending

    def enqueue(self, jobs: Iterable[Job[R]], *more: Never) -> list[BlockingResult[R]]:
        """Send any number of jobs in as few round trips as possible; returns their handles in order.

        When some jobs are refused, the others are sent, and it raises EnqueueFailed with the errors and the handles.
        """
        check_loop("app.sync.enqueue", "await app.enqueue(…)")
        return enqueue(self._app, jobs_given("app.sync.enqueue", jobs, more))

    def send(
        self,
        task: str,
        /,
        *args: Any,
        _kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[OptionArgs],
    ) -> BlockingResult[Any]:
        """Send a call of a task by its name, without its code; keyword arguments go into `_kwargs`."""
        check_loop("app.sync.send", "await app.send(…)")
        job = self._app.describe(task, *args, _kwargs=_kwargs, **options)
        return enqueue(self._app, [job_given("app.sync.send", job)])[0]

    def call(self, job: Job[R], timeout: float | None = None) -> R:
        """Send a job and wait for its return value."""
        check_loop("app.sync.call", "await app.call(…)")
        sent = job_given("app.sync.call", job)
        result = enqueue(self._app, [sent])[0]
        return value_of(self._app, result.id, sent.returns, end_of(self._app, result.id, timeout))

    # Results

    def result(self, job_id: str) -> BlockingResult[Any]:
        """The handle of a job, from its id; raises InvalidJobId when the text is not a job id."""
        split_id(job_id)
        return BlockingResult(self._app, job_id, None)

    @overload
    def gather(  # pyright: ignore[reportOverlappingOverload]
        self,
        r1: BlockingResult[R1],
        r2: BlockingResult[R2],
        /,
        *,
        timeout: float | None = None,
        return_exceptions: Literal[False] = False,
    ) -> tuple[R1, R2]: ...
    @overload
    def gather(
        self,
        r1: BlockingResult[R1],
        r2: BlockingResult[R2],
        r3: BlockingResult[R3],
        /,
        *,
        timeout: float | None = None,
        return_exceptions: Literal[False] = False,
    ) -> tuple[R1, R2, R3]: ...
    @overload
    def gather(
        self,
        r1: BlockingResult[R1],
        r2: BlockingResult[R2],
        r3: BlockingResult[R3],
        r4: BlockingResult[R4],
        /,
        *,
        timeout: float | None = None,
        return_exceptions: Literal[False] = False,
    ) -> tuple[R1, R2, R3, R4]: ...
    @overload
    def gather(
        self,
        r1: BlockingResult[R1],
        r2: BlockingResult[R2],
        r3: BlockingResult[R3],
        r4: BlockingResult[R4],
        r5: BlockingResult[R5],
        /,
        *,
        timeout: float | None = None,
        return_exceptions: Literal[False] = False,
    ) -> tuple[R1, R2, R3, R4, R5]: ...
    @overload
    def gather(
        self,
        r1: BlockingResult[R1],
        r2: BlockingResult[R2],
        r3: BlockingResult[R3],
        r4: BlockingResult[R4],
        r5: BlockingResult[R5],
        r6: BlockingResult[R6],
        /,
        *,
        timeout: float | None = None,
        return_exceptions: Literal[False] = False,
    ) -> tuple[R1, R2, R3, R4, R5, R6]: ...
    @overload
    def gather(
        self,
        *results: BlockingResult[R],
        timeout: float | None = None,
        return_exceptions: Literal[False] = False,
    ) -> list[R]: ...
    @overload
    def gather(  # pyright: ignore[reportOverlappingOverload]
        self,
        r1: BlockingResult[R1],
        r2: BlockingResult[R2],
        /,
        *,
        timeout: float | None = None,
        return_exceptions: Literal[True],
    ) -> tuple[R1 | BaseException, R2 | BaseException]: ...
    @overload
    def gather(
        self,
        r1: BlockingResult[R1],
        r2: BlockingResult[R2],
        r3: BlockingResult[R3],
        /,
        *,
        timeout: float | None = None,
        return_exceptions: Literal[True],
    ) -> tuple[R1 | BaseException, R2 | BaseException, R3 | BaseException]: ...
    @overload
    def gather(
        self,
        r1: BlockingResult[R1],
        r2: BlockingResult[R2],
        r3: BlockingResult[R3],
        r4: BlockingResult[R4],
        /,
        *,
        timeout: float | None = None,
        return_exceptions: Literal[True],
    ) -> tuple[R1 | BaseException, R2 | BaseException, R3 | BaseException, R4 | BaseException]: ...
    @overload
    def gather(
        self,
        r1: BlockingResult[R1],
        r2: BlockingResult[R2],
        r3: BlockingResult[R3],
        r4: BlockingResult[R4],
        r5: BlockingResult[R5],
        /,
        *,
        timeout: float | None = None,
        return_exceptions: Literal[True],
    ) -> tuple[
        R1 | BaseException, R2 | BaseException, R3 | BaseException, R4 | BaseException, R5 | BaseException
    ]: ...
    @overload
    def gather(
        self,
        r1: BlockingResult[R1],
        r2: BlockingResult[R2],
        r3: BlockingResult[R3],
        r4: BlockingResult[R4],
        r5: BlockingResult[R5],
        r6: BlockingResult[R6],
        /,
        *,
        timeout: float | None = None,
        return_exceptions: Literal[True],
    ) -> tuple[
        R1 | BaseException,
        R2 | BaseException,
        R3 | BaseException,
        R4 | BaseException,
        R5 | BaseException,
        R6 | BaseException,
    ]: ...
    @overload
    def gather(
        self, *results: BlockingResult[R], timeout: float | None = None, return_exceptions: Literal[True]
    ) -> list[R | BaseException]: ...
    def gather(
        self, *results: BlockingResult[Any], timeout: float | None = None, return_exceptions: bool = False
    ) -> Any:
        """The values of all results, in order. Raises the first exception; with `return_exceptions`, returns exceptions
        in the places of their values.

        Type checkers see a tuple for two to six results, so that each value keeps its own type:
        `name, total = app.sync.gather(first, second)`. At run time it is always a list, as with `asyncio.gather`.
        """
        check_loop("app.sync.gather", "await gather(…)")
        gathered("app.sync.gather", results, "BlockingResult")
        waited_for: defaultdict[str, list[int]] = defaultdict(list)
        for place, result in enumerate(results):
            waited_for[result.id].append(place)
        values: list[Any] = [ResultTimeout(result.id, timeout or 0.0) for result in results]
        with closing(ends_of(self._app, list(waited_for), timeout)) as ends:
            for job_id, end in ends:
                for place in waited_for.pop(job_id):
                    try:
                        values[place] = value_at(self._app, results[place], end)
                    except Exception as error:
                        if not return_exceptions:
                            raise
                        values[place] = error
        if waited_for and not return_exceptions:
            raise values[min(place for places in waited_for.values() for place in places)]
        return values

    def wait(
        self,
        results: Iterable[BlockingResult[R]],
        *more: Never,
        timeout: float | None = None,
        return_when: Literal["first", "all"] = "all",
    ) -> tuple[set[BlockingResult[R]], set[BlockingResult[R]]]:
        """Two sets: the results whose jobs have ended, well or not, and the others, after at most `timeout`."""
        check_loop("app.sync.wait", "await wait(…)")
        going_on = {result.id: result for result in _given("wait", results, more)}
        done: set[BlockingResult[R]] = set()
        with closing(ends_of(self._app, list(going_on), timeout)) as ends:
            for job_id, end in ends:
                _raise_refusal(end)
                done.add(going_on.pop(job_id))
                if return_when == "first" and (timeout is None or timeout > 0):
                    break
        return done, set(going_on.values())

    def as_completed(
        self, results: Iterable[BlockingResult[R]], *more: Never, timeout: float | None = None
    ) -> Iterator[BlockingResult[R]]:
        """Yields each result when its job ends, well or not; raises TimeoutError `timeout` seconds after the call."""
        check_loop("app.sync.as_completed", "async for result in as_completed(…)")
        going_on = {result.id: result for result in _given("as_completed", results, more)}
        return _completed(going_on, ends_of(self._app, list(going_on), timeout), timeout or 0.0)

    # Operating

    def cancel(
        self,
        *,
        queue: str | Sequence[str] | None = None,
        task: str | AnyTask | None = None,
        status: Status | Sequence[Status] | None = None,
        older_than: Seconds | None = None,
        limit: int | None = None,
        reason: str = "cancelled",
        all: bool = False,
    ) -> int:
        """Cancel the jobs that match every filter, at most `limit`; returns how many.

        Jobs that do not run are cancelled at once. Running ones are asked to stop, as `BlockingResult.cancel` does it,
        and this does not wait for their ends. `task` is a task, `module:function`, or only the function's name;
        `older_than` is the time since a job was sent. Without a filter, `all=True` is required. Jobs that are sent or
        change their state meanwhile may be missed: it can be called again.
        """
        from fennelq.manage.cancelling import Cancelling, Selection

        check_loop("app.sync.cancel", "await app.cancel(…)")
        selection = Selection.of(queue, task, status, older_than)
        cancelling = Cancelling(self._app, selection, limit=limit, reason=reason, everything=all)
        return converse(self._app, cancelling.run())

    @cached_property
    def dlq(self) -> BlockingDeadLetters:
        """The dead-letter queues."""
        from fennelq.manage.dead import BlockingDeadLetters

        return BlockingDeadLetters(self._app)

    @cached_property
    def schedules(self) -> BlockingSchedules:
        """Recurring jobs, declared in code or made at run time."""
        from fennelq.manage.schedules import BlockingSchedules

        return BlockingSchedules(self._app)

    @cached_property
    def queues(self) -> BlockingQueues:
        """The queues: count and list their jobs, and empty a queue."""
        from fennelq.manage.queues import BlockingQueues

        return BlockingQueues(self._app)

    @cached_property
    def jobs(self) -> BlockingJobs:
        """Single jobs, by their ids: look at them, wait for them, cancel and retry them."""
        from fennelq.manage.jobs import BlockingJobs

        return BlockingJobs(self._app)

    @cached_property
    def executors(self) -> BlockingExecutors:
        """The executors, as they have reported themselves."""
        from fennelq.manage.executors import BlockingExecutors

        return BlockingExecutors(self._app)

    def close(self) -> None:
        """Close the connections of this process. The app can be used again afterwards."""
        self._app.blocking.close()

    def __enter__(self) -> Self:
        """`with app.sync:` closes the connections at the end of the block, as `close()` does."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _given(
    method: str, results: Iterable[BlockingResult[R]], more: tuple[object, ...]
) -> list[BlockingResult[R]]:
    return results_given(f"app.sync.{method}", results, more, "BlockingResult")


def _completed(
    going_on: dict[str, BlockingResult[R]], ends: Generator[tuple[str, End]], timeout: float
) -> Iterator[BlockingResult[R]]:
    every = len(going_on)
    with closing(ends):
        for job_id, end in ends:
            _raise_refusal(end)
            yield going_on.pop(job_id)
    if going_on:
        raise not_ended(len(going_on), every, timeout)


def _raise_refusal(end: End) -> None:
    """Raises the error of a job that this user of Redis may not read: such a job must not count as ended."""
    if isinstance(end, BrokerUnavailable):
        raise end
