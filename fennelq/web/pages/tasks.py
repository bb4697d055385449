"""The tasks: how often they run, and how long that takes."""

from __future__ import annotations

from typing import Final, NamedTuple

from fennelq.manage.running import RunningJob
from fennelq.manage.times import TaskTimes
from fennelq.task import AnyTask
from fennelq.web.paging import paged
from fennelq.web.visit import Page, Visit

_ROWS: Final = 100


class TaskRow(NamedTuple):
    """A task in the table."""

    name: str
    task: AnyTask | None
    """None when this process does not have its code."""
    times: TaskTimes | None
    """None when it did not run lately."""
    slowest: RunningJob | None = None
    """The job of it that runs longest now."""

    @property
    def runs(self) -> int:
        """Its runs."""
        return self.times.run.count if self.times else 0

    @property
    def failed(self) -> float | None:
        """The percentage of its runs that failed; None without runs."""
        return None if self.times is None else failed_of(self.times)


def failed_of(times: TaskTimes) -> float | None:
    """The percentage of the runs of a task that failed; None without runs."""
    failed, succeeded = (
        sum(times.ended.get(name, 0) for name in names) for names in (("retry", "dead"), ("success",))
    )
    return 100 * failed / (failed + succeeded) if failed + succeeded else None


async def show(visit: Visit) -> Page:
    """The tasks."""
    look = await visit.look()
    unread = await look.series.read(look, look.queues)
    times = {one.task: one for one in look.series.tasks([*look.queues], look.at.timestamp())}
    slowest = {job.task: job for job in reversed(await look.running())}
    names = sorted({*visit.app.tasks, *times})
    rows = [TaskRow(name, visit.app.tasks.get(name), times.get(name), slowest.get(name)) for name in names]
    rows.sort(key=lambda row: (-row.runs, row.name))
    return Page(
        template="tasks.html",
        title="Tasks",
        section="tasks",
        values={
            "total": len(rows),
            "ran": sum(row.runs > 0 for row in rows),
            "unread": unread,
            "codeless": not visit.app.tasks,
            "paged": paged(rows, visit.query, "tasks", _ROWS),
        },
    )
