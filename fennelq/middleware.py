"""Code around every job: senders see it before it is sent, performers are around its function while it runs.
Surrounders are around the calls that send jobs.

Chains are built when something is registered. An app without middleware has None in their place, which is all that a
plain job tests.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, Final, TypeVar, cast

from fennelq.context import JobContext
from fennelq.errors import ConfigurationError, UsageError
from fennelq.model.job import Job
from fennelq.model.wire import WireJob
from fennelq.wording import a_kind_of

R = TypeVar("R")

Sender = Callable[[Job[Any]], Job[Any]]
Call = Callable[[], Awaitable[Any]]
Performer = Callable[[JobContext, Callable[[], Awaitable[Any]]], Awaitable[Any]]

Surrounder = Callable[[Sequence[Job[Any]]], AbstractContextManager[object]]
"""Called with the jobs of one call that sends jobs. Its context manager is entered before the senders see them, and
left with the reply of Redis, or with the error of the call."""

_SENDER: Final = "def stamp(job): return job.with_headers({…})"
_PERFORMER: Final = "async def timed(job, call): return await call()"
_SURROUNDER: Final = "@contextmanager def traced(jobs): yield"


class Senders:
    """The senders of an app and of its tasks, as one chain for each task."""

    def __init__(self, of_app: Sequence[Sender], of_tasks: Mapping[str, Sequence[Sender]]) -> None:
        self._of_app = tuple(of_app)
        self._of_tasks = {task: (*of_app, *own) for task, own in of_tasks.items()}

    def through(self, job: WireJob[R]) -> WireJob[R]:
        """The job that is sent in place of this one. Raises what a sender raises, and UsageError for a sender that
        breaks the rules."""
        for sender in self._of_tasks.get(job.task, self._of_app):
            job = _checked(sender, job, sender(job))
        return job

    def through_all(self, jobs: Iterable[WireJob[R]]) -> list[WireJob[R]]:
        """The jobs that are sent in place of these. When a sender raises, none of them is sent."""
        sent: list[WireJob[R]] = []
        try:
            for job in jobs:
                sent.append(self.through(job))  # noqa: PERF401 - an error has its place
        except Exception as error:
            error.add_note(f"(a sender raised this for element {len(sent)}; nothing was sent)")
            raise
        return sent


class Performers:
    """The performers around the function of a task, the outermost first."""

    def __init__(self, layers: Sequence[Performer]) -> None:
        self._inside_out = tuple(reversed(layers))

    def around(self, job: JobContext, function: Call) -> Awaitable[Any]:
        """Call the outermost performer, which calls the next one, and the innermost calls the function."""
        call = function
        for layer in self._inside_out:
            call = partial(layer, job, _Once(call, layer))
        return call()


class _Once:
    """What a performer calls: the layers inside of it. A second call raises RuntimeError."""

    __slots__ = ("_call", "_called", "_layer")

    def __init__(self, call: Call, layer: Performer) -> None:
        self._call, self._layer, self._called = call, layer, False

    def __call__(self) -> Awaitable[Any]:
        if self._called:
            raise RuntimeError(
                f"{name_of(self._layer)} has called call() twice: a try runs the function once. "
                "For another try, raise Retry"
            )
        self._called = True
        return self._call()


class Middleware:
    """Everything that was registered, in order, and the chains that are made of it."""

    def __init__(self) -> None:
        self.senders: Senders | None = None
        self.surrounding: Surrounder | None = None
        """What is around every call that sends jobs; None without any."""
        self._surrounders: list[Surrounder] = []
        self._sending: list[Sender] = []
        self._performing: list[Performer] = []
        self._of_tasks: dict[str, tuple[Sequence[Sender], Sequence[Performer]]] = {}

    def add(self, sending: Iterable[Sender] = (), performing: Iterable[Performer] = ()) -> None:
        """Register these for every job, inside of those that are registered already."""
        self._sending += sending
        self._performing += performing
        self._link()

    def surround(self, surrounders: Iterable[Surrounder]) -> None:
        """Put these around every call that sends jobs, inside of those that are registered already."""
        self._surrounders += surrounders
        if self._surrounders:
            self.surrounding = _all_of(self._surrounders)

    def put_first(self, sender: Sender, performer: Performer) -> None:
        """Register these for every job, outside of all others."""
        self._sending.insert(0, sender)
        self._performing.insert(0, performer)
        self._link()

    def of_task(self, task: str, sending: Sequence[Sender], performing: Sequence[Performer]) -> None:
        """Register these for the jobs of one task, inside of those for every job."""
        self._of_tasks[task] = (sending, performing)
        self._link()

    def performers(self, task: str) -> Performers | None:
        """The performers around this task, None without any."""
        layers = (*self._performing, *self._of_tasks.get(task, ((), ()))[1])
        return Performers(layers) if layers else None

    def _link(self) -> None:
        of_tasks = {task: sending for task, (sending, _) in self._of_tasks.items() if sending}
        self.senders = Senders(self._sending, of_tasks) if self._sending or of_tasks else None


def _all_of(surrounders: Sequence[Surrounder]) -> Surrounder:
    """All of them as one. A lone one is returned as it is, because an ExitStack takes as long as a short span."""
    if len(surrounders) == 1:
        return surrounders[0]

    @contextmanager
    def around(jobs: Sequence[Job[Any]]) -> Generator[None]:
        with ExitStack() as stack:
            for surrounder in surrounders:
                stack.enter_context(surrounder(jobs))
            yield

    return around


async def within(surrounder: Surrounder, jobs: Sequence[Job[Any]], send: Callable[[], Awaitable[R]]) -> R:
    """Send these jobs inside of the surrounder."""
    with surrounder(jobs):
        return await send()


def senders_given(where: str, given: object) -> tuple[Sender, ...]:
    """The senders of a list; raises ConfigurationError for anything else."""
    return tuple(map(partial(sender_given, where), _list_of(where, given, "senders", _SENDER)))


def performers_given(where: str, given: object) -> tuple[Performer, ...]:
    """The performers of a list; raises ConfigurationError for anything else."""
    return tuple(map(partial(performer_given, where), _list_of(where, given, "performers", _PERFORMER)))


def surrounders_given(where: str, given: object) -> tuple[Surrounder, ...]:
    """The surrounders of a list; raises ConfigurationError for anything else."""
    found = _list_of(where, given, "functions", _SURROUNDER)
    for one in found:
        if is_async(one) or not takes(one, 1):
            raise ConfigurationError(
                f"{where} takes a plain function of the jobs that returns a context manager, not {name_of(one)}: "
                f"write {_SURROUNDER}"
            )
    return tuple(cast("list[Surrounder]", found))


def sender_given(where: str, given: object) -> Sender:
    """The sender; raises ConfigurationError for anything that cannot be one."""
    if is_async(given) or inspect.isgeneratorfunction(given) or inspect.isasyncgenfunction(given):
        raise ConfigurationError(
            f"{where}: {name_of(given)} must be a plain def, because it is also called where no event loop runs: "
            f"write {_SENDER}"
        )
    if not takes(given, 1):
        raise ConfigurationError(f"{where} takes a function of a job, not {name_of(given)}: write {_SENDER}")
    return cast("Sender", given)


def performer_given(where: str, given: object) -> Performer:
    """The performer; raises ConfigurationError for anything that cannot be one."""
    if not is_async(given) or not takes(given, 2):
        what = "" if is_async(given) or not callable(given) else ", which is not an async def"
        raise ConfigurationError(
            f"{where} takes an async function of a job and a call, not {name_of(given)}{what}: write {_PERFORMER}"
        )
    return cast("Performer", given)


def is_async(function: object) -> bool:
    """Whether a call of it returns a coroutine: an `async def`, or an object whose `__call__` is one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    )


