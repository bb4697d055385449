"""The context of a running job, which its task may use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, MutableMapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Protocol

from fennelq import clock
from fennelq.loops import check_loop
from fennelq.model.job import Delivery
from fennelq.model.plan import Plan
from fennelq.model.progress import Progress, checked


class Run(Protocol):
    """A run of a job, as its context sees it."""

    delivery: Delivery
    cancelled: str | None
    """Why it is to stop; None while it may go on, and when its worker stops."""

    def report(self, progress: Progress) -> bool:
        """Write this progress soon. Any thread may call it. Returns whether to give the loop a turn for that."""
        ...


class JobContext:
    """The job that is running."""

    __slots__ = ("_plan", "_run")

    def __init__(self, run: Run, plan: Plan) -> None:
        self._run, self._plan = run, plan

    def __repr__(self) -> str:
        return f"<JobContext {self.id} of {self.task}>"

    @property
    def id(self) -> str:
        """`queue:key`."""
        return self._run.delivery.id

    @property
    def task(self) -> str:
        """Name of the task."""
        return self._run.delivery.task

    @property
    def queue(self) -> str:
        """Name of the queue."""
        return self._run.delivery.queue

    @property
    def tries(self) -> int:
        """Which try this is, from 1."""
        return self._run.delivery.tries + 1

    @property
    def max_retries(self) -> int:
        """How many more runs are allowed after the first."""
        return self._plan.retry.retries

    @property
    def fence(self) -> int:
        """A number that grows with every start of the job: store it with your writes, and refuse smaller ones."""
        return self._run.delivery.fence

    @property
    def enqueued_at(self) -> datetime:
        """When the job was created, by the server's clock."""
        return clock.from_ms(self._run.delivery.enqueued_ms)

    @property
    def headers(self) -> Mapping[str, str]:
        """The strings that were sent with the job."""
        return self._plan.headers

    @property
    def cancelled(self) -> str | None:
        """Why this run is to stop; None while it may go on. `timeout` when its time is over, `lost` when another worker
        has taken the job; otherwise the reason of the cancel.

        A plain function, which runs in a thread, must look at this itself, and then raise asyncio.CancelledError:
        `async def` code gets one. It stays None when the worker stops. Otherwise a function that then returned early
        would have succeeded, and its job would not run again.
        """
        return self._run.cancelled

    async def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Report how far the job has come: `await job.progress(3, 10, "rows")`.

        Call it as often as you like: the first report is written at once, and then the newest one at most every 0.25 s
        and at the end. It does not wait for Redis, and an outage does not fail the job. Raises ValueError for a
        negative number, for more than `total`, and for a note of more than 200 characters.
        """
        if self._run.report(checked(done, total, note)):
            await asyncio.sleep(0)

    @property
    def sync(self) -> BlockingJobContext:
        """The same for code without an event loop: `job.sync.progress(3, 10)` in a task that is a plain function."""
        return BlockingJobContext(self._run)


class BlockingJobContext:
    """What a running job may do in code without an event loop: `job.sync`. Any thread of the job may use it."""

    __slots__ = ("_run",)

    def __init__(self, run: Run) -> None:
        self._run = run

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Report how far the job has come: see `JobContext.progress`."""
        check_loop("job.sync.progress", "await job.progress(…)")
        self._run.report(checked(done, total, note))


def delivery_of(job: JobContext) -> Delivery:
    """All that the executor has got of this job, for plugins: arguments, numbers and times."""
    return job._run.delivery  # pyright: ignore[reportPrivateUsage] - tasks do not see it


current: ContextVar[JobContext] = ContextVar("fennelq_job")


def current_job() -> JobContext:
    """The job that this code runs for; raises LookupError outside of a job."""
    try:
        return current.get()
    except LookupError:
        raise LookupError(
            "no job is running here: current_job() works inside a task run by a worker"
        ) from None


def job_facts() -> Mapping[str, object]:
    """The facts that identify the running job in a log line; empty when no job is running."""
    job = current.get(None)
    if job is None:
        return {}
    return {"job_id": job.id, "task": job.task, "queue": job.queue, "tries": job.tries}


def add_job(logger: Any, method: str, event_dict: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A processor for your own configuration of structlog: adds job_id, task, queue and tries of the running job."""
    for name, value in job_facts().items():
        event_dict.setdefault(name, value)
    return event_dict


class JobFilter(logging.Filter):
    """A filter for the handlers of your own logging configuration: it lets every record pass, and gives it the job_id,
    task, queue and tries of the running job. They are empty when no job is running, so that a format may name them."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Always True."""
        facts = job_facts()
        for name in ("job_id", "task", "queue", "tries"):
            if not hasattr(record, name):
                setattr(record, name, facts.get(name, ""))
        return True
