"""`app.sync`: everything an App can do, for code without an event loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never, Self, TypeVar, Unpack

from fennelq.loops import check_loop
from fennelq.model.job import Job, Status, split_id
from fennelq.model.units import Seconds
from fennelq.result import value_of
from fennelq.sync.gathering import BlockingGathering
from fennelq.sync.sync import BlockingResult, enqueue
from fennelq.sync.waiting import converse, end_of
from fennelq.usage import job_given, jobs_given

if TYPE_CHECKING:
    from fennelq.manage.audit import BlockingAudit
    from fennelq.manage.dead.dead import BlockingDeadLetters
    from fennelq.manage.executors.executors import BlockingExecutors
    from fennelq.manage.history.looking import BlockingHistory
    from fennelq.manage.jobs import BlockingJobs
    from fennelq.manage.limits import BlockingLimits
    from fennelq.manage.operations import BlockingOperations
    from fennelq.manage.queues.queue import BlockingQueue
    from fennelq.manage.queues.queues import BlockingQueues
    from fennelq.manage.schedules import BlockingSchedules
    from fennelq.manage.times import BlockingRunTimes
    from fennelq.model.bounds import WhenFull
    from fennelq.model.options import OptionArgs
    from fennelq.task import AnyTask

R = TypeVar("R")


class BlockingApp(BlockingGathering):
    """Everything that an App can do, for code without an event loop: `app.sync`.

    The methods are those of the App, with the same parameters and errors; they block the calling thread instead of
    being awaited. Any number of threads may use it, and so may the children of a fork.
    """

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

    # Operating

    def cancel(
        self,
        *,
        queue: str | Sequence[str] | None = None,
        task: str | AnyTask | None = None,
        status: Status | Sequence[Status] | None = None,
        older_than: Seconds | None = None,
        where: str = "",
        limit: int | None = None,
        reason: str = "cancelled",
        all: bool = False,
    ) -> int:
        """Cancel the jobs that match every filter, at most `limit`; returns how many.

        Jobs that do not run are cancelled at once. Running ones are asked to stop, as by `BlockingResult.cancel`, but
        the method does not wait until they have ended. `task` is a task, `module:function`, or only the function's
        name; `older_than` is the time since a job was sent. `where` is a filter such as `task:welcome tenant-17`; it
        cannot be combined with the other filters. Without a filter, `all=True` is required. Jobs that are sent
        meanwhile are not cancelled.
        """
        from fennelq.manage.cancelling import Cancelling, Selection

        check_loop("app.sync.cancel", "await app.cancel(…)")
        selection = Selection.of(queue, task, status, older_than, where)
        cancelling = Cancelling(self._app, selection, limit=limit, reason=reason, everything=all)
        return converse(self._app, cancelling.run())

    @cached_property
    def dlq(self) -> BlockingDeadLetters:
        """The dead-letter queues."""
        from fennelq.manage.dead.dead import BlockingDeadLetters

        return BlockingDeadLetters(self._app)

    @cached_property
    def schedules(self) -> BlockingSchedules:
        """Recurring jobs, declared in code or made at run time."""
        from fennelq.manage.schedules import BlockingSchedules

        return BlockingSchedules(self._app)

    @cached_property
    def queues(self) -> BlockingQueues:
        """The queues: count and list their jobs, pause, resume and empty a queue."""
        from fennelq.manage.queues.queues import BlockingQueues

        return BlockingQueues(self._app)

    def queue(
        self, name: str, *, max_waiting: int | None = None, when_full: WhenFull | None = None
    ) -> BlockingQueue:
        """One queue: `app.sync.queue("mail").pause(why="the mail server is down")`.

        `max_waiting=` declares how many jobs may wait in the queue, as for `App.queue`.
        """
        from fennelq.manage.queues.queue import BlockingQueue

        self._app.bounds.declare(name, max_waiting, when_full)
        return BlockingQueue(self._app, name)

    @cached_property
    def jobs(self) -> BlockingJobs:
        """Single jobs, by their ids: look at them, wait for them, cancel and retry them."""
        from fennelq.manage.jobs import BlockingJobs

        return BlockingJobs(self._app)

    @cached_property
    def operations(self) -> BlockingOperations:
        """Operations on all jobs that match a filter, which outlive the process that performs them."""
        from fennelq.manage.operations import BlockingOperations

        return BlockingOperations(self._app)

    @cached_property
    def limits(self) -> BlockingLimits:
        """The limits of the queues: list them, and change their numbers at run time."""
        from fennelq.manage.limits import BlockingLimits

        return BlockingLimits(self._app)

    @cached_property
    def executors(self) -> BlockingExecutors:
        """The executors, as they have reported themselves."""
        from fennelq.manage.executors.executors import BlockingExecutors

        return BlockingExecutors(self._app)

    @cached_property
    def times(self) -> BlockingRunTimes:
        """How long the runs of each task take, and how long its jobs wait."""
        from fennelq.manage.times import BlockingRunTimes

        return BlockingRunTimes(self._app)

    @cached_property
    def audit(self) -> BlockingAudit:
        """The record of operations: who has changed what, and how it ended."""
        from fennelq.manage.audit import BlockingAudit

        return BlockingAudit(self._app)

    @cached_property
    def history(self) -> BlockingHistory:
        """The jobs that have ended, in a database of your own: the setting `history_url`."""
        from fennelq.manage.history.looking import BlockingHistory

        return BlockingHistory(self._app)

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
