"""The table of the jobs that run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from fennelq.cli import output
from fennelq.cli.tables.table import Column
from fennelq.manage.documents import words_of
from fennelq.manage.running import RunningJob
from fennelq.manage.words_of_time import duration_in_words

_COLUMNS: Final = (
    Column("id"),
    Column("task", least=12, end=True, leave=1),
    Column("executor", least=16, end=True, leave=3),
    Column("for"),
    Column("try", leave=5),
    Column("progress", least=10, leave=2),
    Column("remarks", least=10, leave=4),
)


def show_running(jobs: Sequence[RunningJob], lease: float, *, empty: str) -> None:
    """Print a table of jobs that run. The last column has what is unusual about one; `lease` decides whether its
    executor is silent."""
    output.table(_COLUMNS, [_row(job, lease) for job in jobs], empty=empty)


def _row(job: RunningJob, lease: float) -> tuple[object, ...]:
    return (
        job.id,
        job.task,
        job.owner,
        None if job.started_at is None else duration_in_words(job.seconds),
        job.tries,
        job.progress and words_of(job.progress),
        "; ".join(remarks_of(job, lease)),
    )


def remarks_of(job: RunningJob, lease: float) -> Iterator[str]:
    """What is unusual about a job that runs."""
    if job.silent > lease:
        yield f"executor silent for {duration_in_words(job.silent)}"
    if job.stopping is not None:
        yield f"asked to stop: {job.stopping}"
    if job.started_at is None:
        yield "taken and not started"
    if job.is_copy:
        yield "second copy"
