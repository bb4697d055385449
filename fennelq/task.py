"""Tasks: functions that can be sent."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Never,
    ParamSpec,
    Protocol,
    Self,
    TypeGuard,
    TypeVar,
    Unpack,
    overload,
)

from fennelq.errors import ConfigurationError, FennelqError, InvalidArguments, PayloadTooLarge
from fennelq.middleware import Performers
from fennelq.model.codec import Call, CallArguments, CallCodec
from fennelq.model.dedupe import Deduplication
from fennelq.model.job import Job, new_key
from fennelq.model.limits import Limits
from fennelq.model.options import OptionArgs, Options
from fennelq.model.plan import Plan
from fennelq.model.result_codec import RelayedResultCodec, ResultCodec
from fennelq.model.schedule import Schedule, When
from fennelq.model.units import Seconds
from fennelq.model.wire import NOTHING, WireJob
from fennelq.result import AsyncResult
from fennelq.usage import check_arguments, check_options, rows

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.sync.sync import BlockingTask

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
A = TypeVar("A")
B = TypeVar("B")
A_contra = TypeVar("A_contra", contravariant=True)
B_contra = TypeVar("B_contra", contravariant=True)


class _OneParameter(Protocol[A_contra, R_co]):
    """A task that can be called with one argument."""

    def job(self, first: A_contra, /) -> Job[R_co]: ...


class _TwoParameters(Protocol[A_contra, B_contra, R_co]):
    """A task that can be called with two arguments."""

    def job(self, first: A_contra, second: B_contra, /) -> Job[R_co]: ...


class Task(Generic[P, R]):
    """A function with a name, a queue and options. `delay()` sends a call of it; a plain call runs the function here.

    A task never changes: `options()` returns another task of the same type.
    """

    app: App
    name: str
    """`module:function`, or the name given by `name=`. The worker finds the task by this name."""
    function: Callable[P, Any]
    """The function of the task, without the decorator."""
    isolated = False
    """Whether the function runs in a process of its own."""

    def __init__(self, app: App, name: str, function: Callable[P, Any], declared: Options) -> None:
        self.app, self.name, self.function = app, name, function
        self.declared, self._routed = declared, app.routes.routed(name)
        self.is_async = inspect.iscoroutinefunction(function)
        self.injection = app.injections.of(name, function, process=self.isolated)
        """What the worker makes for the parameters that are injected; None when there are none."""
        self.calls = CallCodec(name, function, self.injection.names if self.injection else ())
        self.returns: ResultCodec[R] = ResultCodec.of(name, function)
        self.read = self.calls.decode
        """Reads the arguments of a delivery, in the process of the worker."""
        self._surround(None)
        self.plan = Plan.of(
            declared,
            retries=app.settings.default_retries,
            result_ttl=app.settings.result_ttl,
            failure_ttl=app.settings.failure_ttl,
        )
        self._bind(Options())
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def __repr__(self) -> str:
        return f"<Task {self.name} on {self.queue}>"

    def _surround(self, performers: Performers | None) -> None:
        """Run the function inside of these from now on. The app calls it when middleware is registered."""
        self.performers = performers
        self.plain = self.is_async and self.injection is None and performers is None
        """Whether the runner may call the function directly, when the job has no timeout. Computed once, because the
        runner asks for every job. The calls of other tasks go through `worker/running/body.py`."""

    @property
    def queue(self) -> str:
        """The queue of its jobs: that of its options, of the closest route, or `default_queue`."""
        return self._own_queue or self._routed.known or self._routed.queue()

    @property
    def is_routed(self) -> bool:
        """Whether neither the task nor the call names a queue, so that the routes of the app decide."""
        return self._own_queue is None

    def job(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Describe a call without sending it. Raises InvalidArguments when the arguments do not fit."""
        return self._encoded(args, kwargs)

    async def delay(self, *args: P.args, **kwargs: P.kwargs) -> AsyncResult[R]:
        """Send a call. When this returns, the job is in Redis and will not be lost."""
        return await self.app.client.send(self._encoded(args, kwargs))

    @overload
    async def map(self: _OneParameter[A, R], column: Iterable[A], /) -> list[AsyncResult[R]]: ...
    @overload
    async def map(
        self: _TwoParameters[A, B, R], first: Iterable[A], second: Iterable[B], /
    ) -> list[AsyncResult[R]]: ...
    @overload
    async def map(
        self, first: Iterable[Any], second: Iterable[Any], third: Iterable[Any], /, *more: Iterable[Any]
    ) -> list[AsyncResult[R]]: ...
    async def map(self, *columns: Iterable[Any]) -> list[AsyncResult[R]]:
        """Send one call for each element, like the built-in `map`: `await resize.map(["a.png", "b.png"])`."""
        return await self.app.client.send_all(self._described(columns))

    @overload
    def jobs(self: _OneParameter[A, R], column: Iterable[A], /) -> list[Job[R]]: ...
    @overload
    def jobs(self: _TwoParameters[A, B, R], first: Iterable[A], second: Iterable[B], /) -> list[Job[R]]: ...
    @overload
    def jobs(
        self, first: Iterable[Any], second: Iterable[Any], third: Iterable[Any], /, *more: Iterable[Any]
    ) -> list[Job[R]]: ...
    def jobs(self, *columns: Iterable[Any]) -> list[Job[R]]:
        """Describe the calls that `map` would send. If one does not fit, the error names its element."""
        return [*self._described(columns)]

    def _described(self, columns: Iterable[Iterable[Any]]) -> list[WireJob[R]]:
        """As `jobs`, for columns that a type checker has not checked."""
        described: list[WireJob[R]] = []
        for place, args in enumerate(rows(self.name, list(columns))):
            try:
                described.append(self._encoded(args, {}))
            except FennelqError as error:
                error.add_note(f"(element {place} of map; nothing was sent)")
                raise
        return described

    def options(self, *nameless: Never, **options: Unpack[OptionArgs]) -> Self:
        """The same task with other options for the calls made through it."""
        check_options(self.name, nameless)
        of_the_call = self._of_the_call.with_(options)
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._bind(of_the_call)
        return other

    def cron(
        self,
        expression: str,
        /,
        *,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        name: str | None = None,
        **when: Unpack[When],
    ) -> Schedule:
        """Declare that this task runs on a cron schedule, with these arguments."""
        job = self._call(args, kwargs)
        return self.app.declared.add(
            job, name=name, cron=expression, every=None, when=when, routed=self.is_routed
        )

    def every(
        self,
        interval: Seconds,
        /,
        *,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        name: str | None = None,
        **when: Unpack[When],
    ) -> Schedule:
        """Declare that this task runs at an interval, with these arguments."""
        job = self._call(args, kwargs)
        return self.app.declared.add(
            job, name=name, cron=None, every=interval, when=when, routed=self.is_routed
        )

    @property
    def sync(self) -> BlockingTask[P, R]:
        """The same task for code without an event loop: `welcome.sync.delay(42).get(timeout=30)`."""
        from fennelq.sync.sync import BlockingTask

        return BlockingTask(self)

    def _encoded(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> WireJob[R]:
        """As `job`, for arguments that a type checker has not checked."""
        try:
            encoded = self.calls.encode(args, kwargs)
        except InvalidArguments:
            self._refuse_options(kwargs)
            raise
        if len(encoded) > self._most_bytes:
            raise PayloadTooLarge(f"the arguments of {self.name}", len(encoded), self._most_bytes)
        queue = self.queue
        carried = self._carried
        if self.limits is not None:
            carried = {**carried, "gates": self.limits.gates(self.calls.named(args, kwargs))}
        if self.deduplication is not None:
            carried = self.deduplication.added_to(carried, CallArguments(self.calls, args, kwargs, encoded))
        if self._job_id is None:
            return WireJob(queue, new_key(), self.name, encoded, self.returns, carried)
        # By the nonce, Redis distinguishes this caller's own retry from another caller's job of the same id.
        carried = {**carried, "nonce": new_key()}
        return WireJob(queue, self._job_id, self.name, encoded, self.returns, carried)

    def _bind(self, of_the_call: Options) -> None:
        """Compute once what all calls through this task have in common."""
        merged = self.declared.with_(of_the_call.given)
        self._of_the_call = of_the_call
        self._own_queue = merged.given.get("queue")
        self._job_id = merged.given.get("job_id")
        self._most_bytes = self.app.settings.max_payload_bytes
        self.limits = Limits.of(self.name, merged.given)
        """What bounds the starts of its jobs; None when nothing does."""
        if self.limits is not None:
            self.limits.check(self.calls.names, self.calls.parameters)
            self._check_one_queue(self.limits, of_the_call)
        self.deduplication = Deduplication.of(self.name, merged.given)
        """What its calls do about duplicates; None when they carry nothing but perhaps a key that is a text."""
        if self.deduplication is not None:
            self.deduplication.check(self.calls.names, self.calls.parameters)
        self._carried = self._carry(merged, of_the_call.to_wire()) or NOTHING

    def _check_one_queue(self, limits: Limits, of_the_call: Options) -> None:
        """Raises ConfigurationError for a call to another queue: a limit counts within one."""
        queue = of_the_call.given.get("queue")
        if not queue or not limits.counts_in_one_queue:
            return
        usual = self.declared.given.get("queue") or self._routed.queue()
        if queue != usual:
            raise ConfigurationError(
                f"{self.name} has a limit, which counts in its queue {usual!r}, so its jobs cannot be sent to "
                f"{queue!r} as well: let each queue count for itself, with Limit(…, per_queue=True) or "
                "Rate(…, per_queue=True), or give the other queue a task of its own"
            )

    def _carry(self, merged: Options, for_worker: bytes) -> dict[str, Any]:
        carried = merged.carried()
        if "idempotency" in carried:
            carried["idempotency"] = f"{self.name}:{carried['idempotency']}"
        elif self.deduplication is None:
            # `ttl` is the time for which a key is held: without a key it must not make the record larger.
            carried.pop("window_ms", None)
        if for_worker:
            carried["options"] = for_worker.decode()
        return carried

    def _call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> WireJob[R]:
        """A call whose arguments a type checker has not checked."""
        check_arguments(self.name, args, kwargs)
        return self._encoded(args, kwargs or {})

    def _refuse_options(self, kwargs: Mapping[str, Any]) -> None:
        """Raises an error that names the right call when an argument has the name of an option: a likely mistake."""
        for name in kwargs:
            if name in OptionArgs.__annotations__ and not self.calls.takes(name):
                raise InvalidArguments(
                    self.name,
                    f"{name}= is an option, not an argument: "
                    f"write {self.name.rpartition(':')[2]}.options({name}=…).delay(…)",
                ) from None


class AsyncTask(Task[P, R]):
    """An `async def` task."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call the function here, without a queue."""
        if self.injection is not None:
            self.injection.check_plain_call(args, kwargs)
        call: Callable[P, Coroutine[Any, Any, R]] = self.function
        return call(*args, **kwargs)


class ThreadTask(Task[P, R]):
    """A `def` task: the worker runs it in a thread."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here, without a queue."""
        if self.injection is not None:
            self.injection.check_plain_call(args, kwargs)
        call: Callable[P, R] = self.function
        return call(*args, **kwargs)


class ProcessTask(ThreadTask[P, R]):
    """A `def` task with `isolation="process"`: the worker runs it in a process of its own, which it can kill."""

    isolated = True

    def __init__(self, app: App, name: str, function: Callable[P, Any], declared: Options) -> None:
        super().__init__(app, name, function, declared)
        # That process reads the arguments and writes the result: large ones must not block the loop of the worker.
        self.read = _not_here
        self.returns = RelayedResultCodec.of(name, function)


def _not_here(raw: bytes) -> Call:
    return (), {}


AnyTask = Task[Any, Any]


def is_task(function: Callable[..., Any]) -> TypeGuard[AnyTask]:
    """Whether this is a task already, because decorators may be stacked."""
    return isinstance(function, Task)
