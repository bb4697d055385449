"""Pages of a search, for programs: a cursor leads from one page to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from fennelq import clock
from fennelq.broker.talk import Finds, Talk
from fennelq.broker.verbs.search import Criteria
from fennelq.manage.finding import At, Met, Search, check_live
from fennelq.model.job import JobInfo
from fennelq.model.query import Query

if TYPE_CHECKING:
    from fennelq.app import App

_LONG: Final = 1.5
"""Seconds after which a page is returned although it is not full."""


class FoundPage(NamedTuple):
    """A page of a search."""

    jobs: list[JobInfo]
    cursor: str
    """Where the next page begins; empty after the last one."""
    problem: str = ""
    """Why a queue could not be searched."""


def page_of(app: App, query: Query, cursor: str, most: int) -> Talk[FoundPage]:
    """The jobs that match the filter, from a cursor on: about `most`, and fewer when few are found in a while. Raises
    InvalidFilter."""
    check_live(query)
    search, met = Search(app, Criteria(query), At.from_text(cursor), most=max(1, most // 4)), Met(query, most)
    steps, until, jobs = Finds(search.pages()), clock.monotonic() + _LONG, list[JobInfo]()
    while (page := (yield from steps.next())) is not None:
        jobs += yield from met.records(page.keys, met.new(page))
        if len(jobs) > most * 3 // 4 or clock.monotonic() > until:
            return FoundPage(jobs, search.at.to_text(), str(search.problem or ""))
    return FoundPage(jobs, "", str(search.problem or ""))
