"""`fennelq dlq`: lists, replays and removes dead jobs."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from fennelq.cli import output
from fennelq.cli.command import command, family
from fennelq.cli.consent import agree, on_a_terminal
from fennelq.cli.exits import Exit, Problem
from fennelq.cli.known import name_unknown, no_record, note_unknown_task, require_queues
from fennelq.cli.options import (
    DeadIds,
    DryRun,
    JobId,
    Json,
    Which,
    Yes,
)
from fennelq.cli.session import Session
from fennelq.cli.steps import Steps, progress
from fennelq.cli.table import Column
from fennelq.manage.dead_letter import DeadLetter, ReplayReport
from fennelq.manage.documents import of_letter, of_report
from fennelq.manage.search import Filters

if TYPE_CHECKING:
    from fennelq.app import App

commands = family("Dead jobs: look at them, replay them, remove them.")

_EXPORTED_AT_ONCE = 100
_COLUMNS = (
    Column("died", leave=2),
    Column("id"),
    Column("task", least=12, end=True, leave=1),
    Column("error", least=12, end=True),
    Column("message", least=16, leave=3),
)

Limit = Annotated[
    int | None,
    typer.Option("--limit", "-n", min=1, metavar="N", help="At most N jobs, the oldest first. Default: all."),
]


@command(commands, "list")
def list_dead(
    session: Session,
    which: Which,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, metavar="N", help="List at most N jobs; 0 lists all.")
    ] = 100,
    oldest: Annotated[bool, typer.Option("--oldest", help="List the oldest first.")] = False,
    as_json: Json = False,
) -> None:
    """List the dead jobs, the newest first."""
    meant = which.filters()

    async def look(app: App) -> tuple[list[DeadLetter], int]:
        await require_queues(app, which.queue or ())
        letters = await app.dlq.list(limit=limit or None, order="oldest" if oldest else "newest", **meant)
        return letters, await app.dlq.count(**meant) if len(letters) == limit else len(letters)

    letters, total = session.run(look)
    if as_json:
        output.document([of_letter(letter) for letter in letters])
        return
    output.table(
        _COLUMNS,
        [(one.died_at, one.id, one.task, one.error_type, one.message) for one in letters],
        empty="No dead job matches." if meant else "No dead jobs.",
    )
    if total > len(letters):
        output.note(f"{len(letters):,} of {total:,} shown: --limit 0 lists all")


@command(commands, "show")
def show_dead(session: Session, job: JobId, as_json: Json = False) -> None:
    """Show everything about one dead job, with its traceback."""
    letter = session.run(lambda app: _dead(app, job))
    document = of_letter(letter)
    if as_json:
        output.document(document)
        return
    traceback = document.pop("traceback", "")
    output.facts({**document, "arguments": output.record(document["arguments"])})
    if traceback:
        print(f"\n{output.lines(traceback)}")


@command(commands, "replay")
def replay_dead(
    session: Session,
    which: Which,
    ids: DeadIds = None,
    limit: Limit = None,
    rate: Annotated[
        float | None,
        typer.Option("--rate", min=0.001, metavar="N", help="At most N jobs per second. Default: no limit."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Put dead jobs back into their queues. They are the same jobs, with all their retries.

    No job is lost. You can repeat an interrupted replay: it creates no duplicates. Without a filter, the
    command asks first on a terminal, and does not ask in a pipe.
    """
    meant = which.filters(ids)
    count, code = _counted(session, meant, limit)
    if dry_run or not count:
        _print_count(count, "would be replayed" if dry_run else "to replay", as_json=as_json)
        raise typer.Exit(code)
    if not (meant or yes) and on_a_terminal():
        typer.confirm(f"Replay {output.counted(count, 'dead job')}?", abort=True, err=True)
    with progress("Replaying", Steps(count, "dead job"), count, quiet=as_json) as steps:
        report = session.run(
            lambda app: steps.run(app.dlq.replay(limit=limit, rate=rate, progress=steps, **meant))
        )
    _print_report(report, as_json=as_json)
    raise typer.Exit(Exit.FAILED if report.key_taken or report.broken else code)


