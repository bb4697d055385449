"""The App: what its code registers (`registry.py`), sending jobs, operating them. It runs no job."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never, Self, TypeVar, Unpack

from fennelq import embedded
from fennelq.counting import Counting
from fennelq.declaration import check_app, check_fingerprint
from fennelq.declaring.codeless import described_without_code, warn_of_name
from fennelq.declaring.origin import module_of
from fennelq.declaring.registry import Registry
from fennelq.injection.markers import Lifespan
from fennelq.model.checks import valid_name
from fennelq.model.job import Job, Status, split_id
from fennelq.model.options import OptionArgs, Options
from fennelq.model.units import Seconds
from fennelq.result import AsyncResult
from fennelq.settings.settings import SettingArgs, Settings
from fennelq.task import AnyTask
from fennelq.usage import check_sent, job_given, jobs_given

if TYPE_CHECKING:
    from fennelq.blocking import BlockingApp
    from fennelq.manage.audit import Audit
    from fennelq.manage.dead.dead import DeadLetters
    from fennelq.manage.executors.executors import Executors
    from fennelq.manage.history.looking import History
    from fennelq.manage.jobs import Jobs
    from fennelq.manage.limits import Limits
    from fennelq.manage.operations import Operations
    from fennelq.manage.queues.queue import Queue
    from fennelq.manage.queues.queues import Queues
    from fennelq.manage.schedules import Schedules
    from fennelq.manage.times import RunTimes
    from fennelq.model.bounds import WhenFull

R = TypeVar("R")


class App(Registry):
    """A set of tasks, and the Redis through which their jobs are sent.

    Settings come from `[tool.fennelq]` in pyproject.toml, `FENNELQ_…` variables and these keyword arguments; later
    ones override earlier ones. The app connects to Redis with the first call.
    """

    name: str
    """The name that was passed."""
    namespace: str
    """The first part of its keys in Redis: the setting, or the name."""
    service: str
    """The service that owns the schedules of this code. A worker names it after the module it was started with."""
    settings: Settings
    """The settings, merged from all sources."""
    fingerprint: Callable[[str, BaseException], str | None] | None
    """The function that makes the fingerprints of failures; None for the usual ones."""

    def __init__(
        self,
        name: str,
        *nameless: Never,
        lifespan: Lifespan | None = None,
        fingerprint: Callable[[str, BaseException], str | None] | None = None,
        **settings: Unpack[SettingArgs],
    ) -> None:
        """`name` is the first part of every key in Redis.

        `lifespan` is an async generator that gets the app. Every executor runs it up to its `yield` before the first
        job, and the rest of it after the last job. The value that it yields is `app.state`.

        `fingerprint` decides which failures belong together in `dlq.groups()`. It gets the name of the task and the
        exception, and returns a text that is equal for failures of one cause, or None to use the usual fingerprint.

        The other arguments are settings; an editor shows the meaning of each. They override `FENNELQ_…` variables, and
        those override `[tool.fennelq]` in pyproject.toml.
        """
        check_app(name, nameless)
        check_fingerprint(fingerprint)
        self.name = valid_name("app name", name)
        made_by = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        self.service = f"{module_of(made_by)}:{name}"
        root = embedded.project_root(Path(made_by.f_globals.get("__file__") or Path.cwd()))
        super().__init__(Settings.load(root, **settings), root, lifespan)
        self.namespace, self.fingerprint = self.settings.namespace or name, fingerprint
        self.counting = Counting(self.settings.metrics_by if self.settings.metrics else "")

    def __repr__(self) -> str:
        return f"<App {self.name}>"

    # Sending

    async def enqueue(self, jobs: Iterable[Job[R]], *more: Never) -> list[AsyncResult[R]]:
        """Send any number of jobs in as few round trips as possible; returns their handles in order.

        When some jobs are refused, the others are sent, and it raises EnqueueFailed with the errors and the handles.
        """
        return await self.client.send_all(jobs_given("app.enqueue", jobs, more))

    async def send(
        self,
        task: str,
        /,
        *args: Any,
        _kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[OptionArgs],
    ) -> AsyncResult[Any]:
        """Send a call of a task by its name, without its code; keyword arguments go into `_kwargs`.

        Warns when this app has tasks but none of this name, because the name may be misspelt. The job is sent anyway.
        """
        job = self.describe(task, *args, _kwargs=_kwargs, **options)
        warn_of_name(task, self._tasks)
        return await self.client.send(job_given("app.send", job))

    def describe(
        self,
        task: str,
        /,
        *args: Any,
        _kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[OptionArgs],
    ) -> Job[Any]:
        """The job that `send` would send for this call."""
        check_sent(task, options, self._tasks)
        known = self._tasks.get(task)
        checked = Options().with_(options)
        if known is not None:
            return known.options(**options).job(*args, **(_kwargs or {}))
        return described_without_code(self, task, args, dict(_kwargs or {}), checked)

    async def call(self, job: Job[R], timeout: float | None = None) -> R:
        """Send a job and wait for its return value."""
        return await (await self.client.send(job_given("app.call", job))).get(timeout)

    def result(self, job_id: str) -> AsyncResult[Any]:
        """The handle of a job, from its id; raises InvalidJobId when the text is not a job id."""
        split_id(job_id)
        return AsyncResult(self, job_id, None)

    # Operating

    async def cancel(
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

        Jobs that do not run are cancelled at once. Running ones are asked to stop, as by `AsyncResult.cancel`, but the
        method does not wait until they have ended. `task` is a task, `module:function`, or only the function's name;
        `older_than` is the time since a job was sent. `where` is a filter such as `task:welcome tenant-17`; it cannot
        be combined with the other filters. Without a filter, `all=True` is required. Jobs that are sent meanwhile are
        not cancelled.
        """
        from fennelq.manage.cancelling import Cancelling, Selection

        selection = Selection.of(queue, task, status, older_than, where)
        cancelling = Cancelling(self, selection, limit=limit, reason=reason, everything=all)
        return await self.client.converse(cancelling.run())

    @cached_property
    def schedules(self) -> Schedules:
        """Recurring jobs, declared in code or made at run time."""
        from fennelq.manage.schedules import Schedules

        return Schedules(self)

    @cached_property
    def dlq(self) -> DeadLetters:
        """The dead-letter queues."""
        from fennelq.manage.dead.dead import DeadLetters

        return DeadLetters(self)

    @cached_property
    def queues(self) -> Queues:
        """The queues: count and list their jobs, pause, resume and empty a queue."""
        from fennelq.manage.queues.queues import Queues

        return Queues(self)

    def queue(self, name: str, *, max_waiting: int | None = None, when_full: WhenFull | None = None) -> Queue:
        """One queue: `await app.queue("mail").pause(why="the mail server is down")`.

        `max_waiting=` declares how many jobs may wait in the queue; declare it in the module that declares the tasks.
        While that many jobs wait, a call that sends jobs raises QueueFull. With `when_full="wait"`, the call waits for
        room, and raises QueueFull if the queue has accepted none of its jobs for `enqueue_timeout`. With
        `when_full="drop_oldest"`, the oldest job that waits goes to the dead-letter queue.
        """
        from fennelq.manage.queues.queue import Queue

        self.bounds.declare(name, max_waiting, when_full)
        return Queue(self, name)

    @cached_property
    def jobs(self) -> Jobs:
        """Single jobs, by their ids: look at them, wait for them, cancel and retry them."""
        from fennelq.manage.jobs import Jobs

        return Jobs(self)

    @cached_property
    def operations(self) -> Operations:
        """Operations on all jobs that match a filter, which outlive the process that performs them."""
        from fennelq.manage.operations import Operations

        return Operations(self)

    @cached_property
    def limits(self) -> Limits:
        """The limits of the queues: list them, and change their numbers at run time."""
        from fennelq.manage.limits import Limits

        return Limits(self)

    @cached_property
    def executors(self) -> Executors:
        """The executors, with what they have reported about themselves."""
        from fennelq.manage.executors.executors import Executors

        return Executors(self)

    @cached_property
    def times(self) -> RunTimes:
        """How long the runs of each task take, and how long its jobs wait."""
        from fennelq.manage.times import RunTimes

        return RunTimes(self)

    @cached_property
    def audit(self) -> Audit:
        """The record of operations: who has changed what, and how it ended."""
        from fennelq.manage.audit import Audit

        return Audit(self)

    @cached_property
    def history(self) -> History:
        """The jobs that have ended, in a database of your own: the setting `history_url`."""
        from fennelq.manage.history.looking import History

        return History(self)

    @cached_property
    def sync(self) -> BlockingApp:
        """The same API for code without an event loop: `app.sync.dlq.replay()`."""
        from fennelq.blocking import BlockingApp

        return BlockingApp(self)

    # Closing

    async def close(self) -> None:
        """Finish the calls under way, and close the connections of this event loop. The app can be used again."""
        await self._close_client()

    async def __aenter__(self) -> Self:
        """`async with app:` closes the app at the end of the block, as `close()` does."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
