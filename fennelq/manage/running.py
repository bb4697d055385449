"""The jobs that run: which executor has each, for how long, and how far it has come."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from heapq import nsmallest

from fennelq.broker import verbs
from fennelq.broker.keys import QueueKeys
from fennelq.broker.talk import Talk, ask
from fennelq.broker.verbs.survey import Run
from fennelq.model.progress import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A job that an executor has taken and not ended, at one moment."""

    id: str
    queue: str
    task: str
    owner: str
    """The executor that has it."""
    started_at: datetime | None
    """When it started, by the server's clock; None when the executor has taken it and not started it."""
    seconds: float
    """How long it has been running."""
    silent: float
    """Seconds since the executor took the job or renewed its lease. After `lease` seconds another one takes it over."""
    tries: int
    """The number of this try, 1 for the first."""
    progress: Progress | None
    """How far it has come, as its task reports it."""
    stopping: str | None
    """Why it was asked to stop; None when it was not."""
    is_copy: bool
    """Whether it is the second copy of a job whose run takes too long: see `speculate`."""


def longest(keys: QueueKeys, limit: int | None) -> Talk[list[RunningJob]]:
    """The jobs that run in a queue, those that run longest first; at most `limit`. It reads page by page, and keeps no
    more than it returns."""
    found: list[RunningJob] = []
    cursor: str | None = None
    while cursor != "":
        page = yield from ask(verbs.survey.running(keys, cursor or ""))
        found = first_of([*found, *(_job(keys.queue, run, page.now_ms) for run in page.runs)], limit)
        cursor = page.cursor
    return found


def first_of(jobs: Iterable[RunningJob], limit: int | None) -> list[RunningJob]:
    """Those that run longest."""
    return sorted(jobs, key=_age) if limit is None else nsmallest(limit, jobs, key=_age)


def _age(job: RunningJob) -> tuple[float, str]:
    return -job.seconds, job.id


def _job(queue: str, run: Run, now_ms: int) -> RunningJob:
    return RunningJob(
        id=f"{queue}:{run.key}",
        queue=queue,
        task=run.task,
        owner=run.executor,
        started_at=run.started_at,
        seconds=0.0 if run.started_ms is None else max(0, now_ms - run.started_ms) / 1000,
        silent=run.silent_ms / 1000,
        tries=run.tries,
        progress=run.progress,
        stopping=run.stopping,
        is_copy=run.is_copy,
    )
