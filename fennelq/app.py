"""The App: settings, the registry of tasks, sending jobs. It runs no job."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Never,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from fennelq import embedded
from fennelq.carry import Carried
from fennelq.connections import Connections
from fennelq.declaration import (
    call_without_arguments,
    check_app,
    check_when,
)
from fennelq.declared import Declared
from fennelq.injection.markers import Lifespan
from fennelq.injection.registry import Injections
from fennelq.middleware import (
    Middleware,
    Performer,
    Sender,
    performer_given,
    performers_given,
    sender_given,
    senders_given,
)
from fennelq.model.checks import valid_name
from fennelq.model.events import AnyEvent
from fennelq.model.job import Job, Status, split_id
from fennelq.model.options import OptionArgs, Options
from fennelq.model.schedule import ScheduledArgs, split_when
from fennelq.model.units import Seconds
from fennelq.origin import module_of
from fennelq.plugin import Plugin, Plugins
from fennelq.registering import TaskDecorator, made_task
from fennelq.result import AsyncResult
from fennelq.settings import SettingArgs, Settings
from fennelq.subscribers import EventDecorator, Subscribers, event_given, subscriber_given
from fennelq.task import (
    AnyTask,
    AsyncTask,
    ThreadTask,
    described_without_code,
    is_task,
    warn_of_name,
)
from fennelq.usage import check_sent, job_given, jobs_given

if TYPE_CHECKING:
    from fennelq.blocking import BlockingApp
    from fennelq.manage.dead import DeadLetters
    from fennelq.manage.executors import Executors
    from fennelq.manage.jobs import Jobs
    from fennelq.manage.queues import Queues
    from fennelq.manage.schedules import Schedules

P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E", bound=AnyEvent)
S = TypeVar("S", bound=Sender)
F = TypeVar("F", bound=Performer)


class App(Connections):
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

    def __init__(
        self, name: str, *nameless: Never, lifespan: Lifespan | None = None, **settings: Unpack[SettingArgs]
    ) -> None:
        """`name` is the first part of every key in Redis.

        `lifespan` is an async generator that gets the app. Every executor runs it to its `yield` before its first job,
        and on from there after its last. What it yields is `app.state`.

        The other arguments are settings; an editor shows the meaning of each. They override `FENNELQ_…` variables, and
        those override `[tool.fennelq]` in pyproject.toml.
        """
        check_app(name, nameless)
        self.name = valid_name("app name", name)
        made_by = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        self.service = f"{module_of(made_by)}:{name}"
        root = embedded.project_root(Path(made_by.f_globals.get("__file__") or Path.cwd()))
        super().__init__(Settings.load(root, **settings), root)
        self.namespace = self.settings.namespace or name
        self.declared = Declared()
        self.injections = Injections(self, lifespan)
        self._tasks: dict[str, AnyTask] = {}
        self.middleware, self.subscribers, self.plugins = Middleware(), Subscribers(), Plugins()
        self.carried = Carried(self.settings.carry)
        if self.carried:
            self.middleware.put_first(self.carried.stamp, self.carried.perform)

    def __repr__(self) -> str:
        return f"<App {self.name}>"

    # Tasks

    @overload
    def task(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> ThreadTask[P, R]: ...
    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        isolation: Literal["process"] | None = None,
        sending: Sequence[Sender] = (),
        performing: Sequence[Performer] = (),
        **options: Unpack[OptionArgs],
    ) -> TaskDecorator: ...
    def task(
        self,
        function: Any = None,
        /,
        *,
        name: str | None = None,
        isolation: Literal["process"] | None = None,
        sending: Sequence[Sender] = (),
        performing: Sequence[Performer] = (),
        **options: Unpack[OptionArgs],
    ) -> Any:
        """Make a function a task of this app: `@app.task` or `@app.task(queue="mail", retries=5)`.

        With `isolation="process"`, a `def` function runs in a process of its own, which a timeout or a cancel kills.
        `sending` and `performing` are middleware for this task only, inside of that for every task.
        """
        senders = senders_given("app.task(sending=…)", sending)
        performers = performers_given("app.task(performing=…)", performing)

        def register(function: Callable[..., Any]) -> AnyTask:
            task = self._register(function, name, options, isolation)
            if senders or performers:
                self.middleware.of_task(task.name, senders, performers)
                self._surround(task)
            return task

        return register if function is None else register(function)

    @property
    def tasks(self) -> Mapping[str, AnyTask]:
        """The tasks by name."""
        return MappingProxyType(self._tasks)

    # Middleware, events, plugins

    def sending(self, sender: S, /) -> S:
        """Call this with every job before it is sent: `def stamp(job: Job[Any]) -> Job[Any]`.

        It returns the job to send: the same one, `job.with_headers(…)` or `job.with_options(…)`. If it raises an
        exception, the caller gets it, and the job is not sent.
        """
        self.middleware.add(sending=[sender_given("app.sending", sender)])
        return sender

    def performing(self, performer: F, /) -> F:
        """Call this around every job: `async def timed(job: JobContext, call: Callable[[], Awaitable[Any]]) -> Any`.

        `await call()` runs the function of the task and returns its value. The performer that is registered first is
        the outermost. Its value or exception is treated as if it came from the task.
        """
        self.middleware.add(performing=[performer_given("app.performing", performer)])
        self._surround_tasks()
        return performer

    def on(self, event: type[E], /) -> EventDecorator[E]:
        """Call a function with every event of this kind in this process: `@app.on(JobDied)`.

        A plain function is called at once, and must not block. An `async def` is called for one event after another,
        from a queue of at most a thousand. An exception of a subscriber is logged, and does not affect the job.
        """
        kind = event_given("app.on", event)

        def subscribe(subscriber: Any, /) -> Any:
            self.subscribers.add(kind, subscriber_given(f"app.on({kind.__name__})", subscriber))
            return subscriber

        return subscribe

    def use(self, plugin: Plugin, /) -> None:
        """Register all that a plugin brings."""
        used = self.plugins.add(plugin)
        self.middleware.add(used.sending, used.performing)
        self._surround_tasks()
        for event, subscriber in used.subscribers.items():
            self.subscribers.add(event, subscriber)

    def carry(self, variable: ContextVar[str] | ContextVar[str | None], /) -> None:
        """Send the value of this variable, a string, with every job, and set the variable where the job runs. Jobs that
        this job sends inherit the value. For variables of `structlog.contextvars` there is the setting `carry`."""
        first = not self.carried
        self.carried.add(variable)
        if first:
            self.middleware.put_first(self.carried.stamp, self.carried.perform)
            self._surround_tasks()

    def _surround_tasks(self) -> None:
        for task in self._tasks.values():
            self._surround(task)

    def _surround(self, task: AnyTask) -> None:
        task._surround(self.middleware.performers(task.name))  # pyright: ignore[reportPrivateUsage]

    # Injection

    @property
    def state(self) -> Any:
        """What the lifespan has yielded. It exists while an executor runs; elsewhere this raises AttributeError."""
        return self.injections.state

    def overrides(
        self, replaced: Mapping[Callable[..., Any], Callable[..., Any]], /
    ) -> AbstractContextManager[None]:
        """Use other providers for the length of a `with` block, in tests: `with app.overrides({get_db: fake_db}):`.

        The blocks nest. Raises ConfigurationError for a provider that no task of the app uses.
        """
        self.injections.check(replaced)
        return self.injections.overridden(replaced)

    # Schedules

    def cron(
        self, expression: str, /, *, name: str | None = None, **when: Unpack[ScheduledArgs]
    ) -> TaskDecorator:
        """Make a function a task that runs on a cron schedule: `@app.cron("0 9 * * 1-5", tz="Europe/Paris")`."""
        return cast("TaskDecorator", self._recurring(expression, None, name, when))

    def every(
        self, interval: Seconds, /, *, name: str | None = None, **when: Unpack[ScheduledArgs]
    ) -> TaskDecorator:
        """Make a function a task that runs at an interval: `@app.every(30)`."""
        return cast("TaskDecorator", self._recurring(None, interval, name, when))

    @cached_property
    def schedules(self) -> Schedules:
        """Recurring jobs, declared in code or made at run time."""
        from fennelq.manage.schedules import Schedules

        return Schedules(self)

    def _recurring(
        self, cron: str | None, every: Seconds | None, name: str | None, args: ScheduledArgs
    ) -> Any:
        check_when("cron" if every is None else "every", cron if every is None else every)
        times, options = split_when(args)

        def decorate(function: Callable[..., Any]) -> AnyTask:
            if is_task(function):
                task, called = function, function.options(**options)
            else:
                task = called = self._register(function, None, options)
            self.declared.add(call_without_arguments(called), name=name, cron=cron, every=every, when=times)
            return task

        return decorate

    def _register(
        self,
        function: Callable[..., Any],
        name: str | None,
        options: OptionArgs,
        isolation: str | None = None,
    ) -> AnyTask:
        task = made_task(self, function, name, options, isolation)
        self._surround(task)
        self._tasks[task.name] = task
        return task

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

    async def cancel(
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

        Jobs that do not run are cancelled at once. Running ones are asked to stop, as `AsyncResult.cancel` does it, and
        this does not wait for their ends. `task` is a task, `module:function`, or only the function's name;
        `older_than` is the time since a job was sent. Without a filter, `all=True` is required. Jobs that are sent or
        change their state meanwhile may be missed: it can be called again.
        """
        from fennelq.manage.cancelling import Cancelling, Selection

        selection = Selection.of(queue, task, status, older_than)
        cancelling = Cancelling(self, selection, limit=limit, reason=reason, everything=all)
        return await self.client.converse(cancelling.run())

    @cached_property
    def dlq(self) -> DeadLetters:
        """The dead-letter queues."""
        from fennelq.manage.dead import DeadLetters

        return DeadLetters(self)

    @cached_property
    def queues(self) -> Queues:
        """The queues: count and list their jobs, and empty a queue."""
        from fennelq.manage.queues import Queues

        return Queues(self)

    @cached_property
    def jobs(self) -> Jobs:
        """Single jobs, by their ids: look at them, wait for them, cancel and retry them."""
        from fennelq.manage.jobs import Jobs

        return Jobs(self)

    @cached_property
    def executors(self) -> Executors:
        """The executors, as they have reported themselves."""
        from fennelq.manage.executors import Executors

        return Executors(self)

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
