"""What is around every page: the navigation with its counts, the user, the state of Redis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlencode

from fennelq.web import words
from fennelq.web.rendering import VERSION
from fennelq.web.users import ANONYMOUS
from fennelq.web.visit import Page, Visit, quoted

if TYPE_CHECKING:
    from fennelq.web.looks import Look


class Section(NamedTuple):
    """An entry of the navigation."""

    name: str
    path: str
    key: str
    """The key after `g` that leads there."""
    number: int | None = None
    alarm: bool = False


_SECTIONS: Final = (
    Section("Overview", "", "o"),
    Section("Queues", "queues", "q"),
    Section("Jobs", "jobs", "j"),
    Section("Dead letters", "dead", "d"),
    Section("Tasks", "tasks", "t"),
    Section("Schedules", "schedules", "s"),
    Section("Executors", "executors", "e"),
    Section("Limits", "limits", "l"),
    Section("Operations", "operations", "p"),
    Section("Health", "health", "h"),
    Section("Audit log", "audit", "a"),
)
_DONE: Final = {
    "paused": "The queue is paused.",
    "resumed": "The queue is resumed.",
    "purging": "Cancelling {jobs}.",
    "purged": "Removed {jobs} for good.",
    "cancelled": "The job is cancelled.",
    "asked": "The job was asked to stop.",
    "late": "Nothing was changed: the job has moved on.",
    "due": "The job is due now.",
    "replayed": "The job is back in its queue.",
    "replaying": "The replay of {jobs} has begun.",
    "sent": "The job is sent.",
    "draining": "The executor takes no more jobs. It still runs {jobs}.",
    "profiled": "The profile is ready.",
    "schedule_paused": "The schedule is paused.",
    "schedule_resumed": "The schedule is resumed.",
    "schedule_run": "The schedule runs now.",
    "schedule_removed": "The schedule is removed.",
    "stopping": "The operation stops after the jobs on which it acts now.",
    "resumed_operation": "The operation goes on.",
    "begun": "The operation on {jobs} has begun.",
    "replayed_some": "Put {jobs} back.",
    "purging_dead": "Removing {jobs}.",
    "imported": "Imported {jobs}.",
}
"""What was done, by the word in the address. An address must not be able to put other texts on a page."""


async def frame_of(visit: Visit, page: Page, *, live: bool) -> Mapping[str, Any]:
    """The values of the frame of a page."""
    looks, address = visit.site.looks, visit.path + (f"?{urlencode(visit.query)}" if visit.query else "")
    signed_in = visit.user is not ANONYMOUS
    return {
        "title": page.title,
        "section": page.section,
        "base": visit.base,
        "path": visit.path,
        "query": visit.query,
        "can": visit.can,
        "user": visit.user if signed_in else None,
        "name": visit.app.namespace,
        "switches": visit.site.switches(),
        "sections": _sections(looks.last) if page.section is not None and visit.can("see") else (),
        "server": looks.server if visit.can("see") else None,
        "version": VERSION,
        "live": f"{visit.base}live?view={quoted(address)}" if live and visit.can("see") else "",
        "down": looks.away,
        "outcome": _outcome(visit.query),
        "now": looks.last.now if looks.last else None,
        "interval": looks.last.snapshot.interval if looks.last else 1.0,
    }


def _sections(look: Look | None) -> list[Section]:
    if look is None:
        return [*_SECTIONS]
    queues, executors = look.queues.values(), look.executors.values()
    dead = sum(info.dead for info in queues)
    wrong = sum(bool(info.damage) for info in queues)
    counts = {
        "queues": (len(look.queues), False),
        "dead": (dead, True),
        "executors": (sum(one.alive for one in executors), False),
        "health": (wrong, True),
    }
    found = ((one, counts.get(one.path, (0, False))) for one in _SECTIONS)
    return [one._replace(number=count or None, alarm=alarm) for one, (count, alarm) in found]


def _outcome(query: Mapping[str, str]) -> str:
    text, count = _DONE.get(query.get("done", ""), ""), query.get("count", "")
    jobs = int(count) if count.isascii() and count.isdecimal() and len(count) < 10 else 0
    return text.replace("{jobs}", words.counted(jobs, "job"))
