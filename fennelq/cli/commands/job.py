"""`fennelq job`: find jobs; look at one, wait for it, cancel it, run it again."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from fennelq.broker.dispatch import pages
from fennelq.cli import output
from fennelq.cli.acting import Acting
from fennelq.cli.auditing import outcome_of_answers
from fennelq.cli.command import command, family
from fennelq.cli.ending import ended, print_end
from fennelq.cli.exits import Exit, Problem
from fennelq.cli.finding import list_found, write_found
from fennelq.cli.following import display, followed
from fennelq.cli.known import name_unknown
from fennelq.cli.options import (
    DryRun,
    Follow,
    FollowStory,
    JobId,
    JobIds,
    Json,
    Reason,
    Timeout,
    ToFile,
    WithSecrets,
    Yes,
    duration,
)
from fennelq.cli.session import Session
from fennelq.cli.steps import Steps
from fennelq.cli.story import table as story_table
from fennelq.cli.story.changes import Known, Records, Texts, View, watched
from fennelq.cli.story.known import facts_of, known_of
from fennelq.cli.tables.table import Column
from fennelq.cli.which_jobs import SomeIds, Where, WhichJobs
from fennelq.manage.cancelling import Selection
from fennelq.manage.documents import of_answer
from fennelq.manage.finding import MOST_HITS
from fennelq.manage.jobs import JobAnswer
from fennelq.model.job import Status

if TYPE_CHECKING:
    from fennelq.app import App

_WAIT = 5.0
"""Seconds for running jobs to end, as in `AsyncResult.cancel`."""
commands = family("Jobs: find them, look at one, wait for it, cancel it, retry it.")

_ANSWER_COLUMNS = (Column("id"), Column("answer", least=16))


@command(commands, "list")
def list_jobs(
    session: Session,
    where: Where = None,
    limit: Annotated[
        int,
        typer.Option("--limit", "-n", min=1, max=MOST_HITS, metavar="N", help="List at most N jobs."),
    ] = 100,
    as_json: Json = False,
) -> None:
    """List the jobs that match a filter: waiting, running, scheduled and dead jobs, and those between two tries.

    The search takes at most a fifth of the time of the Redis server. Jobs that have succeeded, were cancelled or have
    expired are found by state:success and state:cancelled if the app has a history (see `fennelq history`), and
    otherwise by their ids.

    Example: fennelq job list --where 'state:dead task:welcome since:2h'
    """
    raise typer.Exit(list_found(session, where, limit, as_json=as_json))


@command(commands, "export", changes=True)
def export(
    session: Session,
    where: Where = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", min=1, metavar="N", help="At most N jobs. Default: all."),
    ] = None,
    to: ToFile = None,
    with_secrets: WithSecrets = False,
    as_json: Json = False,
) -> None:
    """Write everything about the jobs that match a filter as JSON, one object per line (with or without --json)."""

    if to is None:
        raise typer.Exit(write_found(session, where, limit, sys.stdout, quiet=True, secrets=with_secrets))
    try:
        with to.open("w", encoding="utf-8") as file:
            raise typer.Exit(write_found(session, where, limit, file, quiet=False, secrets=with_secrets))
    except OSError as problem:
        raise Problem(f"{to} cannot be written: {problem.strerror}", Exit.FAILED) from None


@command(commands, "show")
def show(session: Session, job: JobId, follow: FollowStory = False, as_json: Json = False) -> None:
    """Show what happened to a job: where it is, why it ran twice, why it does not run yet, why it is dead. If its
    record has expired, this comes from the history.

    With --follow, it prints each change until the job has ended, and exits with 1 if the job did not succeed. With
    --follow --json, each line is a JSON object: what happened, a report of progress, or, in the last line, everything.
    """
    if follow:
        view: View = Records(job) if as_json else Texts(partial(_print_all, session))
        shown = display(job, as_json=as_json)
        known = session.run(lambda app: watched(app, job, partial(known_of, app, job), view, shown))
        raise typer.Exit(Exit.OK if known.info.status is Status.SUCCESS else Exit.FAILED)
    known = session.run(lambda app: known_of(app, job))
    if as_json:
        output.document(known.document)
    else:
        _print_all(session, known)


def _print_all(session: Session, known: Known) -> None:
    failure = known.info.error
    story_table.opening(known.info, known.story)
    output.blank()
    output.facts(facts_of(known, session.redaction))
    if failure and failure.traceback:
        print(f"\n{output.lines(failure.traceback)}")


@command(commands, "wait")
def wait(
    session: Session, job: JobId, timeout: Timeout = None, follow: Follow = False, as_json: Json = False
) -> None:
    """Wait until a job has ended, and print its result as JSON. Exits with 1 if the job did not succeed.

    With --follow --json, each line is a JSON object: a report of progress, or, in the last line, the end.
    """
    if not follow:
        print_end(session.run(lambda app: ended(app, job, timeout)), as_json=as_json)
        return
    shown = display(job, as_json=as_json)
    print_end(session.run(lambda app: followed(app, job, timeout, shown)), as_json=as_json, on_one_line=True)


@command(commands, "cancel", changes=True)
def cancel(
    session: Session,
    which: WhichJobs,
    jobs: SomeIds = None,
    reason: Reason = "cancelled",
    wait: Annotated[
        Any,
        typer.Option(
            "--wait",
            parser=duration,
            metavar="DURATION",
            help="With ids: wait at most this long until running jobs have ended. Default: 5s.",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", min=1, metavar="N", help="With options: at most N jobs. Default: all."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Cancel jobs, by their ids or by options that select them. It asks running jobs to stop.

    With ids, it exits with 1 if one of the jobs has ended already, or still runs after --wait. With options, the
    command asks first; without a terminal it needs --yes.
    """
    if jobs and (which.given or dry_run or limit is not None):
        raise typer.BadParameter("name jobs by their ids, or select them with options, but not both")
    if jobs:
        seconds = _WAIT if wait is None else wait
        answers = session.change(
            lambda app: _cancelled(app, jobs, reason, seconds), planned=len(jobs), outcome=outcome_of_answers
        )
        _print_answers(answers, as_json=as_json)
    if not which.given:
        raise typer.BadParameter(
            "name jobs by their ids, or select them with --queue, --task, --status, --older-than or --where; "
            "--all selects every job"
        )
    if which.where is not None and not which.where.strip():
        raise typer.BadParameter("an empty filter selects every job of the app: write one, or pass --all")
    if which.where is not None and len(which.chosen) > 1:
        raise typer.BadParameter(
            "--where stands alone: write queue:, task:, state: and until: into the filter"
        )
    if wait is not None:
        raise typer.BadParameter("--wait is for jobs that are named by their ids")
    acting = Acting(session, "cancel", which.selection(), which.everything, limit, reason)
    raise typer.Exit(acting.run(dry_run=dry_run, yes=yes, as_json=as_json))


