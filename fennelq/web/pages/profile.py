"""The profile of an executor: which code runs there, and for which task."""

from __future__ import annotations

from typing import Final

from pydantic import Field
from starlette.responses import Response

from fennelq.errors import UnknownExecutor
from fennelq.manage.executors.flame_graph import amount, svg
from fennelq.manage.executors.profile import ExecutorProfile
from fennelq.manage.executors.profile_files import speedscope
from fennelq.web.table import Form
from fennelq.web.visit import Moved, NotFound, Page, Visit, link

LONGEST: Final = 30.0
"""Seconds that a profile may take: the page waits for it."""
_MOST_TASKS: Final = 20
_MOST_LINES: Final = 3


class ProfileForm(Form):
    """What is counted."""

    seconds: float = Field(default=5.0, ge=1, le=LONGEST)
    memory: bool = False


async def show(visit: Visit) -> Page:
    """Ask what to count, and show what was counted last."""
    name = await _found(visit)
    known = visit.site.profiles.of(name)
    return Page(
        template="profile.html",
        title=f"Profile of {name}",
        section="executors",
        values={
            "executor": name,
            "profile": known,
            "tasks": _tasks(known) if known else [],
            "longest": int(LONGEST),
        },
    )


async def run(visit: Visit) -> Moved:
    """Count."""
    form, name = visit.given(ProfileForm), await _found(visit)
    how = f"--seconds {form.seconds:g}{' --memory' if form.memory else ''}"
    async with visit.site.recorded(visit, "profile", target=name, filter=how) as record:
        found = await visit.app.executors.profile(
            name, seconds=form.seconds, memory=form.memory, who=visit.who
        )
        record.ended(outcome=f"{amount(found.total, memory=found.memory)} in {found.seconds:g} s")
    visit.site.profiles.keep(name, found)
    return Moved(link("executors", name, "profile"), "profiled")


async def flame(visit: Visit) -> Response:
    """The flame graph of what was counted last."""
    return Response(svg(_known(visit)), media_type="image/svg+xml", headers={"Cache-Control": "no-store"})


async def file(visit: Visit) -> Response:
    """The same as a file of speedscope."""
    headers = {"Content-Disposition": 'attachment; filename="profile.speedscope.json"'}
    return Response(speedscope(_known(visit)), media_type="application/json", headers=headers)


def _tasks(profile: ExecutorProfile) -> list[tuple[str, str, int, list[str]]]:
    """Each task: its value in words, its share in percent, and its most expensive lines."""
    return [
        (
            one.task,
            amount(one.value, memory=profile.memory),
            round(100 * one.share),
            [str(call) for call, _ in one.lines[:_MOST_LINES]],
        )
        for one in profile.tasks[:_MOST_TASKS]
    ]


def _known(visit: Visit) -> ExecutorProfile:
    found = visit.site.profiles.of(visit.names["executor"])
    if found is None:
        raise NotFound(
            "This process of the dashboard has no profile of this executor: begin one on its page."
        )
    return found


async def _found(visit: Visit) -> str:
    look, name = await visit.look(), visit.names["executor"]
    if name not in look.executors:
        raise UnknownExecutor(name, known=[*look.executors])
    return name
