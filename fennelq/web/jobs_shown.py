"""Jobs as pages show them: without secrets, and without arguments for those who may not see them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from fennelq.manage.finding import state_of
from fennelq.model.job import JobInfo
from fennelq.web import words
from fennelq.web.visit import Visit

HIDDEN = ""


class ShownJob(NamedTuple):
    """A job in a table."""

    info: JobInfo
    arguments: list[tuple[str, str]]
    """Names and JSON texts; empty for a user who may not see them."""

    @property
    def state(self) -> str:
        """Its state in the words of filters."""
        return str(state_of(self.info) or self.info.status)


def shown_jobs(visit: Visit, jobs: Iterable[JobInfo]) -> list[ShownJob]:
    """Jobs in a table."""
    return [ShownJob(job, arguments_of(visit, job)) for job in jobs]


def arguments_of(visit: Visit, job: JobInfo) -> list[tuple[str, str]]:
    """The arguments of a job by name, as they may be shown."""
    if not visit.can("see_arguments"):
        return []
    call: Any = visit.redaction.call(job.task, job.arguments)
    return words.as_call(call, names_of(visit, job.task))


def headers_of(visit: Visit, job: JobInfo) -> Mapping[str, str]:
    """The headers of a job, as they may be shown."""
    if not visit.can("see_arguments"):
        return {}
    return {
        name: value if isinstance(value, str) else words.as_json(value)
        for name, value in visit.redaction.headers(job.headers).items()
    }


def names_of(visit: Visit, task: str) -> list[str]:
    """The names of the positional parameters of a task; empty when this app does not have it."""
    known = visit.app.tasks.get(task)
    return [] if known is None else [*known.calls.places(100)[0]]
