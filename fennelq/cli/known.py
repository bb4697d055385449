"""What exists: a queue or a job that does not is an error which names the nearest that does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from fennelq.cli import output
from fennelq.cli.exits import Exit, Problem
from fennelq.errors import suggestion
from fennelq.manage.queues import queues_of
from fennelq.model.job import split_id

if TYPE_CHECKING:
    from fennelq.app import App

_ASKED_AT_ONCE: Final = 100


async def require_queues(app: App, queues: Iterable[str]) -> None:
    """Raises a Problem for the first queue that neither a task of the app names nor Redis knows."""
    known = await app.client.converse(queues_of(app))
    for queue in queues:
        if queue not in known:
            raise Problem(f"there is no queue {queue!r}{suggestion(queue, known)}", Exit.NOT_FOUND)


async def no_record(app: App, job: str) -> Problem:
    """Why nothing is known of a job."""
    queue, _ = split_id(job)
    known = await app.client.converse(queues_of(app))
    if queue in known:
        return Problem(
            f"there is no record of job {job}: it was never sent, or it ended too long ago", Exit.NOT_FOUND
        )
    return Problem(
        f"there is no record of job {job}, and no queue {queue!r}{suggestion(queue, known)}", Exit.NOT_FOUND
    )


async def name_unknown(app: App, jobs: Iterable[str]) -> bool:
    """Name on stderr every job of which there is no record; whether there was one."""
    ids = list(dict.fromkeys(jobs))
    unknown: list[str] = []
    for start in range(0, len(ids), _ASKED_AT_ONCE):
        unknown += await _unknown(app, ids[start : start + _ASKED_AT_ONCE])
    for job in unknown:
        output.note(f"fennelq: {await no_record(app, job)}")
    return bool(unknown)


async def _unknown(app: App, ids: Sequence[str]) -> list[str]:
    infos = await asyncio.gather(*map(app.client.info, ids))
    return [job for job, info in zip(ids, infos, strict=True) if info is None]
