"""What a running task may ask for."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from datetime import datetime

from fennelq import clock
from fennelq.model.job import Delivery
from fennelq.model.plan import Plan


class JobContext:
    """The job that is running."""

    __slots__ = ("_delivery", "_plan")

    def __init__(self, delivery: Delivery, plan: Plan) -> None:
        self._delivery, self._plan = delivery, plan

    def __repr__(self) -> str:
        return f"<JobContext {self.id} of {self.task}>"

    @property
    def id(self) -> str:
        """`queue:key`."""
        return self._delivery.id

    @property
    def task(self) -> str:
        """Name of the task."""
        return self._delivery.task

    @property
    def queue(self) -> str:
        """Name of the queue."""
        return self._delivery.queue

    @property
    def tries(self) -> int:
        """Which try this is, from 1."""
        return self._delivery.tries + 1

    @property
    def max_retries(self) -> int:
        """Runs that are allowed after the first."""
        return self._plan.retry.retries

    @property
    def fence(self) -> int:
        """Grows with every start of the job: store it with your writes, and refuse smaller ones."""
        return self._delivery.fence

    @property
    def enqueued_at(self) -> datetime:
        """When the job was created, by the server's clock."""
        return clock.from_ms(self._delivery.enqueued_ms)

    @property
    def headers(self) -> Mapping[str, str]:
        """The texts that travel with the job."""
        return self._plan.headers


current: ContextVar[JobContext] = ContextVar("fennelq_job")


def current_job() -> JobContext:
    """The job this code runs for; raises LookupError outside of one."""
    try:
        return current.get()
    except LookupError:
        raise LookupError(
            "no job is running here: current_job() works inside a task run by a worker"
        ) from None