@command(commands, "run", changes=True)
def run(
    session: Session,
    where: Where = None,
    jobs: SomeIds = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", min=1, metavar="N", help="With --where: at most N jobs. Default: all."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Run jobs now that are due later: scheduled jobs, and jobs that wait for their next try.

    With --where, the command asks first; without a terminal it needs --yes.
    """
    if bool(jobs) == bool(where) or (jobs and (dry_run or limit is not None)):
        raise typer.BadParameter("name jobs by their ids, or select them with --where, but not both")
    if jobs:
        answers = session.change(
            lambda app: _one_by_one(app, jobs, app.jobs.run), planned=len(jobs), outcome=outcome_of_answers
        )
        _print_answers(answers, as_json=as_json)
    acting = Acting(session, "run", Selection(where=where or ""), False, limit)
    raise typer.Exit(acting.run(dry_run=dry_run, yes=yes, as_json=as_json))


@command(commands, "retry", changes=True)
def retry(session: Session, jobs: JobIds, as_json: Json = False) -> None:
    """Run dead jobs again, with all their retries: like `dlq replay`, for single jobs."""
    answers = session.change(
        lambda app: _one_by_one(app, jobs, app.jobs.retry), planned=len(jobs), outcome=outcome_of_answers
    )
    _print_answers(answers, as_json=as_json)


async def _cancelled(app: App, jobs: list[str], reason: str, wait: float) -> list[JobAnswer]:
    """Cancel these jobs. Those that run may take their time together."""
    ids = list(dict.fromkeys(jobs))
    steps = Steps(len(ids))

    async def each() -> list[JobAnswer]:
        answers: list[JobAnswer] = []
        for page in pages(ids):
            answers += await asyncio.gather(*(app.jobs.cancel(job, reason, wait=wait) for job in page))
            steps(len(answers))
        return answers

    answers = await steps.run(each())
    await name_unknown(app, [answer.id for answer in answers if not answer.known])
    return answers


Ask = Callable[[str], Awaitable[JobAnswer]]


async def _one_by_one(app: App, jobs: list[str], ask: Ask) -> list[JobAnswer]:
    ids = list(dict.fromkeys(jobs))
    steps = Steps(len(ids))

    async def each() -> list[JobAnswer]:
        answers: list[JobAnswer] = []
        for job in ids:
            answers.append(await ask(job))
            steps(len(answers))
        return answers

    answers = await steps.run(each())
    await name_unknown(app, [answer.id for answer in answers if not answer.known])
    return answers


def _print_answers(answers: list[JobAnswer], *, as_json: bool) -> NoReturn:
    if as_json:
        output.document(list(map(of_answer, answers)))
    else:
        output.table(_ANSWER_COLUMNS, [(answer.id, answer.text) for answer in answers])
    raise typer.Exit(max(map(_code_of, answers)))


def _code_of(answer: JobAnswer) -> Exit:
    if not answer.known:
        return Exit.NOT_FOUND
    return Exit.OK if answer.done else Exit.FAILED
