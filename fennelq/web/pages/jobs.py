"""Jobs that meet a filter. The page is sent while the search goes on, so hits appear as they are found, also without
JavaScript."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Set
from contextlib import aclosing
from typing import Final, NamedTuple

from pydantic import Field

from fennelq.errors import BrokerUnavailable, ConfigurationError, FennelqError, InvalidFilter
from fennelq.manage.acting import ABLE, Act, narrowed
from fennelq.manage.finding import SearchProgress, read_filter
from fennelq.model.query import Query, State
from fennelq.web import words
from fennelq.web.bulk import BulkForm, begin, milliseconds, planned
from fennelq.web.ended import found, has_history
from fennelq.web.jobs_shown import shown_jobs
from fennelq.web.streaming import Streamed
from fennelq.web.visit import Forbidden, Moved, Page, Visit, link

MOST: Final = 100
"""Hits on a page."""
_STATES: Final = ("running", "waiting", "scheduled", "retry", "limited", "dead")
_ENDED: Final = ("success", "cancelled")
"""Jobs in these states are in the history only."""
_ID: Final = re.compile(r"\s*([A-Za-z0-9_.-]{1,128}:[0-9a-v]{9}[A-Za-z0-9]{11})\s*")
_WITH_ARGUMENTS: Final = ("", "header", "key")
"""Words of a filter that look into what only some users may see; a text has no word."""


async def show(visit: Visit) -> Page | Moved | Streamed:
    """The search."""
    where = visit.query.get("q", "").strip()
    if job := _ID.fullmatch(where):
        return Moved(link("jobs", job[1]))
    past = has_history(visit.app)
    values = {
        "where": where,
        "states": _states(where, _STATES + (_ENDED if past else ())),
        "may": visit.can("see_arguments"),
        "has_history": past,
        "problem": "",
    }
    page = Page(template="jobs.html", title="Jobs", section="jobs", values=values)
    if not where:
        await visit.look()
        return page
    query = await checked(visit, where)
    shown = Page(
        template="jobs.html",
        title="Jobs",
        section="jobs",
        values={
            **values,
            "acts": [] if query.ids else _acts(visit, where, query.states),
        },
    )
    return Streamed(shown, _hits(visit, query))


def _acts(visit: Visit, where: str, states: Set[State]) -> list[tuple[str, str]]:
    """What the user may do with all that are found: the ways to the plans, and their labels."""
    some = {act: bool(states & able) for act, able in ABLE.items()}
    return [
        (link("jobs", "all", act, q=where), shown.label)
        for act, shown in _SHOWN.items()
        if some[act] and visit.can(shown.right)
    ]


async def checked(visit: Visit, where: str) -> Query:
    """The filter. Raises InvalidFilter, and Forbidden when the user may not look for what it names."""
    query: Query = await visit.app.client.converse(read_filter(where))
    if not visit.can("see_arguments") and any(term.word in _WITH_ARGUMENTS for term in query.terms):
        raise Forbidden(f"{visit.user.name} may not see arguments and headers, and so not search in them.")
    return query


async def _hits(visit: Visit, query: Query) -> AsyncIterator[tuple[str, dict[str, object]]]:
    """The parts of the page: a row for each hit, and then the summary."""
    number, seen = 0, deque([SearchProgress(0, 0, 0)], maxlen=1)
    problem = ""
    try:
        async with aclosing(found(visit.app, query, MOST, seen.append)) as hits:
            async for info in hits:
                number += 1
                (job,) = shown_jobs(visit, [info])
                yield "job_row.html", {"job": job}
    except (FennelqError, BrokerUnavailable) as error:
        problem = str(error)
    yield "jobs_end.html", {"text": _summary(number, seen[-1]), "number": number, "problem": problem}


def _summary(number: int, seen: SearchProgress) -> str:
    if number >= MOST:
        return f"The first {MOST} jobs. Narrow the filter to see others."
    looked = f", of {words.counted(seen.looked, 'job')} looked at" if seen.looked else ""
    unreadable = f"; the records of {seen.unreadable:,} cannot be read" if seen.unreadable else ""
    return f"{words.capital(words.counted(number, 'job'))}{looked}{unreadable}."


def _states(where: str, states: Iterable[str]) -> list[tuple[str, str, bool]]:
    return [(state, link("jobs", q=f"state:{state}"), where == f"state:{state}") for state in states]


# Acts on all jobs that are found


class ActForm(BulkForm):
    """The act on the jobs that a filter selects."""

    where: str = Field(max_length=4000)
    act: Act
    canary: int | None = Field(default=None, ge=1, le=1000)
    rate: float | None = Field(default=None, ge=0.1, le=100_000)
    typed: str = ""
    """The number of jobs, typed again."""


class _Shown(NamedTuple):
    """How an act is shown."""

    right: str
    label: str
    title: str
    verb: str


_SHOWN: Final[Mapping[Act, _Shown]] = {
    "cancel": _Shown("cancel", "Cancel them…", "Cancel jobs", "Cancel"),
    "run": _Shown("send", "Run them now…", "Run jobs now", "Run now"),
    "replay": _Shown("replay", "Replay the dead…", "Replay dead jobs", "Replay"),
    "purge": _Shown("purge", "Remove the dead…", "Remove dead jobs for good", "Remove"),
}
_TYPED: Final = 100
"""Who removes more jobs for good types their number."""


async def ask_cancel(visit: Visit) -> Page:
    """Show what would be cancelled."""
    return await _plan(visit, "cancel")


async def ask_run(visit: Visit) -> Page:
    """Show what would run now."""
    return await _plan(visit, "run")


async def ask_replay(visit: Visit) -> Page:
    """Show which dead jobs would go back."""
    return await _plan(visit, "replay")


async def ask_purge(visit: Visit) -> Page:
    """Show which dead jobs would be removed."""
    return await _plan(visit, "purge")


async def cancel_all(visit: Visit) -> Moved:
    """Cancel the jobs of the plan."""
    return await _act(visit, "cancel", "job cancel")


async def run_all(visit: Visit) -> Moved:
    """Run the jobs of the plan now."""
    return await _act(visit, "run", "job run")


async def replay_all(visit: Visit) -> Moved:
    """Put the dead jobs of the plan back."""
    return await _act(visit, "replay", "dlq replay")


async def purge_all(visit: Visit) -> Moved:
    """Remove the dead jobs of the plan for good."""
    return await _act(visit, "purge", "dlq purge")


async def _plan(visit: Visit, act: Act) -> Page:
    query = await checked(visit, visit.query.get("q", ""))
    plan = await visit.app.operations.plan(act, str(query))
    return Page(
        template="jobs_act.html",
        title=_SHOWN[act].title,
        section="jobs",
        values={
            "plan": plan,
            "where": visit.redaction.filter(plan.where),
            "form_where": plan.where,
            "until": milliseconds(plan.until),
            "samples": shown_jobs(visit, plan.samples),
            "verb": _SHOWN[act].verb,
            "typed": act == "purge" and plan.total > _TYPED,
        },
    )


async def _act(visit: Visit, act: Act, what: str) -> Moved:
    form = visit.given(ActForm)
    if form.act != act:
        raise InvalidFilter("The form is about another act.")
    where = str(narrowed(act, await checked(visit, form.where)))
    if act == "purge" and form.total > _TYPED and form.typed != str(form.total):
        raise ConfigurationError(
            f"This removes {words.counted(form.total, 'job')} for good: type {form.total} to confirm. "
            "Nothing was done."
        )
    operation = await begin(visit, planned(act, where, form), what, rate=form.rate, canary=form.canary)
    return Moved(link("operations", operation.id), "begun", form.total)
