"""`fennelq cron`: lists, adds, pauses, runs and removes schedules."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from fennelq import clock
from fennelq.cli import complete, output
from fennelq.cli.auditing import Outcome
from fennelq.cli.calls import array_of, described, only_given
from fennelq.cli.command import command, family
from fennelq.cli.consent import agree
from fennelq.cli.ending import ended, print_end
from fennelq.cli.exits import Exit, Problem
from fennelq.cli.options import (
    CallArguments,
    CallKeywords,
    Expires,
    Json,
    TaskName,
    Timeout,
    ToLane,
    ToQueue,
    Yes,
    moment,
)
from fennelq.cli.session import Session
from fennelq.cli.tables.schedules import show_runs, show_schedule, show_schedules, written
from fennelq.cli.timing import Timing, Zone
from fennelq.declaring.schedules import name_after
from fennelq.errors import ConfigurationError, UnknownSchedule, UnreadableSchedule
from fennelq.manage import server
from fennelq.manage.documents import of_schedule, of_tick, state_of
from fennelq.manage.schedules import ScheduleInfo, has_workers
from fennelq.model.schedule import preview

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from fennelq.app import App
    from fennelq.model.job import AnyJob
    from fennelq.model.options import OptionArgs

commands = family("Recurring jobs: list, add, pause, run, remove them.")

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name of the schedule.", autocompletion=complete.schedules),
]
Names = Annotated[
    list[str],
    typer.Argument(metavar="NAME…", help="Names of schedules.", autocompletion=complete.schedules),
]


@command(commands, "list")
def list_schedules(session: Session, as_json: Json = False) -> None:
    """List every schedule, with its next and its last run."""
    infos, now = session.run(_every)
    if as_json:
        output.document([of_schedule(info, now, session.redaction) for info in infos])
    else:
        show_schedules(infos, session.found.app.tasks, now)


@command(commands, "show")
def show(session: Session, name: Name, as_json: Json = False) -> None:
    """Show everything about one schedule: its task, its times, its last job, its last error."""
    info, now = session.run(lambda app: _one(app, name))
    if as_json:
        output.document(of_schedule(info, now, session.redaction))
    else:
        show_schedule(info, now, session.redaction)


@command(commands, "add", changes=True)
def add(
    session: Session,
    timing: Timing,
    task: TaskName,
    arguments: CallArguments = None,
    args: Annotated[
        str | None,
        typer.Option(
            "--args", metavar="JSON", help="All arguments at once: '[7, \"daily\"]'. Default: none."
        ),
    ] = None,
    kwargs: CallKeywords = None,
    queue: ToQueue = None,
    priority: ToLane = None,
    expires: Expires = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Add the schedule even if the app has no such task.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Add a schedule, or change the schedule with this name.

    It takes effect within a second, and stays until you remove it.

    Example: fennelq cron add shop.tasks:report --cron "0 9 * * 1-5"
    """
    options = only_given({"queue": queue, "priority": priority, "expires": expires})
    texts = [*(arguments or []), *array_of(args)]
    job = described(session.found.app, task, texts, kwargs or [], cast("OptionArgs", options), anyway=anyway)
    _, info, now = session.change(
        lambda app: _add(app, job, timing),
        outcome=lambda added: Outcome(1, added[1].name, _when(added[0]), _when(added[1])),
    )
    if as_json:
        output.document(of_schedule(info, now, session.redaction))
        return
    output.line(info.name)
    output.note(f"next run: {written(info.next_run, timing.tz, now) or 'none'}")


@command(commands, "pause", changes=True)
def pause(session: Session, names: Names, as_json: Json = False) -> None:
    """Pause schedules: they create no jobs until you resume them. Running jobs continue. This includes schedules that
    the code declares."""
    session.change(lambda app: _each(app, names, app.schedules.pause), outcome=_now_it_is("paused"))
    _print_done(names, "paused", as_json=as_json)


@command(commands, "resume", changes=True)
def resume(session: Session, names: Names, as_json: Json = False) -> None:
    """Resume paused schedules. Ticks that were due during the pause do not run."""
    session.change(lambda app: _each(app, names, app.schedules.resume), outcome=_now_it_is("active"))
    _print_done(names, "resumed", as_json=as_json)


