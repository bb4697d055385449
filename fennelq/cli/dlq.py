"""`fennelq dlq`: the dead, and how to bring them back."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fennelq.cli import output
from fennelq.cli.exits import Exit, Problem
from fennelq.cli.options import (
    AppDir,
    AppPath,
    DeadIds,
    DryRun,
    InQueue,
    JobId,
    Json,
    OfError,
    OfTask,
    Since,
    Until,
    Yes,
    filters,
)
from fennelq.cli.session import found, with_app
from fennelq.dlq import DeadLetter, Filters, ReplayReport

if TYPE_CHECKING:
    from fennelq.app import App

commands = typer.Typer(no_args_is_help=True, help="Dead jobs: look at them, replay them, remove them.")

_EXPORTED_AT_ONCE = 100

Limit = Annotated[
    int | None, typer.Option("--limit", "-n", min=1, metavar="N", help="At most so many, the oldest first.")
]


@commands.command("list")
def list_dead(
    app: AppPath = None,
    app_dir: AppDir = None,
    queue: InQueue = None,
    task: OfTask = None,
    error: OfError = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, metavar="N", help="At most so many; 0 lists all.")
    ] = 100,
    oldest: Annotated[bool, typer.Option("--oldest", help="The oldest first, not the newest.")] = False,
    as_json: Json = False,
) -> None:
    """The dead jobs, the newest first."""
    meant = filters(None, queue, task, error, since, until)

    async def look(app: App) -> tuple[list[DeadLetter], int]:
        letters = await app.dlq.list(limit=limit or None, order="oldest" if oldest else "newest", **meant)
        return letters, await app.dlq.count(**meant) if len(letters) == limit else len(letters)

    letters, total = with_app(found(app, app_dir).app, look)
    if as_json:
        output.document([output.of_letter(letter) for letter in letters])
        return
    output.table(
        ("died", "id", "task", "error", "message"),
        [(one.died_at, one.id, one.task, one.error_type, one.message) for one in letters],
    )
    if total > len(letters):
        output.say(f"{len(letters):,} of {total:,} shown: --limit 0 lists all")


@commands.command("show")
def show_dead(job: JobId, app: AppPath = None, app_dir: AppDir = None, as_json: Json = False) -> None:
    """Everything about one dead job, with its traceback."""
    letter = with_app(found(app, app_dir).app, lambda app: _dead(app, job))
    said = output.of_letter(letter)
    if as_json:
        output.document(said)
        return
    traceback = said.pop("traceback", "")
    output.facts({**said, "arguments": output.record(said["arguments"])})
    if traceback:
        print(f"\n{output.lines(traceback)}")


@commands.command("replay")
def replay_dead(
    ids: DeadIds = None,
    app: AppPath = None,
    app_dir: AppDir = None,
    queue: InQueue = None,
    task: OfTask = None,
    error: OfError = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = None,
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.001, metavar="N", help="At most so many per second.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Put dead jobs back: the same jobs with a fresh budget of retries.

    Nothing is lost by it, and interrupted half-way and run again it makes no duplicates. Without a filter
    it asks on a terminal, and goes ahead elsewhere.
    """
    meant = filters(ids, queue, task, error, since, until)
    named = found(app, app_dir).app
    count = _counted(named, meant, limit)
    if dry_run or not count:
        _say_count(count, "would be replayed" if dry_run else "to replay", as_json=as_json)
        return
    if not (meant or yes) and _on_a_terminal():
        typer.confirm(f"Replay {output.counted(count, 'dead job')}?", abort=True, err=True)
    with output.progress("Replaying", count, quiet=as_json) as progress:
        report = with_app(
            named, lambda app: app.dlq.replay(limit=limit, rate=rate, progress=progress, **meant)
        )
    _say_report(report, as_json=as_json)


