"""`fennelq cron`: recurring jobs, those of the code and those made at run time."""

from __future__ import annotations

import sys
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, cast
from zoneinfo import ZoneInfo

import orjson
import typer

from fennelq import clock
from fennelq.broker import verbs
from fennelq.broker.verbs.schedules import PATIENCE_MS
from fennelq.cli import complete, output
from fennelq.cli.dlq import agree
from fennelq.cli.enqueue import described
from fennelq.cli.exits import Exit, Problem
from fennelq.cli.helps import Command, Group
from fennelq.cli.job import ended, print_result
from fennelq.cli.options import (
    AppDir,
    AppPath,
    CallArguments,
    CallKeywords,
    Expires,
    Json,
    TaskName,
    Timeout,
    ToLane,
    ToQueue,
    Yes,
    duration,
    moment,
)
from fennelq.cli.session import found, with_app
from fennelq.cli.table import Column
from fennelq.errors import ConfigurationError, UnreadableSchedule
from fennelq.manage.schedules import ScheduleInfo
from fennelq.model.schedule import Schedule, When, preview
from fennelq.streams import is_terminal

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.model.job import AnyJob
    from fennelq.model.options import OptionArgs

commands = typer.Typer(
    cls=Group, no_args_is_help=True, help="Recurring jobs: see, add, pause, run, remove them."
)

_COLUMNS = (
    Column("name"),
    Column("when", least=12, leave=2),
    Column("next", leave=3),
    Column("in", leave=1),
    Column("last", leave=6),
    Column("ago", leave=5),
    Column("runs"),
    Column("state"),
    Column("task", least=12, end=True, leave=4),
)
_NEXT_COLUMNS = (Column("next"), Column("in", leave=1))

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name of the schedule.", autocompletion=complete.schedules),
]
Names = Annotated[
    list[str],
    typer.Argument(metavar="NAME…", help="Names of schedules.", autocompletion=complete.schedules),
]
Zone = Annotated[
    str, typer.Option("--tz", metavar="ZONE", help="Time zone of the expression: Europe/Paris. Default: UTC.")
]


@commands.command("list", cls=Command)
def list_schedules(app: AppPath = None, app_dir: AppDir = None, as_json: Json = False) -> None:
    """Every schedule, with its next and its last run."""
    named = found(app, app_dir).app
    infos, now = with_app(named, _every)
    if as_json:
        output.document([_said(info, now) for info in infos])
        return
    output.table(
        _COLUMNS,
        [
            (
                info.name,
                _when(info.schedule),
                *_told(info.next_run, info.schedule.tz, now),
                *_told(info.last_run, info.schedule.tz, now),
                info.run_count,
                _state(info),
                info.schedule.task + ("" if info.schedule.task in named.tasks else " (not of this app)"),
            )
            for info in infos
        ],
        empty="No schedules: declare one with @app.cron, or run `fennelq cron add`.",
    )


@commands.command("show", cls=Command)
def show(name: Name, app: AppPath = None, app_dir: AppDir = None, as_json: Json = False) -> None:
    """Everything about one schedule: what it runs and when, its last job, what went wrong."""
    info, now = with_app(found(app, app_dir).app, lambda app: _one(app, name))
    said = _said(info, now)
    if as_json:
        output.document(said)
        return
    zone = info.schedule.tz
    times = {"next_run": info.next_run, "last_run": info.last_run, "last_error_at": info.last_error_at}
    shown = {name: " · ".join(filter(None, _told(value, zone, now))) for name, value in times.items()}
    output.facts(
        {**said, "arguments": output.record(said["arguments"]), **shown, "next_in": None, "last_ago": None}
    )


