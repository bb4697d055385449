"""Makes the text of the last error that a schedule stores."""

from __future__ import annotations

from fennelq.model.job import JobInfo, Status
from fennelq.model.units import epoch_ms

_LONGEST = 500


def last_failure(job: JobInfo | None) -> tuple[str, int | None]:
    """The error of a run that failed, or of its last try, and when; an empty text when it has not failed."""
    if job is None or job.error is None or job.status is Status.SUCCESS:
        return "", None
    when = job.ended_at or job.started_at
    line = f"{job.error.error_type}: {job.error.message}"[:_LONGEST]
    return line, epoch_ms(when) if when else None
