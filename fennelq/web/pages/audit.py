"""The record of operations: who has changed what, and how it ended."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from fennelq import clock
from fennelq.manage.dead.search import Moment
from fennelq.manage.recorded import recorded_operations
from fennelq.web.bulk import milliseconds
from fennelq.web.paging import number_in
from fennelq.web.visit import Page, Visit, link

_ROWS: Final = 50
_LATEST: Final = 4_000_000_000_000


async def show(visit: Visit) -> Page:
    """The record."""
    await visit.look()
    query = visit.query
    who, what = query.get("who", "").strip()[:200], query.get("what", "").strip()[:200]
    until_ms = number_in(query, "until", 0, _LATEST)
    until: Moment | None = clock.from_ms(until_ms) if until_ms else None
    found, problem = await recorded_operations(
        visit.app, limit=_ROWS, until=until, who=who or None, what=what or None
    )
    older = _before(found[-1].at) if len(found) == _ROWS else None
    return Page(
        template="audit.html",
        title="Audit log",
        section="audit",
        values={
            "entries": found,
            "problem": problem,
            "who": who,
            "what": what,
            "until": until_ms,
            "older": link("audit", who=who, what=what, until=older) if older else "",
        },
    )


def _before(moment: datetime) -> int:
    return milliseconds(moment - timedelta(milliseconds=1))
