"""One queue: its state, its lanes, its next jobs; pause, resume and empty it."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from fennelq.errors import ConfigurationError, UnknownQueue
from fennelq.manage.operations import OperationPlan
from fennelq.manage.queues.info import QueueInfo, unstarted
from fennelq.model.pause import QueueSide
from fennelq.web import words
from fennelq.web.bulk import BulkForm, begin, milliseconds, planned
from fennelq.web.charts import chart_of
from fennelq.web.jobs_shown import shown_jobs
from fennelq.web.looks import Look
from fennelq.web.rows import queue_row
from fennelq.web.table import Form
from fennelq.web.visit import Moved, Page, Visit, link

_NEXT: Final = 4
"""Each costs a command: a page sends at most 20."""
_SAMPLES: Final = 5
_TYPED: Final = 100
"""Beyond so many jobs, the name of the queue must be typed before they are cancelled."""


async def show(visit: Visit) -> Page:
    """A queue."""
    look, info = await _found(visit)
    names, at = [info.name], look.at.timestamp()
    drawn = await chart_of(visit, look, names)
    running, places = await look.next_jobs(info, _NEXT)
    return Page(
        template="queue.html",
        title=info.name,
        section="queues",
        values={
            "look": look,
            "row": queue_row(info, look.snapshot, look.at),
            "info": info,
            "sentence": _sentence(info, look),
            "running": running,
            "places": [(label, shown_jobs(visit, jobs), total) for label, jobs, total in places],
            "drawn": drawn,
            "durations": look.series.times(names, at),
            "times": look.series.tasks(names, at),
            "unstarted": unstarted(info),
        },
    )


class PauseForm(Form):
    """The pause of a queue."""

    only: Literal["", "consume", "enqueue"] = ""
    why: str = Field(default="", max_length=200)


async def ask_pause(visit: Visit) -> Page:
    """Ask what to pause, and why."""
    _, info = await _found(visit)
    return Page(
        template="queue_pause.html", title=f"Pause {info.name}", section="queues", values={"info": info}
    )


async def pause(visit: Visit) -> Moved:
    """Pause a queue."""
    form, name = visit.given(PauseForm), visit.names["queue"]
    only: QueueSide | None = form.only or None
    async with visit.site.recorded(
        visit, "queue pause", target=name, filter=f"--only {only}" if only else ""
    ) as record:
        found = await visit.app.queues.pause(name, only=only, why=form.why, who=visit.who)
        record.ended(outcome=str(found))
    return Moved(link("queues", name), "paused")


async def resume(visit: Visit) -> Moved:
    """End the pause of a queue."""
    name = visit.names["queue"]
    async with visit.site.recorded(visit, "queue resume", target=name) as record:
        before = await visit.app.queues.resume(name)
        record.ended(outcome="resumed" if before else "was not paused", before=str(before or ""))
    return Moved(link("queues", name), "resumed")


class PurgeForm(BulkForm):
    """The jobs that a purge cancels."""

    name: str = ""
    """The name of the queue, typed again."""


async def ask_purge(visit: Visit) -> Page:
    """Show what a purge would cancel."""
    look, info = await _found(visit)
    # Counted by the look: to plan the operation would mean to search through a million jobs.
    total, samples = unstarted(info), await visit.app.queues.peek(info.name, _SAMPLES)
    until = look.snapshot.queues[info.name].at or look.at
    plan = OperationPlan(act="cancel", where=_unstarted(info.name), until=until, total=total, samples=samples)
    return Page(
        template="queue_purge.html",
        title=f"Purge {info.name}",
        section="queues",
        values={
            "info": info,
            "plan": plan,
            "until": milliseconds(until),
            "samples": shown_jobs(visit, samples),
            "typed": plan.total > _TYPED,
        },
    )


async def purge(visit: Visit) -> Moved:
    """Cancel the jobs of the plan."""
    form, name = visit.given(PurgeForm), visit.names["queue"]
    plan: OperationPlan = planned("cancel", _unstarted(name), form)
    if plan.total > _TYPED and form.name != name:
        raise ConfigurationError(
            f"This cancels {words.counted(plan.total, 'job')}: type the name of the queue, {name}, to confirm. "
            "Nothing was done."
        )
    await begin(visit, plan, "queue purge", target=name, reason="purged")
    return Moved(link("queues", name), "purging", plan.total)


def _unstarted(queue: str) -> str:
    return f"queue:{queue} state:waiting state:limited state:scheduled state:retry"


async def _found(visit: Visit) -> tuple[Look, QueueInfo]:
    look, name = await visit.look(), visit.names["queue"]
    info = look.queues.get(name)
    if info is None:
        raise UnknownQueue(name, look.queues)
    return look, info


def _sentence(info: QueueInfo, look: Look) -> str:
    """The notes about it."""
    if info.damage:
        return info.damage
    if info.paused:
        return words.capital(
            f"{info.paused.what} {'are' if info.paused.consuming and info.paused.enqueuing else 'is'} paused."
        )
    if info.waiting_because:
        return f"Its jobs cannot run: {info.waiting_because[0]}"
    if not (info.waiting or info.running or info.scheduled or info.retry):
        return "Nothing to do."
    since = info.waiting_since
    late = (look.at - since).total_seconds() if since else 0.0
    waits = (
        f"The oldest of {words.counted(info.waiting, 'job')} has been ready for {words.duration(late)}."
        if since
        else "No job waits."
    )
    return f"{waits} {words.capital(words.counted(info.running, 'job'))} {'runs' if info.running == 1 else 'run'} now."
