"""A group of dead jobs: what they died of, and the way back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import islice
from typing import Final, NamedTuple

from pydantic import Field

from fennelq import clock
from fennelq.broker.verbs.dead import OTHERS
from fennelq.errors import ConfigurationError, InvalidFilter
from fennelq.manage.audit_entry import AuditEntry
from fennelq.manage.dead.dead import with_details
from fennelq.manage.dead.letter import DeadLetter, Group, ReplayReport
from fennelq.manage.dead.search import MANY_CAUSES, Filters
from fennelq.manage.times import RECENT
from fennelq.model.fingerprint import is_fingerprint
from fennelq.model.query import Query, State, Term
from fennelq.web import words
from fennelq.web.bulk import BulkForm, begin, milliseconds, planned
from fennelq.web.jobs_shown import arguments_of
from fennelq.web.looks import Look
from fennelq.web.paging import number_in
from fennelq.web.table import Form
from fennelq.web.visit import Moved, NotFound, Page, Visit, link

_ROWS: Final = 10
_FACETS: Final = 20
"""Queues of a group that can be chosen."""
_TYPED: Final = 100
_DEAD: Final = (Term("state", State.DEAD),)
_LATEST: Final = 4_000_000_000_000


class Letter(NamedTuple):
    """A dead job in the table."""

    letter: DeadLetter
    arguments: list[tuple[str, str]]


async def show(visit: Visit) -> Page:
    """A group."""
    look, group = await found(visit)
    until = number_in(visit.query, "until", 0, _LATEST)
    queues = look.queues_of_group(group.fingerprint)
    wanted = visit.query.get("queue", "")
    queue = wanted if wanted in queues else next(iter(queues), "")
    letters, detail = await _letters(visit, queue, group, until) if queue else ([], None)
    return Page(
        template="group.html",
        title=group.error_type or group.reason or "Other causes",
        section="dead",
        values={
            "group": group,
            "letters": letters,
            "detail": detail,
            "traceback": _parts(detail.traceback) if detail else [],
            "executors": sorted(
                {one.letter.info.owner for one in letters if one.letter.info and one.letter.info.owner}
            ),
            "before": await _before(visit, group),
            "since_then": await _since_then(look, group, detail),
            "queue": queue,
            "jobs": queues.get(queue, 0),
            "facets": [
                (name, jobs, link("dead", group.fingerprint, queue=name), name == queue)
                for name, jobs in islice(queues.items(), _FACETS)
            ]
            if len(queues) > 1
            else [],
            "more_queues": max(0, len(queues) - _FACETS),
            "older": link("dead", group.fingerprint, queue=wanted, until=_older(letters))
            if len(letters) == _ROWS
            else "",
            "until": until,
            "searches": _searches(queue, letters) if group.fingerprint == OTHERS else None,
        },
    )


def _searches(queue: str, letters: Sequence[Letter]) -> list[tuple[str, str]]:
    """The tasks of these jobs, each with the way to a search of its dead jobs."""
    tasks = sorted({one.letter.task for one in letters if one.letter.task})
    wheres = [(task, Query.of([*_DEAD, Term("task", task), Term("queue", queue)])) for task in tasks]
    return [(task, link("jobs", q=str(where))) for task, where in wheres]


class PurgeForm(BulkForm):
    """A purge."""

    typed: str = ""
    """The fingerprint, typed again."""


async def ask_purge(visit: Visit) -> Page:
    """Show what a purge would remove."""
    look, group = await found(visit)
    where_of(group.fingerprint)
    values = {"group": group, "until": milliseconds(look.at), "typed": group.jobs > _TYPED}
    return Page(template="dead_purge.html", title="Purge", section="dead", values=values)


async def purge(visit: Visit) -> Moved:
    """Remove the jobs of a group for good."""
    form, fingerprint = visit.given(PurgeForm), visit.names["group"]
    where = where_of(fingerprint)
    if form.total > _TYPED and form.typed != fingerprint:
        raise ConfigurationError(
            f"This removes {words.counted(form.total, 'job')} for good: type {fingerprint} to confirm. "
            "Nothing was done."
        )
    operation = await begin(visit, planned("purge", where, form), "dlq purge")
    return Moved(link("operations", operation.id), "purging_dead", form.total)


class PickedForm(Form):
    """Jobs that were picked in the table."""

    jobs: list[str] = Field(default_factory=list[str], max_length=1000)


async def replay_picked(visit: Visit) -> Moved:
    """Put the picked jobs back."""
    jobs = _picked(visit)
    async with visit.site.recorded(visit, "dlq replay", target=" ".join(jobs), planned=len(jobs)) as record:
        report = await visit.app.dlq.replay(ids=jobs)
        record.ended(*outcome_of(report))
    return Moved(await _left(visit), "replayed_some", report.replayed)


async def purge_picked(visit: Visit) -> Moved:
    """Remove the picked jobs for good."""
    jobs = _picked(visit)
    async with visit.site.recorded(visit, "dlq purge", target=" ".join(jobs), planned=len(jobs)) as record:
        removed = await visit.app.dlq.purge(ids=jobs)
        record.ended(removed)
    return Moved(await _left(visit), "purged", removed)


async def _left(visit: Visit) -> str:
    """The page of the group, if it still has jobs; else that of all groups."""
    group = visit.names["group"]
    left = await visit.app.dlq.count(**filters_of(group))
    return link("dead", group) if left else link("dead")


def _picked(visit: Visit) -> list[str]:
    if not (jobs := visit.given(PickedForm).jobs):
        raise ConfigurationError("No job was picked. Nothing was done.")
    return jobs


def outcome_of(report: ReplayReport) -> tuple[int, str]:
    """How many jobs went back, and what became of the others."""
    parts = {
        "are still dead, because another job holds their idempotency key": report.key_taken,
        "are still dead, because their records cannot be read": report.broken,
        "are still dead, because they got no new arguments": report.skipped,
        "were gone already": report.gone,
        "died of something else than before": report.died_anew,
    }
    text = "; ".join(
        [f"{report.replayed:,} replayed", *(f"{count:,} {what}" for what, count in parts.items() if count)]
    )
    return report.replayed, f"{text}; stopped: {report.stopped}" if report.stopped else text


def where_of(fingerprint: str) -> str:
    """The filter of a group. No filter selects the jobs of further causes: raises InvalidFilter for these."""
    if fingerprint == OTHERS:
        raise InvalidFilter(f"{MANY_CAUSES}.")
    if not is_fingerprint(fingerprint):
        raise NotFound(f"{fingerprint[:40]} is not a fingerprint.")
    return f"state:dead fp:{fingerprint}"


def filters_of(fingerprint: str, until_ms: int | None = None) -> Filters:
    """The dead jobs of a group, until a moment if one is given."""
    if until_ms is None:
        return {"fingerprint": fingerprint}
    return {"fingerprint": fingerprint, "until": clock.from_ms(until_ms)}


async def found(visit: Visit) -> tuple[Look, Group]:
    """The group in the path. Raises NotFound."""
    look, fingerprint = await visit.look(), visit.names["group"]
    group, unread = await look.group(fingerprint)
    if group is not None:
        return look, group
    if unread:
        raise NotFound(
            f"{words.capital(words.counted(unread, 'queue'))} are not read yet. Look again in some seconds."
        )
    raise NotFound(
        f"No job is dead with the fingerprint {fingerprint[:40]}. They were replayed, removed, or expired."
    )


async def _letters(
    visit: Visit, queue: str, group: Group, until: int
) -> tuple[list[Letter], DeadLetter | None]:
    """Some jobs of the group with their arguments, and one with everything."""
    filters = filters_of(group.fingerprint, until or None)
    filters["queue"] = queue
    found = await visit.app.dlq.list(limit=_ROWS, **filters)
    letters = await visit.app.client.converse(with_details(visit.app, found))
    rows = [Letter(one, arguments_of(visit, one.info) if one.info else []) for one in letters]
    return rows, next((one for one in letters if one.traceback), letters[0] if letters else None)


def _older(letters: Sequence[Letter]) -> int:
    return milliseconds(letters[-1].letter.died_at - timedelta(milliseconds=1))


async def _before(visit: Visit, group: Group) -> list[AuditEntry]:
    """Earlier replays of the group."""
    entries = await visit.app.audit.list(limit=200, what="dlq replay")
    return [one for one in entries if group.fingerprint in one.target or group.fingerprint in one.filter][:3]


async def _since_then(look: Look, group: Group, detail: DeadLetter | None) -> str:
    """Whether the task has succeeded after the newest death, as far as the minutes of its queue show it."""
    if detail is None or not group.task:
        return ""
    at = look.at.timestamp()
    await look.series.read(look, [detail.queue])
    minutes = int((at - group.newest.timestamp()) // 60) - 1
    known = next((one for one in look.series.tasks([detail.queue], at) if one.task == group.task), None)
    return since_then(minutes, known.ended.get("success", 0) if known else 0)


def since_then(minutes: int, succeeded: int) -> str:
    """Whether the task succeeded after a death so many whole minutes ago. `succeeded`: its successes within the last 10
    to 20 minutes, which is all that is counted for a task."""
    if minutes < 1:
        return "The newest death is too recent: executors report once a minute."
    if not succeeded:
        return "No run of the task has succeeded within the last 20 minutes."
    runs = words.capital(words.counted(succeeded, "run"))
    if minutes * 60 >= RECENT:
        return f"{runs} of the task succeeded within the last 20 minutes."
    return f"{runs} of the task succeeded within the last 20 minutes, some of them perhaps before the death."


def _parts(traceback: str) -> list[tuple[str, str]]:
    """The lines of a traceback, and how each is shown: the last line of code stands out."""
    lines = words.lines(traceback, 8000).split("\n")
    code = [place for place, line in enumerate(lines) if line.startswith("    ") and line.strip("^~ ")]
    last = max((place for place in code if not lines[place].lstrip().startswith("File ")), default=-1)
    return [
        ("here" if place == last else "dim" if line.startswith((" ", "Traceback")) else "", line)
        for place, line in enumerate(lines)
    ]
