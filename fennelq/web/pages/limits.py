"""The limits of the queues, and the jobs that wait for them."""

from __future__ import annotations

from typing import Final

from fennelq.web import words
from fennelq.web.paging import paged
from fennelq.web.visit import Page, Visit

_ROWS: Final = 100


async def show(visit: Visit) -> Page:
    """The limits."""
    look = await visit.look()
    limits, unread = await look.limits()
    waiting = sum(info.in_lines for info in look.queues.values())
    return Page(
        template="limits.html",
        title="Limits",
        section="limits",
        values={
            "total": len(limits),
            "unread": unread,
            "summary": f"{words.counted(waiting, 'job')} {words.verb(waiting, 'waits', 'wait')} because of them.",
            "paged": paged(
                sorted(limits, key=lambda one: (-one.waiting, one.queue, one.name)),
                visit.query,
                "limits",
                _ROWS,
            ),
        },
    )
