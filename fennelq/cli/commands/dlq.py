"""`fennelq dlq`: lists, replays, edits, removes, exports and imports dead jobs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from fennelq.cli import output
from fennelq.cli.auditing import Outcome
from fennelq.cli.command import command, family
from fennelq.cli.consent import agree, confirm, on_a_terminal
from fennelq.cli.editing import edited, outcome_of_edit
from fennelq.cli.exchange import export, lines_of, print_import, words_of_import
from fennelq.cli.exits import Exit, Problem
from fennelq.cli.finding import named_dead
from fennelq.cli.known import no_record
from fennelq.cli.options import DryRun, JobId, Json, ToFile, WithSecrets, Yes
from fennelq.cli.replaying import (
    COLUMNS,
    Anyway,
    Arguments,
    Canary,
    Planned,
    PlanOnly,
    counted,
    planned,
    print_plan,
    print_report,
    replayed,
    row_of,
)
from fennelq.cli.session import Session
from fennelq.cli.steps import Steps, progress
from fennelq.cli.tables.table import Column
from fennelq.cli.which_jobs import DeadIds, Which
from fennelq.errors import FennelqError
from fennelq.manage.dead.letter import DeadLetter, Group
from fennelq.manage.dead.search import Filters
from fennelq.manage.documents import of_answer, of_group, of_letter

if TYPE_CHECKING:
    from fennelq.app import App

commands = family("Dead jobs: look at them, replay them, remove them.")

_GROUPS = (
    Column("jobs"),
    Column("fingerprint"),
    Column("task", least=12, end=True),
    Column("error", least=12, end=True, leave=2),
    Column("newest", leave=3),
    Column("message", least=12, leave=1),
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
    group: Annotated[
        bool, typer.Option("--group", help="Count the jobs by cause, the largest group first.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the dead jobs, the newest first."""
    meant = which.filters()
    if group:
        if oldest:
            raise typer.BadParameter("the groups are in the order of their size: leave out --oldest")
        _list_groups(session, meant, limit, as_json=as_json)
        return

    async def look(app: App) -> tuple[list[DeadLetter], int]:
        await named_dead(app, meant)
        letters = await app.dlq.list(limit=limit or None, order="oldest" if oldest else "newest", **meant)
        return letters, await app.dlq.count(**meant) if len(letters) == limit else len(letters)

    letters, total = session.run(look)
    if as_json:
        output.document([of_letter(letter, session.redaction) for letter in letters])
        return
    output.table(
        COLUMNS,
        list(map(row_of, letters)),
        empty="No dead job matches." if meant else "No dead jobs.",
    )
    if total > len(letters):
        output.note(f"{len(letters):,} of {total:,} shown: --limit 0 lists all")


def _list_groups(session: Session, meant: Filters, limit: int, *, as_json: bool) -> None:
    async def look(app: App) -> list[Group]:
        await named_dead(app, meant)
        return await app.dlq.groups(**meant)

    groups = session.run(look)
    shown = groups[:limit] if limit else groups
    if as_json:
        output.document([of_group(group) for group in shown])
        return
    output.table(
        _GROUPS,
        [(one.jobs, one.fingerprint, one.task, one.error_type, one.newest, one.message) for one in shown],
        empty="No dead job matches." if meant else "No dead jobs.",
    )
    if len(groups) > len(shown):
        output.note(f"{len(shown):,} of {len(groups):,} groups shown: --limit 0 lists all")


@command(commands, "show")
def show_dead(session: Session, job: JobId, as_json: Json = False) -> None:
    """Show everything about one dead job, with its traceback, and how many others died of the same cause."""

    async def look(app: App) -> tuple[DeadLetter, int]:
        letter = await _dead(app, job)
        return letter, await app.dlq.count(fingerprint=letter.fingerprint)

    letter, alike = session.run(look)
    document = of_letter(letter, session.redaction)
    document["others_like_it"] = max(0, alike - 1)
    if as_json:
        output.document(document)
        return
    traceback, redacted = str(document.pop("traceback", "")), document.pop("redacted")
    if redacted:
        document["redacted"] = redacted
    output.facts({**document, "arguments": output.record(document["arguments"])})
    if traceback:
        print(f"\n{output.lines(traceback)}")