@commands.command("purge")
def purge_dead(
    ids: DeadIds = None,
    app: AppPath = None,
    app_dir: AppDir = None,
    queue: InQueue = None,
    task: OfTask = None,
    error: OfError = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Remove dead jobs for good, with their records. Asks on a terminal, needs --yes elsewhere."""
    meant = filters(ids, queue, task, error, since, until)
    named = found(app, app_dir).app
    count = _counted(named, meant, limit)
    if dry_run or not count:
        _say_count(count, "would be removed" if dry_run else "to remove", as_json=as_json)
        return
    agree(f"Remove {output.counted(count, 'dead job')} for good?", yes=yes)
    with output.progress("Removing", count, quiet=as_json) as progress:
        removed = with_app(named, lambda app: app.dlq.purge(limit=limit, progress=progress, **meant))
    if as_json:
        output.document({"removed": removed})
    else:
        output.line(f"{output.counted(removed, 'dead job')} removed")


@commands.command("export")
def export_dead(
    app: AppPath = None,
    app_dir: AppDir = None,
    queue: InQueue = None,
    task: OfTask = None,
    error: OfError = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = None,
    to: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write there. Default: stdout.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Everything about dead jobs, one JSON object per line (with or without --json), the oldest first."""
    meant = filters(None, queue, task, error, since, until)
    named = found(app, app_dir).app
    if to is None:
        with_app(named, lambda app: _export(app, meant, limit, sys.stdout))
        return
    try:
        with to.open("w", encoding="utf-8") as file:
            written = with_app(named, lambda app: _export(app, meant, limit, file))
    except OSError as problem:
        raise Problem(f"{to} cannot be written: {problem.strerror}", Exit.FAILED) from None
    output.say(f"{output.counted(written, 'dead job')} written to {to}")


def agree(question: str, *, yes: bool) -> None:
    """Ask, unless `--yes` was said; where nobody can answer, saying it is required."""
    if yes:
        return
    if not _on_a_terminal():
        raise Problem(f"{question} Say --yes to do it.", Exit.USAGE)
    typer.confirm(question, abort=True, err=True)


def _on_a_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _counted(app: App, meant: Filters, limit: int | None) -> int:
    count = with_app(app, lambda app: app.dlq.count(**meant))
    return count if limit is None else min(count, limit)


async def _dead(app: App, job: str) -> DeadLetter:
    letter = await app.dlq.get(job)
    if letter is None:
        info = await app.client.info(job)
        state = f"it is {info.status}" if info else "there is no record of it"
        raise Problem(f"{job} is not dead: {state}", Exit.NOT_FOUND)
    return letter


async def _export(app: App, meant: Filters, limit: int | None, file: Any) -> int:
    written = 0
    page: list[DeadLetter] = []
    async for letter in app.dlq.scan(**meant):
        page.append(letter)
        if len(page) == _EXPORTED_AT_ONCE or written + len(page) == limit:
            written += await _write(app, page, file)
            page = []
        if written == limit:
            return written
    return written + await _write(app, page, file)


async def _write(app: App, page: list[DeadLetter], file: Any) -> int:
    """Everything about each, asked for in one round trip; one that was replayed meanwhile as it was listed."""
    for letter, whole in zip(page, await asyncio.gather(*(app.dlq.get(one.id) for one in page)), strict=True):
        print(output.record(output.of_letter(whole or letter)), file=file)
    return len(page)


def _say_count(count: int, what: str, *, as_json: bool) -> None:
    if as_json:
        output.document({"count": count})
    else:
        output.line(f"{output.counted(count, 'dead job')} {what}")


def _say_report(report: ReplayReport, *, as_json: bool) -> None:
    if as_json:
        output.document(report)
    else:
        output.line(_in_words(report))
    if report.key_taken or report.broken:
        raise typer.Exit(Exit.FAILED)


def _in_words(report: ReplayReport) -> str:
    also = {
        "still dead, because another job holds their idempotency key": report.key_taken,
        "still dead, because their records cannot be read": report.broken,
        "gone already": report.gone,
    }
    told = [f"{count:,} {what}" for what, count in also.items() if count]
    return "; ".join([f"{output.counted(report.replayed, 'dead job')} replayed", *told])