@commands.command("add", cls=Command)
def add(
    task: TaskName,
    arguments: CallArguments = None,
    app: AppPath = None,
    app_dir: AppDir = None,
    cron: Annotated[
        str | None,
        typer.Option(
            "--cron",
            metavar="EXPR",
            help="minute hour day month weekday, or six fields with the seconds last, or @daily. "
            "Default: --every is used.",
        ),
    ] = None,
    every: Annotated[
        Any,
        typer.Option(
            "--every",
            parser=duration,
            metavar="DURATION",
            help="An interval: 30s, 5m, 1h. Default: --cron is used.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Its name. Default: the task's.")
    ] = None,
    tz: Zone = "UTC",
    overlap: Annotated[
        str,
        typer.Option(
            "--overlap",
            metavar="HOW",
            help="While the previous run goes on: allow, skip or queue.",
            autocompletion=complete.words("allow", "skip", "queue"),
        ),
    ] = "allow",
    catchup: Annotated[
        str,
        typer.Option(
            "--catchup",
            metavar="HOW",
            help="Which runs to repeat that were missed without a worker: none, last, all:N.",
            autocompletion=complete.words("none", "last", "all:"),
        ),
    ] = "none",
    jitter: Annotated[
        Any,
        typer.Option(
            "--jitter",
            parser=duration,
            metavar="DURATION",
            help="Delay each run by a random time up to this. Default: no delay.",
        ),
    ] = None,
    start: Annotated[
        Any,
        typer.Option(
            "--start", parser=moment, metavar="MOMENT", help="No run before: 2026-05-01. Default: now."
        ),
    ] = None,
    end: Annotated[
        Any,
        typer.Option(
            "--end", parser=moment, metavar="MOMENT", help="No run after: 2026-05-01. Default: it has no end."
        ),
    ] = None,
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
        bool, typer.Option("--anyway", help="Add it even if the app has no such task.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Add a schedule, or change the one of this name.

    It is in effect within a second, and stays until it is removed.

    Example: fennelq cron add shop.tasks:report --cron "0 9 * * 1-5"
    """
    named = found(app, app_dir).app
    options = _only_said({"queue": queue, "priority": priority, "expires": expires})
    texts = [*(arguments or []), *_texts(args)]
    job = described(named, task, texts, kwargs or [], cast("OptionArgs", options), anyway=anyway)
    when: dict[str, Any] = {"tz": tz, "overlap": overlap, "catchup": catchup}
    when |= _only_said({"jitter": jitter, "start": start, "end": end})
    info, now = with_app(named, lambda app: _add(app, job, name, cron, every, cast("When", when)))
    if as_json:
        output.document(_said(info, now))
        return
    output.line(info.name)
    output.say(f"next run: {' · '.join(filter(None, _told(info.next_run, tz, now))) or 'none'}")


@commands.command("pause", cls=Command)
def pause(names: Names, app: AppPath = None, app_dir: AppDir = None, as_json: Json = False) -> None:
    """Stop its runs until it is resumed. Works for schedules that the code declares, too."""

    async def work(app: App) -> None:
        await _known(app, names)
        for name in names:
            await app.schedules.pause(name)

    with_app(found(app, app_dir).app, work)
    _say_done(names, "paused", as_json=as_json)


@commands.command("resume", cls=Command)
def resume(names: Names, app: AppPath = None, app_dir: AppDir = None, as_json: Json = False) -> None:
    """Run it again, from its next time on."""

    async def work(app: App) -> None:
        await _known(app, names)
        for name in names:
            await app.schedules.resume(name)

    with_app(found(app, app_dir).app, work)
    _say_done(names, "resumed", as_json=as_json)


@commands.command("run", cls=Command)
def run(
    name: Name,
    app: AppPath = None,
    app_dir: AppDir = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the result and print it.")] = False,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Run it once, now, and print the job's id. Its next run stays as planned."""

    async def work(app: App) -> tuple[str, dict[str, Any]]:
        job = (await app.schedules.run(name)).id
        return job, await ended(app, job, timeout) if wait else {}

    job, end = with_app(found(app, app_dir).app, work)
    if wait:
        output.say(f"sent {job}")
        print_result(end, as_json=as_json)
    elif as_json:
        output.document({"id": job})
    else:
        output.line(job)


@commands.command("remove", cls=Command)
def remove(
    names: Names, app: AppPath = None, app_dir: AppDir = None, yes: Yes = False, as_json: Json = False
) -> None:
    """Remove schedules that were added at run time, or belong to a service without workers.

    Asks on a terminal, needs --yes in a pipe.
    """
    named = found(app, app_dir).app
    with_app(named, lambda app: _removable(app, names))
    agree(f"Remove {output.counted(len(names), 'schedule')} ({', '.join(names)}) for good?", yes=yes)

    async def work(app: App) -> None:
        for name in names:
            await app.schedules.remove(name)

    with_app(named, work)
    _say_done(names, "removed", as_json=as_json)


@commands.command("next", cls=Command)
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
    """When a cron expression will run next. Adds nothing."""
    now = clock.from_ms(clock.wall_ms())
    begin = clock.wall_ms() if after is None else round(cast("datetime", after).timestamp() * 1000)
    try:
        runs = [clock.from_ms(due) for due in preview(expression, tz, begin, number)]
    except ConfigurationError as error:
        raise Problem(str(error).partition(": ")[2], Exit.USAGE) from None
    if as_json:
        output.document([{"at": _in_zone(run, tz), "in": in_words(run, now)} for run in runs])
        return
    output.table(_NEXT_COLUMNS, [_told(run, tz, now) for run in runs])


def in_words(when: datetime, now: datetime) -> str:
    """`in 4 min`, `2 h 5 min ago`, `in 3 days`."""
    seconds = (when - now).total_seconds()
    length = _length(int(abs(seconds)))
    if not length:
        return "now"
    return f"in {length}" if seconds > 0 else f"{length} ago"


def _length(seconds: int) -> str:
    if seconds < 60:
        return f"{seconds} s" if seconds else ""
    minutes = seconds // 60
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return output.counted(hours // 24, "day")


# What is done


async def _every(app: App) -> tuple[list[ScheduleInfo], datetime]:
    return await app.schedules.list(), await _now(app)


async def _one(app: App, name: str) -> tuple[ScheduleInfo, datetime]:
    return await app.schedules.get(name), await _now(app)


async def _now(app: App) -> datetime:
    """By the server's clock: it decides when a schedule is due."""
    return clock.from_ms(await app.client.ask(verbs.server.now()))


async def _add(
    app: App, job: AnyJob, name: str | None, cron: str | None, every: float | None, when: When
) -> tuple[ScheduleInfo, datetime]:
    try:
        return await app.schedules.add(job, name=name, cron=cron, every=every, **when), await _now(app)
    except ConfigurationError as error:
        raise Problem(str(error), Exit.USAGE) from None


async def _known(app: App, names: list[str]) -> list[ScheduleInfo]:
    """All or none: a misspelt name is told before anything is changed. One that cannot be read exists all the same."""
    infos: list[ScheduleInfo] = []
    for name in names:
        with suppress(UnreadableSchedule):
            infos.append(await app.schedules.get(name))
    return infos


async def _removable(app: App, names: list[str]) -> None:
    now = await _now(app)
    for info in await _known(app, names):
        if info.declared and _is_there(info.service_seen, now):
            told = f"schedule {info.name!r} is declared in code{_by(info)}: remove it there, or pause it"
            raise Problem(told, Exit.FAILED)


def _is_there(seen: datetime | None, now: datetime) -> bool:
    """Whether workers of a service declare its schedules; those of one that is gone may be removed by hand."""
    return seen is not None and abs((now - seen).total_seconds()) * 1000 < PATIENCE_MS


def _by(info: ScheduleInfo) -> str:
    return f" by {info.service}, whose workers are there" if info.service else ""


# What is shown


def _said(info: ScheduleInfo, now: datetime) -> dict[str, Any]:
    """A schedule as JSON values."""
    schedule = info.schedule
    return {
        "name": info.name,
        "state": _state(info),
        "source": "code" if info.declared else "runtime",
        "service": info.service,
        "service_seen": _in_zone(info.service_seen, "UTC"),
        "task": schedule.task,
        "queue": schedule.queue,
        "priority": schedule.priority,
        "arguments": output.call_of(schedule.args),
        "options": output.call_of(schedule.options),
        "expires": schedule.expires_ms / 1000 or None,
        "cron": schedule.cron,
        "every": schedule.every_ms / 1000 if schedule.every_ms else None,
        "tz": schedule.tz,
        "overlap": schedule.overlap,
        "catchup": schedule.catchup,
        "jitter": schedule.jitter_ms / 1000 or None,
        "start": _in_zone(_moment(schedule.start_ms), schedule.tz),
        "end": _in_zone(_moment(schedule.end_ms), schedule.tz),
        "next_run": _in_zone(info.next_run, schedule.tz),
        "next_in": in_words(info.next_run, now) if info.next_run else None,
        "last_run": _in_zone(info.last_run, schedule.tz),
        "last_ago": in_words(info.last_run, now) if info.last_run else None,
        "last_job": info.last_job,
        "last_status": info.last_status,
        "last_error": info.last_error,
        "last_error_at": _in_zone(info.last_error_at, schedule.tz),
        "runs": info.run_count,
        "waiting": info.waiting,
        "skipped": info.skipped,
    }


def _state(info: ScheduleInfo) -> str:
    if info.paused:
        return "paused"
    return "active" if info.next_run else "over"


def _when(schedule: Schedule) -> str:
    if schedule.every_ms:
        return f"every {schedule.every_ms / 1000:g} s"
    return f"{schedule.cron} {schedule.tz}"


def _told(value: datetime | None, tz: str, now: datetime) -> tuple[str, str]:
    """A moment in the zone of its schedule, and in words."""
    if value is None:
        return "", ""
    shown = (
        f"{value.astimezone(ZoneInfo(tz)):%Y-%m-%d %H:%M:%S %Z}"
        if is_terminal(sys.stdout)
        else _in_zone(value, tz)
    )
    return shown or "", in_words(value, now)


def _in_zone(value: datetime | None, tz: str) -> str | None:
    return value.astimezone(ZoneInfo(tz)).isoformat(timespec="milliseconds") if value else None


def _moment(ms: int) -> datetime | None:
    return clock.from_ms(ms) if ms else None


def _say_done(names: list[str], what: str, *, as_json: bool) -> None:
    if as_json:
        output.document({what: names})
        return
    for name in names:
        output.line(f"{name} {what}")


# From texts to a call


def _only_said(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _texts(args: str | None) -> list[str]:
    """The arguments of `--args` as they would be written one by one."""
    if args is None:
        return []
    try:
        values: Any = orjson.loads(args)
    except ValueError:
        values = None
    if not isinstance(values, list):
        raise typer.BadParameter(f"--args {args!r} is not a JSON array: write '[7, \"daily\"]'")
    return [orjson.dumps(value).decode() for value in values]  # pyright: ignore[reportUnknownVariableType]
