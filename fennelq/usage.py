"""Errors for a wrong value in place of a job or a result: a task, a coroutine, or a single value in place of a list.

The line with the mistake raises them, before anything is sent, and they name the right call.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from difflib import get_close_matches
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeGuard, TypeVar, cast, get_args

import orjson

from fennelq.declaration import check_name
from fennelq.errors import ConfigurationError, InvalidArguments, UsageError
from fennelq.model.job import Job
from fennelq.model.options import OptionArgs
from fennelq.model.wire import WireJob
from fennelq.wording import a_kind_of, suggestion

if TYPE_CHECKING:
    from fennelq.result import AsyncResult
    from fennelq.sync.sync import BlockingResult
    from fennelq.task import AnyTask

    AnyResult: TypeAlias = AsyncResult[Any] | BlockingResult[Any]

R = TypeVar("R")
AnyR = TypeVar("AnyR", bound="AnyResult")
ResultKind = Literal["AsyncResult", "BlockingResult"]

_MODULES = {"AsyncResult": "fennelq.result", "BlockingResult": "fennelq.sync.sync", "Task": "fennelq.task"}
_LONGEST = 60
_MOST_SHOWN = 3


def jobs_given(where: str, jobs: Iterable[Job[R]], more: tuple[object, ...] = ()) -> list[WireJob[R]]:
    """The jobs in their form to be sent; raises UsageError for anything but a list of jobs, and for `more`
    arguments."""
    if more:
        calls = ", ".join(map(call_for, [jobs, *more][:_MOST_SHOWN]))
        raise _refusal(f"{where} takes one list of jobs: write {where}([{calls}])", [jobs, *more])
    if not _is_list(jobs):
        but = "" if isinstance(jobs, WireJob) else f", not {_what(jobs)}"
        raise _refusal(f"{where} takes a list of jobs{but}: write {where}([{call_for(jobs)}])", [jobs])
    every = list(jobs)
    if set(map(type, every)) - {WireJob}:
        place, odd = next((place, job) for place, job in enumerate(every) if type(job) is not WireJob)
        what = f"element {place} is {_what(odd)}"
        raise _refusal(f"{where} takes a list of jobs, and {what}: write {where}([{call_for(odd)}])", every)
    return cast("list[WireJob[R]]", every)


def job_given(where: str, job: Job[R], more: str = "") -> WireJob[R]:
    """The job in its form to be sent; raises UsageError for anything else."""
    if isinstance(job, WireJob):
        return job
    raise _refusal(f"{where} takes a job, not {_what(job)}: write {where}({call_for(job)}{more})", [job])


def check_sent(task: object, options: OptionArgs, known: Iterable[str] = ()) -> None:
    """Raises UsageError for a task or a job instead of a task's name, ConfigurationError for a name that cannot be one,
    and for an unknown option."""
    if _is_job(task) or _is_task(task):
        instead = "app.enqueue([job])" if _is_job(task) else f"{_name_in(task)}.delay(…)"
        raise UsageError(f"app.send takes the name of a task, not {_what(task)}: write await {instead}")
    try:
        check_name(task)
    except ConfigurationError as error:
        if isinstance(task, str) and (near := _nearest(task, known)):
            raise ConfigurationError(f"{error}; did you mean {near!r}?") from None
        raise
    for name in options:
        if name not in OptionArgs.__annotations__:
            hint = suggestion(name, OptionArgs.__annotations__)
            raise ConfigurationError(
                f"unknown option {name!r}{hint if 'did you mean' in hint else ''}. "
                f"Arguments of the task that have a name go into _kwargs: _kwargs={{{name!r}: …}}"
            )


def _nearest(function: str, known: Iterable[str]) -> str | None:
    """The task whose function has this name, or a similar one."""
    by_function = {_name(task): task for task in known}
    near = get_close_matches(_name(function)[:200], by_function, n=1)
    return by_function[near[0]] if near else None


def gathered(where: str, results: Sequence[AnyResult], kind: ResultKind = "AsyncResult") -> None:
    """Raises UsageError when an argument of `gather` is not a result, for example a list of results."""
    for result in results:
        if isinstance(result, list | tuple | set):
            inside: list[Any] = [*result]
            raise _refusal(
                f"{where} takes results one by one, not a list of them: write {where}(*results)", inside
            )
        if not _is_result(result, kind):
            raise _refusal(f"{where} takes results, not {_what(result)}: {_instead(result, kind)}", results)


def results_given(
    where: str, results: Iterable[AnyR], more: tuple[object, ...] = (), kind: ResultKind = "AsyncResult"
) -> list[AnyR]:
    """The results as a list; raises UsageError for anything but a list of results, and for `more` arguments."""
    if more:
        raise _refusal(f"{where} takes one list of results: write {where}([first, second])", [results, *more])
    if _is_result(results, kind):
        raise UsageError(f"{where} takes a list of results, not one: write {where}([result])")
    if not _is_list(results):
        raise _refusal(
            f"{where} takes a list of results, not {_what(results)}: {_instead(results, kind)}", [results]
        )
    every = list(results)
    for place, result in enumerate(every):
        if not _is_result(result, kind):
            what = f"element {place} is {_what(result)}"
            raise _refusal(f"{where} takes a list of results, and {what}: {_instead(result, kind)}", every)
    return every


def check_options(task: str, nameless: tuple[object, ...]) -> None:
    """Raises UsageError for options without a name."""
    if nameless:
        raise UsageError(
            f'{_name(task)}.options takes options by name, like {_name(task)}.options(queue="mail")'
        )


def check_arguments(task: str, args: object, kwargs: object) -> None:
    """Raises InvalidArguments when the arguments of a scheduled call are not a tuple and a dict."""
    if not isinstance(args, tuple | list):
        raise InvalidArguments(task, f"args= is a tuple, like args=(42,), not {args!r:.60}")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise InvalidArguments(task, f'kwargs= is a dict, like kwargs={{"user_id": 42}}, not {kwargs!r:.60}')


def rows(task: str, columns: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """The arguments of each call that `map` makes; raises InvalidArguments when the columns do not fit together."""
    if not columns:
        raise InvalidArguments(task, "map takes the values of each parameter: write map([1, 2, 3])")
    for column in columns:
        if isinstance(column, str | bytes) or not isinstance(column, Iterable):
            raise InvalidArguments(task, f"map takes a list of values: write map([{column!r:.60}])")
    each = zip(*columns, strict=True)
    while True:
        try:
            row = next(each)
        except StopIteration:
            return
        except ValueError as error:
            if not str(error).startswith("zip()"):
                raise
            raise InvalidArguments(task, f"map takes columns of the same length{_lengths(columns)}") from None
        yield row


def is_over(timeout: float, name: str = "timeout") -> bool:
    """Whether a timeout leaves no time at all; raises UsageError when it is not a number of seconds."""
    given = cast("object", timeout)
    if not isinstance(given, int | float) or math.isnan(given):
        raise UsageError(f"{name} is a number of seconds, not {given!r:.100}")
    return given <= 0


def call_for(given: Any) -> str:
    """The call of `job()` that the caller probably meant, as code."""
    arguments = _arguments(given.args) if isinstance(given, WireJob) else "…"
    return f"{_name_in(given)}.job({arguments})"


def _refusal(text: str, given: Iterable[Any]) -> UsageError:
    """The error. It closes the coroutines among the arguments: Python would warn that they were never awaited."""
    for one in given:
        if inspect.iscoroutine(one):
            one.close()
    return UsageError(text)


def _lengths(columns: Sequence[Iterable[Any]]) -> str:
    sized = [len(column) for column in columns if isinstance(column, Sized)]
    return f": these have {', '.join(map(str, sized))}" if len(sized) == len(columns) else ""


def _instead(given: object, kind: ResultKind) -> str:
    """How to get a result of this kind."""
    other = type(given).__name__
    if kind == "AsyncResult":
        if other == "BlockingResult":
            return "a BlockingResult is for code without an event loop: call its own get()"
        return f"`await {_name_in(given)}.delay(…)` returns a result"
    if other == "AsyncResult":
        return "an AsyncResult is for code with an event loop: use app.sync.result(result.id) in code without one"
    return f"`{_name_in(given)}.sync.delay(…)` returns a result"


def _is_list(given: object) -> bool:
    return isinstance(given, Iterable) and not isinstance(given, Job | str | bytes | Mapping)


def _what(given: object) -> str:
    """A description of the value."""
    if _is_job(given):
        return "a job" if isinstance(given, WireJob) else "a Job that no task has made"
    if _is_result(given):
        return "the result of a job that was sent"
    if _is_task(given):
        return "a task"
    if inspect.iscoroutine(given):
        return "a coroutine (delay() sends the job by itself)" if _task_in(given) else "a coroutine"
    if inspect.isroutine(given):
        return "a function that was not called"
    return a_kind_of(given)


def _is_job(given: object) -> bool:
    return isinstance(given, Job)


def _is_task(given: object) -> TypeGuard[AnyTask]:
    return _is_a("Task", given)


def _is_result(given: object, *kinds: ResultKind) -> bool:
    return any(_is_a(kind, given) for kind in kinds or get_args(ResultKind))


def _is_a(kind: str, given: object) -> bool:
    # Not imported here: these modules import this one, and code that uses one way to Redis would import both. A kind
    # whose module is not imported, or is being imported by another thread, has no values yet.
    known = getattr(sys.modules.get(_MODULES[kind]), kind, None)
    return known is not None and isinstance(given, known)


def _task_in(given: object) -> AnyTask | None:
    """The task: `given` itself, the owner of a method, or that of an un-awaited `delay()`; None for anything else."""
    owner: Any = given
    if inspect.iscoroutine(given):
        frame: FrameType | None = given.cr_frame
        owner = frame.f_locals.get("self") if frame is not None else None
    elif inspect.ismethod(given):
        owner = given.__self__
    return owner if _is_task(owner) else None


def _name_in(given: Any) -> str:
    if isinstance(given, WireJob):
        return _name(given.task)
    task = _task_in(given)
    return _name(task.name) if task is not None else "task"


def _name(task: str) -> str:
    """The name that the task probably has in the user's code."""
    return task.rpartition(":")[2].rpartition(".")[2]


def _arguments(encoded: bytes) -> str:
    """The arguments as code, if that is short."""
    args, kwargs = orjson.loads(encoded)
    written = ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())])
    return written if len(written) <= _LONGEST else "…"
