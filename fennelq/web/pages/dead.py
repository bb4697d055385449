"""The groups of dead jobs: alike are those of the same task, with the same error, at the same place in the code."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import orjson
from pydantic import Field
from starlette.responses import Response, StreamingResponse

from fennelq.manage.dead.search import Filters
from fennelq.web.paging import paged
from fennelq.web.table import Form
from fennelq.web.visit import Moved, Page, Visit

_ROWS: Final = 50


async def show(visit: Visit) -> Page:
    """The groups."""
    look = await visit.look()
    groups, unread = await look.groups()
    return Page(
        template="dead.html",
        title="Dead letters",
        section="dead",
        values={
            "total": sum(info.dead for info in look.queues.values()),
            "count": len(groups),
            "unread": unread,
            "paged": paged(groups, visit.query, "dead", _ROWS),
            "days": round(visit.app.settings.dlq_max_age / 86400),
        },
    )


async def export(visit: Visit) -> Response:
    """All dead jobs, or those of a group, as lines of JSON without secrets."""
    filters: Filters = {"fingerprint": visit.query["group"]} if visit.query.get("group") else {}

    async def lines() -> AsyncIterator[bytes]:
        async for line in visit.app.dlq.export(**filters):
            yield orjson.dumps(line, default=str) + b"\n"

    headers = {"Content-Disposition": 'attachment; filename="dead.jsonl"'}
    return StreamingResponse(lines(), media_type="application/jsonl", headers=headers)


class ImportForm(Form):
    """The lines of an export."""

    lines: str = Field(min_length=1)
    dead: bool = False
    """Whether they are dead again, instead of sent."""


async def ask_import(visit: Visit) -> Page:
    """Ask for the lines."""
    await visit.look()
    return Page(template="dead_import.html", title="Import dead jobs", section="dead")


async def import_(visit: Visit) -> Moved:
    """Bring the jobs of an export back."""
    form = visit.given(ImportForm)
    lines = [line for line in form.lines.splitlines() if line.strip()]
    async with visit.site.recorded(visit, "dlq import", planned=len(lines)) as record:
        report = await visit.app.dlq.import_(lines, dead=form.dead)
        record.ended(report.imported, f"{report.known:,} were known, {report.key_taken:,} keys were taken")
    return Moved("dead", "imported", report.imported)