def takes(function: object, arguments: int) -> bool:
    """Whether it can be called with this number of arguments. A class is refused: it is most likely a mistake."""
    if not callable(function) or isinstance(function, type):
        return False
    try:
        inspect.signature(function).bind(*range(arguments))
    except TypeError:
        return False
    except ValueError:  # written in C, without a signature that Python can read
        return True
    return True


def name_of(function: object) -> str:
    """A function for messages: its module and name, and where it is."""
    if not callable(function):
        return a_kind_of(function)
    inner = function.func if isinstance(function, partial) else function
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    return f"{getattr(inner, '__module__', '?')}:{name}"


def _list_of(where: str, given: object, what: str, example: str) -> list[object]:
    if isinstance(given, list | tuple):
        return [*cast("Sequence[object]", given)]
    raise ConfigurationError(
        f"{where} takes a list of {what}, not {name_of(given)}: for one, [it] ({example})"
    )


def _checked(sender: Sender, job: WireJob[R], returned: object) -> WireJob[R]:
    """What a sender has returned, if it may be sent in place of the job."""
    if returned is job:
        return job
    if isinstance(returned, WireJob):
        if (returned.id, returned.task) == (job.id, job.task):
            return cast("WireJob[R]", returned)
        rule = f"returned {returned!r} in place of {job!r}: a sender keeps the id, the queue and the task of a job"
    elif inspect.iscoroutine(returned):
        returned.close()
        rule = "returned a coroutine: a sender is a plain function, also where an event loop runs"
    else:
        rule = (
            f"returned {a_kind_of(returned)}: a sender returns the job, like `return job.with_headers({{…}})`. "
            "To refuse a job, raise an exception"
        )
    raise UsageError(f"the sender {name_of(sender)} {rule}")
