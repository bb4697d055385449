"""Jobs as they are sent, made without a task."""

from __future__ import annotations

from typing import Any

from fennelq.model.job import Job
from fennelq.model.result_codec import ANY_RESULT
from fennelq.model.wire import AnyWireJob, WireJob


def sent(queue: str, key: str, task: str, args: bytes = b"[[],{}]", **carried: Any) -> AnyWireJob:
    """A job that carries this, by the names of the table of fields. It does not carry a 0, or an empty text."""
    return WireJob(queue, key, task, args, ANY_RESULT, {name: it for name, it in carried.items() if it})


def as_sent(job: Job[Any]) -> AnyWireJob:
    """The job with all that users do not see of it."""
    assert isinstance(job, WireJob)
    return job


def altered(job: Job[Any], **changes: Any) -> AnyWireJob:
    """The job with another queue, key, task or args, or with something else that it carries."""
    job = as_sent(job)
    own = {name: changes.pop(name, getattr(job, name)) for name in ("queue", "key", "task", "args")}
    return WireJob(**own, returns=job.returns, carried={**job.carried, **changes})
