"""Everything known about a job, for a person who looks at it: its story, its facts and its result."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from fennelq.cli import output
from fennelq.cli.known import no_record
from fennelq.cli.story import table as story_table
from fennelq.cli.story.changes import Known
from fennelq.errors import FennelqError
from fennelq.manage.documents import of_event, of_job, of_story, text_of_call, words_of
from fennelq.manage.history.looking import job_story
from fennelq.manage.stories import job_story_of
from fennelq.model.job import Status

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.redaction import Redaction


async def known_of(app: App, job: str) -> Known:
    """Everything known about a job. Raises a Problem when it has no record."""
    found = await app.client.converse(job_story_of(app, job))
    if found is None and app.settings.history_url is not None:
        found = await asyncio.to_thread(job_story, app.history, job)
    if found is None:
        raise await no_record(app, job)
    info, events, story = found
    document = {
        **of_job(info, app.redaction),
        "history": list(map(of_event, events)),
        "story": of_story(story),
    }
    if info.status is Status.SUCCESS:
        with suppress(FennelqError):  # it has expired, or this user of Redis may not read it
            document["result"] = (await app.jobs.wait(job, 0)).result
    return Known(info, story, document)


def facts_of(known: Known, redaction: Redaction) -> dict[str, object]:
    """The facts below the story, by name, without secrets."""
    info, failure, document = known.info, known.info.error, of_job(known.info, redaction)
    facts: dict[str, object] = {
        **document,
        "arguments": text_of_call(redaction.call(info.task, info.arguments)),
        "headers": output.record(document["headers"]) if info.headers else None,
        "progress": words_of(info.progress) if info.progress else None,
        "error": failure.error_type if failure else None,
        "message": failure.message if failure else None,
    }
    if known.document.get("result") is not None:
        facts["result"] = story_table.result_of(known.document["result"])
    return facts
