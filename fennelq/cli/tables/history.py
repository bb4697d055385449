"""Tables of the history: the jobs that have ended, and how many ended in each hour or day."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from fennelq.cli import output
from fennelq.cli.tables.table import Column
from fennelq.manage.documents import of_job
from fennelq.manage.finding import state_of

if TYPE_CHECKING:
    from fennelq.manage.history.store import HistoryBucket
    from fennelq.model.job import JobInfo
    from fennelq.redaction import Redaction

END_COLUMNS: Final = (
    Column("id"),
    Column("task", least=12, end=True, leave=1),
    Column("state"),
    Column("tries", leave=7),
    Column("ended", leave=2),
    Column("took", leave=6),
    Column("error", least=12, end=True, leave=4),
    Column("arguments", least=10, leave=3),
)
CHART_COLUMNS: Final = (
    Column("at"),
    Column("success"),
    Column("dead"),
    Column("cancelled", leave=3),
    Column("run", leave=2),
    Column("wait", leave=4),
    Column("jobs", least=4, leave=5),
)
_ROOM_BESIDE_BAR: Final = 76
_LONGEST_BAR: Final = 40


def row_of_end(job: JobInfo, redaction: Redaction) -> tuple[object, ...]:
    """The cells of a job, one for each of END_COLUMNS."""
    arguments = of_job(job, redaction)["arguments"]
    took = None
    if job.started_at and job.ended_at:
        took = seconds_in_words((job.ended_at - job.started_at).total_seconds())
    return (
        job.id,
        job.task or None,
        state_of(job),
        job.tries,
        job.ended_at,
        took,
        job.error.error_type if job.error else None,
        None if arguments is None else output.record(arguments),
    )


def chart_rows(buckets: Sequence[HistoryBucket]) -> list[tuple[object, ...]]:
    """A row for each hour or day in which jobs ended, with a bar."""
    by_time: dict[datetime, dict[str, HistoryBucket]] = {}
    for bucket in buckets:
        by_time.setdefault(bucket.at, {})[bucket.status] = bucket
    most = max((_jobs(statuses) for statuses in by_time.values()), default=0)
    room = max(4, min(_LONGEST_BAR, shutil.get_terminal_size().columns - _ROOM_BESIDE_BAR))
    return [_chart_row(at, statuses, most, room) for at, statuses in by_time.items()]


def _chart_row(
    at: datetime, statuses: Mapping[str, HistoryBucket], most: int, room: int
) -> tuple[object, ...]:
    jobs = _jobs(statuses)
    numbers = [statuses[name].jobs if name in statuses else 0 for name in ("SUCCESS", "DEAD", "CANCELLED")]
    run = sum(bucket.run_seconds for bucket in statuses.values()) / jobs
    wait = sum(bucket.wait_seconds for bucket in statuses.values()) / jobs
    return (
        at,
        *numbers,
        seconds_in_words(run),
        seconds_in_words(wait),
        "█" * max(1, round(room * jobs / most)),
    )


def _jobs(statuses: Mapping[str, HistoryBucket]) -> int:
    return sum(bucket.jobs for bucket in statuses.values())


def seconds_in_words(seconds: float) -> str:
    """`12 ms`, `3.4 s`, `2.1 min`, `5.0 h`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