@command(commands, "run", changes=True)
def run(
    session: Session,
    name: Name,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the result and print it.")] = False,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Run a schedule once, now, and print the id of the job. Its next run does not change."""

    async def send(app: App) -> str:
        return (await app.schedules.run(name)).id

    job = session.change(send, outcome=lambda job: Outcome(1, f"sent {job}"))
    if wait:
        output.note(f"sent {job}")
        print_end(session.run(lambda app: ended(app, job, timeout)), as_json=as_json)
    elif as_json:
        output.document({"id": job})
    else:
        output.line(job)


@command(commands, "remove", changes=True)
def remove(session: Session, names: Names, yes: Yes = False, as_json: Json = False) -> None:
    """Remove schedules that were added at run time, or belong to a service without workers.

    The command asks first; without a terminal it needs --yes.
    """
    session.run(lambda app: _removable(app, names))
    agree(f"Remove {output.counted(len(names), 'schedule')} ({', '.join(names)}) for good?", yes=yes)
    session.change(lambda app: _each(app, names, app.schedules.remove), outcome=_now_it_is("removed"))
    _print_done(names, "removed", as_json=as_json)


@command(commands, "next")
def upcoming(
    expression: Annotated[
        str, typer.Argument(metavar="EXPR", help='A cron expression, in quotes: "0 9 * * 1-5".')
    ],
    tz: Zone = "UTC",
    number: Annotated[
        int, typer.Option("-n", "--number", min=1, max=1000, metavar="N", help="How many runs to print.")
    ] = 10,
    after: Annotated[
        Any,
        typer.Option(
            "--from", parser=moment, metavar="MOMENT", help="The first run is after this time. Default: now."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the next runs of a cron expression. This adds no schedule."""
    now = clock.from_ms(clock.wall_ms())
    begin = clock.wall_ms() if after is None else round(cast("datetime", after).timestamp() * 1000)
    try:
        runs = [clock.from_ms(due) for due in preview(expression, tz, begin, number)]
    except ConfigurationError as error:
        raise Problem(str(error).partition(": ")[2], Exit.USAGE) from None
    if as_json:
        output.document([of_tick(run, tz, now) for run in runs])
    else:
        show_runs(runs, tz, now)


# Actions


async def _every(app: App) -> tuple[list[ScheduleInfo], datetime]:
    return await app.schedules.list(), await _now(app)


async def _one(app: App, name: str) -> tuple[ScheduleInfo, datetime]:
    return await app.schedules.get(name), await _now(app)


async def _now(app: App) -> datetime:
    """The time of the server's clock, which decides when a schedule is due."""
    return await app.client.converse(server.now())


async def _add(app: App, job: AnyJob, timing: Timing) -> tuple[ScheduleInfo | None, ScheduleInfo, datetime]:
    """The schedule before and after, and the time."""
    before: ScheduleInfo | None = None
    with suppress(UnknownSchedule, UnreadableSchedule):
        before = await app.schedules.get(timing.name or name_after(job.task))
    try:
        info = await app.schedules.add(
            job, name=timing.name, cron=timing.cron, every=timing.every, **timing.when()
        )
    except ConfigurationError as error:
        raise Problem(str(error), Exit.USAGE) from None
    return before, info, await _now(app)


async def _each(app: App, names: list[str], change: Callable[[str], Awaitable[None]]) -> list[ScheduleInfo]:
    """Change these schedules, one by one; returns what they were before."""
    before = await _known(app, names)
    for name in names:
        await change(name)
    return before


def _now_it_is(state: str) -> Callable[[list[ScheduleInfo]], Outcome]:
    def outcome(before: list[ScheduleInfo]) -> Outcome:
        return Outcome(len(before), before=", ".join(sorted(set(map(state_of, before)))), after=state)

    return outcome


def _when(info: ScheduleInfo | None) -> str:
    """When a schedule is due: `0 9 * * 1-5`, `every 60 s`."""
    if info is None:
        return ""
    return info.schedule.cron or f"every {(info.schedule.every_ms or 0) / 1000:g} s"


async def _known(app: App, names: list[str]) -> list[ScheduleInfo]:
    """The schedules of these names. Raises for a misspelt name, before it changes any schedule. Schedules that cannot
    be read are left out."""
    infos: list[ScheduleInfo] = []
    for name in names:
        with suppress(UnreadableSchedule):
            infos.append(await app.schedules.get(name))
    return infos


async def _removable(app: App, names: list[str]) -> None:
    now = await _now(app)
    for info in await _known(app, names):
        if info.declared and has_workers(info, now):
            sentence = f"schedule {info.name!r} is declared in code{_by(info)}: remove it there, or pause it"
            raise Problem(sentence, Exit.FAILED)


def _by(info: ScheduleInfo) -> str:
    return f" by {info.service}, whose workers are running" if info.service else ""


def _print_done(names: list[str], what: str, *, as_json: bool) -> None:
    if as_json:
        output.document({what: names})
        return
    for name in names:
        output.line(f"{name} {what}")
