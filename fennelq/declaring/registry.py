"""What the code of an app registers: tasks, schedules, middleware, subscribers, plugins and providers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, Unpack, cast, overload

from fennelq.carry import Carried
from fennelq.connections import Connections
from fennelq.declaration import call_without_arguments, check_speculation, check_when
from fennelq.declaring.registering import TaskDecorator, made_task
from fennelq.declaring.schedules import Declared
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
from fennelq.model.bounds import Bounds
from fennelq.model.events import AnyEvent
from fennelq.model.limits import Definitions
from fennelq.model.options import OptionArgs
from fennelq.model.routes import Route, Routes
from fennelq.model.schedule import ScheduledArgs, split_when
from fennelq.model.units import Seconds
from fennelq.plugin import Plugin, PluginMaker, Plugins
from fennelq.redaction import H, Redaction
from fennelq.settings.settings import Settings
from fennelq.subscribers import EventDecorator, Subscribers, event_given, subscriber_given
from fennelq.task import AnyTask, AsyncTask, ThreadTask, is_task

if TYPE_CHECKING:
    from fennelq.app import App

P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E", bound=AnyEvent)
S = TypeVar("S", bound=Sender)
F = TypeVar("F", bound=Performer)


class Registry(Connections):
    """The part of an App by which code registers what it has. It sends nothing."""

    def __init__(self, settings: Settings, root: Path, lifespan: Lifespan | None) -> None:
        super().__init__(settings, root)
        self.declared = Declared()
        self.routes = Routes(settings.default_queue)
        self.bounds = Bounds()
        self.injections = Injections(cast("App", self), lifespan)
        self._tasks: dict[str, AnyTask] = {}
        self._definitions = Definitions()
        self._speculating: dict[str, float] = {}
        self.redaction = Redaction(self._tasks, settings.redact)
        self.middleware, self.subscribers, self.plugins = Middleware(), Subscribers(), Plugins()
        self.carried = Carried(settings.carry)
        if self.carried:
            self.middleware.put_first(self.carried.stamp, self.carried.perform)

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
        idempotent: bool = False,
        speculate: float | None = None,
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
        idempotent: bool = False,
        speculate: float | None = None,
        **options: Unpack[OptionArgs],
    ) -> Any:
        """Make a function a task of this app: `@app.task` or `@app.task(queue="mail", retries=5)`.

        With `isolation="process"`, a `def` function runs in a process of its own, which a timeout or a cancel kills.
        `sending` and `performing` are middleware for this task only, inside of that for every task. With
        `speculate=0.95`, a run that takes longer than 95 % of the runs of this task gets a second copy in another
        executor, and the first one that succeeds ends the job. The task must be `idempotent=True`: both copies run it.
        """
        check_speculation(speculate, idempotent)
        senders = senders_given("app.task(sending=…)", sending)
        performers = performers_given("app.task(performing=…)", performing)

        def register(function: Callable[..., Any]) -> AnyTask:
            task = self._register(function, name, options, isolation)
            if speculate is not None:
                self._speculating[task.name] = speculate
            if senders or performers:
                self.middleware.of_task(task.name, senders, performers)
                self._surround(task)
            return task

        return register if function is None else register(function)

    @property
    def tasks(self) -> Mapping[str, AnyTask]:
        """The tasks by name."""
        return MappingProxyType(self._tasks)

    @property
    def speculating(self) -> Mapping[str, float]:
        """The names of the tasks with `speculate`, and its values."""
        return MappingProxyType(self._speculating)

    def route(self, pattern: str, /, *, queue: str) -> None:
        """Send the jobs of the tasks that match to a queue: `app.route("shop.images.*", queue="gpu")`.

        A queue of the task or of the call overrides it. Of several routes that match a task, an exact name comes before
        a pattern, and a longer pattern before a shorter one. The caller resolves routes when it sends a job: a job that
        was sent stays in its queue.
        """
        free = [task.name for task in self._tasks.values() if task.is_routed]
        self.routes.add(Route.of(pattern, queue), free)
        self.declared.follow(self.routes)

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

    def redacting(self, hide: H, /) -> H:
        """Call this with the arguments of a job before they are shown, and show what it returns:
        `def hide(task: str, arguments: dict[str, Any]) -> dict[str, Any]`.

        It gets the arguments by name, as JSON values, and must not change the job: it returns other arguments. What it
        leaves out is shown as `[redacted]`, and if it raises an exception, everything is. Names that look like those of
        secrets, and those of the setting `redact`, are hidden in any case.
        """
        self.redaction.add(hide)
        return hide

    def use(self, plugin: Plugin | PluginMaker, /) -> None:
        """Register all that a plugin brings."""
        used = self.plugins.add(plugin, cast("App", self))
        self.middleware.add(used.sending, used.performing)
        self.middleware.surround(used.surrounding)
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
        """Use other providers inside of a `with` block, in tests: `with app.overrides({get_db: fake_db}):`.

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
            job = call_without_arguments(called)
            self.declared.add(job, name=name, cron=cron, every=every, when=times, routed=called.is_routed)
            return task

        return decorate

    def _register(
        self,
        function: Callable[..., Any],
        name: str | None,
        options: OptionArgs,
        isolation: str | None = None,
    ) -> AnyTask:
        task = made_task(cast("App", self), function, name, options, isolation)
        if task.is_routed:
            # Raises here, where the task is declared, when two routes match it equally.
            self.routes.queue_of(task.name)
        self._definitions.add(task.name, task.limits, None if task.is_routed else task.queue)
        self._surround(task)
        self._tasks[task.name] = task
        return task