@command(commands, "replay", changes=True)
def replay_dead(
    session: Session,
    which: Which,
    canary: Canary,
    arguments: Arguments,
    ids: DeadIds = None,
    limit: Limit = None,
    rate: Annotated[
        float | None,
        typer.Option("--rate", min=0.001, metavar="N", help="At most N jobs per second. Default: no limit."),
    ] = None,
    dry_run: PlanOnly = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Put dead jobs back into their queues. Each job keeps its id, and gets all its retries again.

    No job is lost. You can repeat an interrupted replay: it creates no duplicates. Jobs that die after the command was
    started stay dead. Without a filter, the command asks first on a terminal, and does not ask in a pipe.
    """
    meant, new = which.filters(ids), arguments.new(session)
    count, code = counted(session, meant, limit)
    how = Planned(new, arguments.anyway, arguments.continue_, dry_run or canary.canary is not None)
    plan = planned(session, meant, limit, count, how, quiet=as_json)
    if plan.problem:
        code = Exit.FAILED
    if dry_run:
        print_plan(session, plan, as_json=as_json)
        raise typer.Exit(Exit.FAILED if plan.refused else code)
    if not plan.count:
        _print_count(plan.count, "to replay", as_json=as_json)
        raise typer.Exit(code)
    if not (meant or yes) and on_a_terminal():
        confirm(f"Replay {output.counted(plan.count, 'dead job')}?")
    report = replayed(session, plan, rate, canary, quiet=as_json)
    print_report(report, plan.count, as_json=as_json)
    raise typer.Exit(Exit.FAILED if report.failed else code)


@command(commands, "edit", changes=True)
def edit_dead(session: Session, job: JobId, anyway: Anyway = False, as_json: Json = False) -> None:
    """Change the arguments of one dead job in your editor ($EDITOR), and replay it.

    The editor shows the arguments by name, as JSON. Secrets are hidden, and keep their values unless you replace them.
    If you change nothing, the job stays dead.
    """
    letter = session.run(lambda app: _dead(app, job))
    old, new, file = edited(session.found.app, letter, anyway=anyway)
    if new is None:
        file.unlink()
        output.note(f"nothing was changed: {job} stays dead")
        return
    try:
        answer = session.change(
            lambda app: app.dlq.edit(job, new, anyway=anyway),
            planned=1,
            outcome=lambda answer: outcome_of_edit(session, letter.task, old, new, answer),
        )
    except FennelqError:
        output.note(f"nothing was replayed; the text is in {file}")
        raise
    file.unlink()
    if as_json:
        output.document(of_answer(answer))
    else:
        output.line(f"{job} {answer.text}")
    raise typer.Exit(Exit.OK if answer.done else Exit.FAILED)


@command(commands, "purge", changes=True)
def purge_dead(
    session: Session,
    which: Which,
    ids: DeadIds = None,
    limit: Limit = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every dead job of the app, if no other option selects jobs.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Remove dead jobs for good, with their records. The command asks first; without a terminal it needs --yes.

    It does not remove jobs that die after it has counted them."""
    meant = which.filters(ids)
    if not meant and not everything and not dry_run:
        raise Problem(
            "this removes every dead job of the app: select jobs by their ids, or with --queue, --task, --error, "
            "--fingerprint, --since, --until or --where; --all selects every job",
            Exit.USAGE,
        )
    count, code = counted(session, meant, limit)
    plan = planned(session, meant, limit, count, Planned(), quiet=True)
    if plan.problem:
        code = Exit.FAILED
    if dry_run or not plan.count:
        _print_count(plan.count, "would be removed" if dry_run else "to remove", as_json=as_json)
        raise typer.Exit(code)
    agree(f"Remove {output.counted(plan.count, 'dead job')} for good?", yes=yes)
    with progress("Removing", Steps(plan.count, "dead job"), plan.count, quiet=as_json) as steps:
        removed = session.change(
            lambda app: steps.run(app.dlq.purge(plan=plan, progress=steps)), planned=plan.count
        )
    if as_json:
        output.document({"removed": removed})
    else:
        output.answer(removed, "dead job", "removed")
    raise typer.Exit(code)


@command(commands, "export", changes=True)
def export_dead(
    session: Session,
    which: Which,
    limit: Limit = None,
    to: ToFile = None,
    with_secrets: WithSecrets = False,
    as_json: Json = False,
) -> None:
    """Write everything about dead jobs as JSON, one object per line (with or without --json), the oldest first.

    `fennelq dlq import` reads these lines. It refuses lines in which secrets are hidden."""
    meant = which.filters()
    count, _ = counted(session, meant, limit)
    steps = Steps(count, "dead job", "the export is not complete")

    def exported(file: TextIO, steps: Steps) -> int:
        async def write(app: App) -> int:
            return await steps.run(export(app, meant, limit, file, steps, secrets=with_secrets))

        # It changes nothing, but operators want to know who has the secrets.
        return session.change(write, planned=count) if with_secrets else session.run(write)

    if to is None:
        exported(sys.stdout, steps)
        return
    try:
        with to.open("w", encoding="utf-8") as file, progress("Exporting", steps, count) as steps:
            written = exported(file, steps)
    except OSError as problem:
        raise Problem(f"{to} cannot be written: {problem.strerror}", Exit.FAILED) from None
    output.note(f"{output.counted(written, 'dead job')} written to {to}")


@command(commands, "import", changes=True)
def import_dead(
    session: Session,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file of `dlq export`; - reads stdin.")],
    dead: Annotated[
        bool,
        typer.Option("--dead", help="Put the jobs back into the dead-letter queues. Default: send them."),
    ] = False,
    continue_: Annotated[
        bool,
        typer.Option(
            "--continue", help="Import the other lines if some cannot be imported. Default: import nothing."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Bring the jobs of an export back, with their ids. You can repeat it: it skips jobs whose ids exist already."""
    with (
        lines_of(file) as (lines, count),
        progress("Importing", Steps(count, "line"), count, quiet=as_json) as steps,
    ):
        report = session.change(
            lambda app: steps.run(app.dlq.import_(lines, dead=dead, continue_=continue_, progress=steps)),
            planned=count,
            outcome=lambda report: Outcome(report.imported, words_of_import(report, dead=dead)),
        )
    print_import(report, dead=dead, as_json=as_json)
    raise typer.Exit(Exit.FAILED if report.refused or report.key_taken else Exit.OK)


async def _dead(app: App, job: str) -> DeadLetter:
    letter = await app.dlq.get(job)
    if letter is None:
        info = await app.client.info(job)
        if info is None:
            raise await no_record(app, job)
        raise Problem(f"{job} is not dead: it is {info.status}", Exit.NOT_FOUND)
    return letter


def _print_count(count: int, what: str, *, as_json: bool) -> None:
    if as_json:
        output.document({"count": count})
    else:
        output.answer(count, "dead job", what)
