"""All schedules."""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

from fennelq.manage.documents import state_of
from fennelq.manage.schedules import ScheduleInfo
from fennelq.web import words
from fennelq.web.paging import paged
from fennelq.web.ticks import when_of
from fennelq.web.visit import Page, Visit

_ROWS: Final = 50


class ScheduleRow(NamedTuple):
    """A schedule in the table."""

    info: ScheduleInfo
    state: str
    when: str
    late: bool


async def show(visit: Visit) -> Page:
    """The schedules."""
    look = await visit.look()
    schedules, unread = await look.schedules()
    rows = [row_of(info, look.at) for info in schedules]
    paused = sum(row.state == "paused" for row in rows)
    late = sum(row.late for row in rows)
    failing = sum(row.info.last_status == "DEAD" for row in rows)
    parts = [
        f"{count:,} {what}"
        for count, what in ((late, "late"), (failing, "died at the last run"), (paused, "paused"))
        if count
    ]
    return Page(
        template="schedules.html",
        title="Schedules",
        section="schedules",
        values={
            "total": len(rows),
            "unread": unread,
            "summary": words.capital(", ".join(parts)) + "."
            if parts
            else "All of them run as planned."
            if rows
            else "",
            "paged": paged(rows, visit.query, "schedules", _ROWS),
            "tasks": visit.app.tasks,
        },
    )


def row_of(info: ScheduleInfo, now: datetime) -> ScheduleRow:
    """A schedule in the table."""
    late = info.next_run is not None and (now - info.next_run).total_seconds() > 60
    return ScheduleRow(info, state_of(info), when_of(info.schedule), late)
