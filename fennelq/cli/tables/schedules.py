"""How schedules and their times are printed: `cron list`, `cron show`, `cron add` and `cron next`."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from datetime import datetime
from zoneinfo import ZoneInfo

from fennelq.cli import output
from fennelq.cli.tables.table import Column
from fennelq.manage.documents import of_schedule, state_of
from fennelq.manage.schedules import ScheduleInfo
from fennelq.manage.words_of_time import in_words, in_zone
from fennelq.model.schedule import Schedule
from fennelq.redaction import Redaction
from fennelq.streams import is_terminal

_COLUMNS = (
    Column("name"),
    Column("when", least=12, leave=2),
    Column("next", leave=3),
    Column("in", leave=1),
    Column("last", leave=6),
    Column("ago", leave=5),
    Column("runs"),
    Column("state"),
    Column("task", least=12, end=True, leave=4),
)
_RUN_COLUMNS = (Column("next"), Column("in", leave=1))


def show_schedules(infos: Sequence[ScheduleInfo], tasks: Collection[str], now: datetime) -> None:
    """A table of schedules; it marks those whose task is none of `tasks`."""
    output.table(
        _COLUMNS,
        [_row(info, tasks, now) for info in infos],
        empty="No schedules: declare one with @app.cron, or run `fennelq cron add`.",
    )


def show_schedule(info: ScheduleInfo, now: datetime, redaction: Redaction) -> None:
    """Everything about one schedule, a line for each fact."""
    document, zone = of_schedule(info, now, redaction), info.schedule.tz
    times = {"next_run": info.next_run, "last_run": info.last_run, "last_error_at": info.last_error_at}
    shown = {name: written(value, zone, now) for name, value in times.items()}
    arguments = output.record(document["arguments"])
    output.facts({**document, "arguments": arguments, **shown, "next_in": None, "last_ago": None})


def show_runs(runs: Sequence[datetime], tz: str, now: datetime) -> None:
    """A table of the times at which a schedule is due."""
    output.table(_RUN_COLUMNS, [_cells(run, tz, now) for run in runs])


def written(value: datetime | None, tz: str, now: datetime) -> str:
    """A moment in the zone of its schedule, and in words: `2026-05-01T14:30:00+02:00 · in 5 min`; empty for None."""
    return " · ".join(filter(None, _cells(value, tz, now)))


def _row(info: ScheduleInfo, tasks: Collection[str], now: datetime) -> tuple[object, ...]:
    schedule = info.schedule
    return (
        info.name,
        _when(schedule),
        *_cells(info.next_run, schedule.tz, now),
        *_cells(info.last_run, schedule.tz, now),
        info.run_count,
        state_of(info),
        schedule.task + ("" if schedule.task in tasks else " (not of this app)"),
    )


def _when(schedule: Schedule) -> str:
    if schedule.every_ms:
        return f"every {schedule.every_ms / 1000:g} s"
    return f"{schedule.cron} {schedule.tz}"


def _cells(value: datetime | None, tz: str, now: datetime) -> tuple[str, str]:
    """The moment in the time zone of its schedule, and how far it is from now."""
    if value is None:
        return "", ""
    shown = (
        f"{value.astimezone(ZoneInfo(tz)):%Y-%m-%d %H:%M:%S %Z}"
        if is_terminal(sys.stdout)
        else in_zone(value, tz)
    )
    return shown or "", in_words(value, now)
