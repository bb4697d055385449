"""Compares the jobs that wait with what a test expects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from fennelq import clock
from fennelq.errors import ConfigurationError
from fennelq.model.job import JobInfo
from fennelq.model.units import seconds
from fennelq.testing.sent import Expected, bound
from fennelq.wording import suggestion

if TYPE_CHECKING:
    from fennelq.task import AnyTask

_TOLERANCE = 1.0


class Wanted(NamedTuple):
    """A job that a test expects."""

    task: AnyTask
    arguments: Mapping[str, Any] | None
    """By the names of the parameters; None for any."""
    given: Expected

    def __str__(self) -> str:
        arguments = "…" if self.arguments is None else _joined(self.arguments)
        more = f" with {_joined(self.given)}" if self.given else ""
        return f"{self.task.name}({arguments}){more}"


def wanted(task: AnyTask, args: tuple[Any, ...], kwargs: Mapping[str, Any], given: Expected) -> Wanted:
    """What `assert_enqueued` was given. Raises InvalidArguments when the arguments do not fit, and ConfigurationError
    for an unknown name."""
    for name in given:
        if name not in Expected.__annotations__:
            raise ConfigurationError(
                f"assert_enqueued compares no {name!r}{suggestion(name, Expected.__annotations__)} "
                f"Arguments of the task that have a name go into _kwargs: _kwargs={{{name!r}: …}}"
            )
    if not args and not kwargs:
        return Wanted(task, None, given)
    # Encoded and decoded, so that the values are compared that the task will get.
    return Wanted(task, bound(task, task.calls.encode(args, kwargs)), given)


def meets(job: JobInfo, like: Wanted, due_ms: int | None) -> bool:
    """Whether a job is as expected. `due_ms` is when it is due; None when it is ready."""
    if job.task != like.task.name:
        return False
    if like.arguments is not None and bound(like.task, job.arguments) != like.arguments:
        return False
    job = replace(job, headers={**like.task.plan.headers, **job.headers})
    return all(_CHECKS[name](job, due_ms, value) for name, value in like.given.items())


def _delayed(job: JobInfo, due_ms: int | None, delay: Any) -> bool:
    if due_ms is None or job.enqueued_at is None:
        return due_ms is None and not seconds(delay)
    return abs((clock.from_ms(due_ms) - job.enqueued_at).total_seconds() - seconds(delay)) < _TOLERANCE


def _due_at(_: JobInfo, due_ms: int | None, at: datetime) -> bool:
    return due_ms is not None and abs((clock.from_ms(due_ms) - at).total_seconds()) < _TOLERANCE


_CHECKS: Mapping[str, Callable[[JobInfo, int | None, Any], bool]] = {
    "queue": lambda job, _, queue: job.queue == queue,
    "priority": lambda job, _, priority: job.priority == priority,
    "delay": _delayed,
    "at": _due_at,
    "key": lambda job, _, key: job.key == key,
    "headers": lambda job, _, headers: headers.items() <= job.headers.items(),
}


def _joined(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())
