"""The jobs that a test has sent, and what a test expects of jobs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import orjson

from fennelq import clock
from fennelq.errors import FennelqError
from fennelq.model.dedupe import HELD
from fennelq.model.job import Priority
from fennelq.model.options import OPTIONS
from fennelq.model.units import Seconds

if TYPE_CHECKING:
    from fennelq.task import AnyTask


class WireCall(NamedTuple):
    """A job as it was sent to Redis."""

    id: str
    queue: str
    task: str
    priority: Priority
    args: bytes
    due: str
    """`+` and milliseconds from now, `@` and a moment, or empty."""
    fields: Mapping[str, Any]

    @property
    def may_be_replaced(self) -> bool:
        """Whether a later call may replace it before it begins."""
        return self.fields.get("dedupe") in (HELD["debounce"], HELD["latest"])

    @property
    def replaces(self) -> bool:
        """Whether it replaces a call that has made a job with the same key."""
        fields = self.fields
        return (
            "wait_ms" in fields
            or fields.get("duplicate") == "replace"
            or fields.get("dedupe") == HELD["latest"]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SentJob:
    """A job that was sent in this test, whether it still waits or has run."""

    id: str
    task: str
    """Name of the task."""
    queue: str
    args: tuple[Any, ...]
    """The positional arguments, as the task will get them."""
    kwargs: Mapping[str, Any]
    """The arguments that were passed by name."""
    priority: Priority = "normal"
    delay: float | None = None
    """Seconds, for a job that was sent with a delay."""
    at: datetime | None = None
    """The moment, for a job that was sent with one."""
    key: str | None = None
    """The idempotency key."""
    headers: Mapping[str, str]


def sent_job(call: WireCall, tasks: Mapping[str, AnyTask]) -> SentJob:
    """A job that was sent, with its arguments decoded by the task if its code is here."""
    task = tasks.get(call.task)
    args, kwargs = task.calls.decode(call.args) if task else orjson.loads(call.args)
    how, number = call.due[:1], call.due[1:]
    options = orjson.loads(call.fields.get("options", b"{}"))
    declared: Mapping[str, str] = task.plan.headers if task else {}
    return SentJob(
        id=call.id,
        task=call.task,
        queue=call.queue,
        args=tuple(args),
        kwargs=kwargs,
        priority=call.priority,
        delay=int(number) / 1000 if how == "+" else None,
        at=clock.from_ms(int(number)) if how == "@" else None,
        key=_key(call),
        headers={**declared, **options.get(OPTIONS["headers"].letter, {})},
    )


def _key(call: WireCall) -> str | None:
    """The key that the caller has given; on the wire, the name of the task comes before it."""
    if "idempotency" not in call.fields:
        return None
    return str(call.fields["idempotency"]).removeprefix(f"{call.task}:")


class Expected(TypedDict, total=False):
    """What `assert_enqueued` compares, besides the arguments."""

    queue: str
    """The queue in which the job waits."""
    priority: Priority
    """Its lane."""
    delay: Seconds
    """Seconds from its creation to its due time; a difference of less than a second is accepted."""
    at: datetime
    """The moment at which it is due; a difference of less than a second is accepted."""
    key: str
    """Its idempotency key."""
    headers: Mapping[str, str]
    """Headers that it has; it may have others."""


def bound(task: AnyTask, raw: bytes) -> Mapping[str, Any] | None:
    """The arguments of an encoded call by the names of the parameters; None when they do not fit."""
    try:
        args, kwargs = task.calls.decode(raw)
        found = inspect.signature(task.function).bind_partial(*args, **kwargs)
    except (FennelqError, TypeError):
        return None
    found.apply_defaults()
    return found.arguments
