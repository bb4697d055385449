"""Jobs that have ended, from the history, when the app has one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, cast

from fennelq.errors import HistoryUnavailable
from fennelq.manage.finding import OnSearch
from fennelq.manage.history.looking import job_story
from fennelq.manage.history.parts import of_history, of_lists
from fennelq.manage.stories import JobStory
from fennelq.model.query import Query, Term

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.model.job import JobInfo


def has_history(app: App) -> bool:
    """Whether the app has a history."""
    return app.settings.history_url is not None


async def story_in_history(app: App, job: str) -> tuple[JobStory | None, str]:
    """What the history has of a job; and why it could not be read."""
    if not has_history(app):
        return None, ""
    try:
        return await asyncio.to_thread(job_story, app.history, job), ""
    except HistoryUnavailable as error:
        return None, str(error)


async def found(app: App, query: Query, limit: int, progress: OnSearch) -> AsyncGenerator[JobInfo]:
    """The jobs that meet a filter: first those in lists, as they are found, then those that have ended."""
    live = of_lists(query) if has_history(app) else query
    met: set[str] = set()
    if live:
        jobs = cast("AsyncGenerator[JobInfo]", app.jobs.find(str(live), limit=limit, progress=progress))
        async with aclosing(jobs):
            async for job in jobs:
                met.add(job.id)
                yield job
    ended = of_history(query) if has_history(app) else None
    if query.ids and ended:
        ended = Query.of(Term("id", job) for job in query.ids if job not in met)
    if ended and len(met) < limit:
        for job in await app.history.find(ended, limit=limit - len(met)):
            yield job
