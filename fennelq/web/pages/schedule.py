"""One schedule: when it runs, how its last run went; pause, resume, run and remove it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

from fennelq.manage.schedules import has_workers
from fennelq.model.schedule import Schedule
from fennelq.web import words
from fennelq.web.jobs_shown import names_of
from fennelq.web.pages.schedules import row_of
from fennelq.web.ticks import next_runs
from fennelq.web.visit import Moved, Page, Visit, link

_NEXT: Final = 5


async def show(visit: Visit) -> Page:
    """A schedule."""
    look = await visit.look()
    info = await visit.app.schedules.get(visit.names["schedule"])
    schedule = info.schedule
    call: Any = visit.redaction.call(schedule.task, schedule.args) if visit.can("see_arguments") else None
    removable = not info.declared or not has_workers(info, look.now)
    return Page(
        template="schedule.html",
        title=info.name,
        section="schedules",
        values={
            "row": row_of(info, look.at),
            "info": info,
            "schedule": schedule,
            "runs": [] if info.paused else _runs(schedule, look.now),
            "call": words.as_call(call, names_of(visit, schedule.task)),
            "function": schedule.task.rpartition(":")[2],
            "removable": removable,
            "has_workers": has_workers(info, look.now),
        },
    )


def _runs(schedule: Schedule, now: datetime) -> list[tuple[datetime, str]]:
    """The next runs; each also as the clocks of the schedule's own time zone show it, as browsers show theirs."""
    runs = next_runs(schedule, now, _NEXT)
    if schedule.cron is None or schedule.tz == "UTC":
        return [(run, "") for run in runs]
    zone = ZoneInfo(schedule.tz)
    return [(run, f"{run.astimezone(zone):%a %H:%M}") for run in runs]


async def pause(visit: Visit) -> Moved:
    """Pause it."""
    return await _change(visit, "cron pause", visit.app.schedules.pause, "schedule_paused")


async def resume(visit: Visit) -> Moved:
    """Resume it."""
    return await _change(visit, "cron resume", visit.app.schedules.resume, "schedule_resumed")


async def run(visit: Visit) -> Moved:
    """Run it once, now."""
    name = visit.names["schedule"]
    async with visit.site.recorded(visit, "cron run", target=name) as record:
        job = await visit.app.schedules.run(name)
        record.ended(1, f"sent {job.id}")
    return Moved(link("jobs", job.id), "schedule_run")


async def ask_remove(visit: Visit) -> Page:
    """Ask before it is removed."""
    await visit.look()
    info = await visit.app.schedules.get(visit.names["schedule"])
    return Page(template="schedule_remove.html", title="Remove", section="schedules", values={"info": info})


async def remove(visit: Visit) -> Moved:
    """Remove it."""
    moved = await _change(visit, "cron remove", visit.app.schedules.remove, "schedule_removed")
    return Moved("schedules", moved.done)


async def _change(visit: Visit, what: str, act: Callable[[str], Awaitable[None]], done: str) -> Moved:
    name = visit.names["schedule"]
    async with visit.site.recorded(visit, what, target=name) as record:
        await act(name)
        record.ended(1)
    return Moved(link("schedules", name), done)
