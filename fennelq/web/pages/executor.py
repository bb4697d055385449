"""One executor: what it runs, its stacks; drain it."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from fennelq.errors import UnknownExecutor
from fennelq.manage.executors.info import ExecutorInfo
from fennelq.web.rows import ExecutorRow
from fennelq.web.table import Form
from fennelq.web.visit import Moved, Page, Visit, link

_MOST: Final = 100
_MOST_STACKS: Final = 60


async def show(visit: Visit) -> Page:
    """An executor."""
    look = await visit.look()
    info = await _found(visit)
    running = [job for job in await look.running() if job.owner == info.name]
    return Page(
        template="executor.html",
        title=info.name,
        section="executors",
        values={
            "row": ExecutorRow(info),
            "info": info,
            "running": running[:_MOST],
            "done": info.facts.get("done"),
        },
    )


async def stacks(visit: Visit) -> Page:
    """Where its threads and tasks are."""
    info = await _found(visit)
    found = await visit.app.executors.stacks(info.name)
    values = {
        "info": info,
        "stacks": found.stacks[:_MOST_STACKS],
        "more": found.left_out + max(0, len(found.stacks) - _MOST_STACKS),
        "blocked": found.blocked,
    }
    return Page(template="stacks.html", title=f"Stacks of {info.name}", section="executors", values=values)


class DrainForm(Form):
    """How an executor is drained."""

    replace: bool = False
    grace: float | None = Field(default=None, ge=0, le=86400 * 30)


async def ask_drain(visit: Visit) -> Page:
    """Ask how."""
    return Page(
        template="drain.html", title="Drain", section="executors", values={"info": await _found(visit)}
    )


async def drain(visit: Visit) -> Moved:
    """Ask an executor to take no more jobs, and to end."""
    form, info = visit.given(DrainForm), await _found(visit)
    how = " ".join(
        filter(
            None,
            (
                "--replace" if form.replace else "",
                f"--grace {form.grace:g}" if form.grace is not None else "",
            ),
        )
    )
    async with visit.site.recorded(visit, "worker drain", target=info.name, filter=how) as record:
        running = await visit.app.executors.drain(info.name, replace=form.replace, grace=form.grace)
        record.ended(outcome=f"it has agreed; {running:,} jobs run")
    return Moved(link("executors"), "draining", running)  # without a running job, it has ended by now


async def _found(visit: Visit) -> ExecutorInfo:
    look, name = await visit.look(), visit.names["executor"]
    if name not in look.executors:
        raise UnknownExecutor(name, known=[*look.executors])
    return look.executors[name]
