"""All queues: those that need attention first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from fennelq.web import words
from fennelq.web.paging import paged
from fennelq.web.rows import QueueRow, queue_rows, with_times
from fennelq.web.visit import Page, Visit

_ROWS: Final = 50
_ORDERS: Final[Mapping[str, tuple[str, Callable[[QueueRow], object]]]] = {
    "": ("Attention first", lambda row: row.rank),
    "waiting": ("Waiting", lambda row: (-row.info.waiting, row.name)),
    "oldest": ("Oldest", lambda row: (-(row.oldest or 0), row.name)),
    "name": ("A to Z", lambda row: row.name),
}
_FACETS: Final[Mapping[str, tuple[str, Callable[[QueueRow], bool]]]] = {
    "busy": ("Busy", lambda row: row.is_busy),
    "paused": ("Paused", lambda row: row.info.paused is not None),
    "dead": ("With dead", lambda row: row.info.dead > 0),
    "idle": ("Idle", lambda row: not row.is_busy),
}


async def show(visit: Visit) -> Page:
    """The queues."""
    look = await visit.look()
    every, query = queue_rows(look), visit.query
    wanted = query.get("name", "").lower()
    _, order = _ORDERS.get(query.get("by", ""), _ORDERS[""])
    found = sorted((row for row in every if wanted in row.name.lower()), key=order)  # type: ignore[arg-type]
    only = query.get("only", "")
    if only in _FACETS:
        found = [row for row in found if _FACETS[only][1](row)]
    facets = [(name, title, sum(map(test, every)), name == only) for name, (title, test) in _FACETS.items()]
    shown = paged(found, query, "queues", _ROWS)
    await look.series.read(look, [row.name for row in shown.rows], 2)
    return Page(
        template="queues.html",
        title="Queues",
        section="queues",
        values={
            "look": look,
            "total": len(every),
            "summary": _summary(every),
            "orders": [
                (name, title, not only and name == query.get("by", ""))
                for name, (title, _) in _ORDERS.items()
            ],
            "facets": facets,
            "paged": shown,
            "rows": with_times(look, shown.rows),
            "wanted": query.get("name", ""),
        },
    )


def _summary(rows: list[QueueRow]) -> str:
    wrong = sum(bool(row.state) or row.info.dead > 0 for row in rows)
    busy = sum(row.is_busy for row in rows)
    paused = sum(row.info.paused is not None for row in rows)
    parts = [
        f"{wrong:,} {'needs' if wrong == 1 else 'need'} attention",
        f"{busy:,} {'has' if busy == 1 else 'have'} something to do",
        f"{len(rows) - busy:,} {'is' if len(rows) - busy == 1 else 'are'} idle",
        f"{paused:,} {'is' if paused == 1 else 'are'} paused",
    ]
    return words.capital(", ".join(parts)) + "."
