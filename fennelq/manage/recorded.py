"""The record of operations: the latest ones from Redis, and older ones from the history of an app that has one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from fennelq.errors import HistoryRefused, HistoryUnavailable
from fennelq.manage.audit_entry import AuditEntry
from fennelq.manage.dead.search import Moment

if TYPE_CHECKING:
    from fennelq.app import App


class Recorded(NamedTuple):
    """Operations, the newest first."""

    entries: Sequence[AuditEntry]
    problem: str
    """Why older operations are missing; empty when none are."""


async def recorded_operations(
    app: App,
    *,
    limit: int | None,
    since: Moment | None = None,
    until: Moment | None = None,
    who: str | None = None,
    what: str | None = None,
) -> Recorded:
    """The operations that match every filter; `limit=None` returns all. The history is asked only when Redis has fewer
    than that."""
    entries = await app.audit.list(limit=limit, since=since, until=until, who=who, what=what)
    if app.settings.history_url is None or (limit is not None and len(entries) >= limit):
        return Recorded(entries, "")
    try:
        further = await app.history.operations(limit=limit, since=since, until=until, who=who, what=what)
    except (HistoryRefused, HistoryUnavailable) as error:
        return Recorded(entries, str(error))
    known = {entry.id for entry in entries}
    every = [*entries, *(entry for entry in further if entry.id not in known)]
    return Recorded(sorted(every, key=lambda entry: entry.at, reverse=True)[:limit], "")