@command(commands, "purge")
def purge_dead(
    session: Session,
    which: Which,
    ids: DeadIds = None,
    limit: Limit = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Remove dead jobs for good, with their records. The command asks first; without a terminal it needs --yes."""
    meant = which.filters(ids)
    count, code = _counted(session, meant, limit)
    if dry_run or not count:
        _print_count(count, "would be removed" if dry_run else "to remove", as_json=as_json)
        raise typer.Exit(code)
    agree(f"Remove {output.counted(count, 'dead job')} for good?", yes=yes)
    with progress("Removing", Steps(count, "dead job"), count, quiet=as_json) as steps:
        removed = session.run(lambda app: steps.run(app.dlq.purge(limit=limit, progress=steps, **meant)))
    if as_json:
        output.document({"removed": removed})
    else:
        output.answer(removed, "dead job", "removed")
    raise typer.Exit(code)


@command(commands, "export")
def export_dead(
    session: Session,
    which: Which,
    limit: Limit = None,
    to: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write to this file. Default: stdout."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write everything about dead jobs as JSON, one object per line (with or without --json), the oldest first."""
    meant = which.filters()
    count, _ = _counted(session, meant, limit)
    steps = Steps(count, "dead job", "the export is not complete")
    if to is None:
        session.run(lambda app: steps.run(_export(app, meant, limit, sys.stdout, steps)))
        return
    try:
        with to.open("w", encoding="utf-8") as file, progress("Exporting", steps, count) as steps:
            written = session.run(lambda app: steps.run(_export(app, meant, limit, file, steps)))
    except OSError as problem:
        raise Problem(f"{to} cannot be written: {problem.strerror}", Exit.FAILED) from None
    output.note(f"{output.counted(written, 'dead job')} written to {to}")


def _counted(session: Session, meant: Filters, limit: int | None) -> tuple[int, Exit]:
    """The number of matching jobs; and NOT_FOUND when an id among the filters is unknown, otherwise OK."""

    async def count(app: App) -> tuple[int, bool]:
        await require_queues(app, meant.get("queue", ()))
        number = await app.dlq.count(**meant)
        if not number:
            note_unknown_task(app, cast("str | None", meant.get("task")))
        return number, await name_unknown(app, meant.get("ids", ()))

    number, unknown = session.run(count)
    return number if limit is None else min(number, limit), Exit.NOT_FOUND if unknown else Exit.OK


async def _dead(app: App, job: str) -> DeadLetter:
    letter = await app.dlq.get(job)
    if letter is None:
        info = await app.client.info(job)
        if info is None:
            raise await no_record(app, job)
        raise Problem(f"{job} is not dead: it is {info.status}", Exit.NOT_FOUND)
    return letter


async def _export(app: App, meant: Filters, limit: int | None, file: Any, steps: Steps) -> int:
    written = 0
    page: list[DeadLetter] = []
    async for letter in app.dlq.scan(**meant):
        page.append(letter)
        if len(page) == _EXPORTED_AT_ONCE or written + len(page) == limit:
            written += await _write(app, page, file)
            steps(written)
            page = []
        if written == limit:
            return written
    return written + await _write(app, page, file)


async def _write(app: App, page: list[DeadLetter], file: Any) -> int:
    """Write all facts about each job, read in one round trip. For a job that is not dead any more, write the facts of
    its list entry."""
    for letter, whole in zip(page, await asyncio.gather(*(app.dlq.get(one.id) for one in page)), strict=True):
        print(output.record(of_letter(whole or letter)), file=file)
    return len(page)


def _print_count(count: int, what: str, *, as_json: bool) -> None:
    if as_json:
        output.document({"count": count})
    else:
        output.answer(count, "dead job", what)


def _print_report(report: ReplayReport, *, as_json: bool) -> None:
    if as_json:
        output.document(of_report(report))
    else:
        output.answer(report.replayed, "dead job", _in_words(report))


def _in_words(report: ReplayReport) -> str:
    also = {
        "still dead, because another job holds their idempotency key": report.key_taken,
        "still dead, because their records cannot be read": report.broken,
        "gone already": report.gone,
    }
    return "; ".join(
        ["replayed", *(f"{output.number(count)} {what}" for what, count in also.items() if count)]
    )
