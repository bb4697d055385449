"""`fennelq job`: look at one job, wait for it, cancel it, run it again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from fennelq.broker.dispatch import pages
from fennelq.cli import output
from fennelq.cli.command import command, family
from fennelq.cli.consent import agree
from fennelq.cli.ending import ended, print_end
from fennelq.cli.exits import Exit
from fennelq.cli.following import display, followed
from fennelq.cli.known import name_unknown, no_record, note_unknown_task, require_queues
from fennelq.cli.options import (
    DryRun,
    Follow,
    JobId,
    JobIds,
    Json,
    Reason,
    SomeIds,
    Timeout,
    WhichJobs,
    Yes,
    duration,
)
from fennelq.cli.session import Session
from fennelq.cli.steps import Steps, progress
from fennelq.cli.table import Column
from fennelq.manage.cancelling import Cancelling
from fennelq.manage.documents import of_answer, of_event, of_job, text_of, words_of
from fennelq.manage.jobs import JobAnswer
from fennelq.model.job import Event, JobInfo

if TYPE_CHECKING:
    from fennelq.app import App

commands = family("One job: look at it, wait for it, cancel it, retry it.")

_EVENT_COLUMNS = (
    Column("at"),
    Column("what"),
    Column("owner", least=10, end=True, leave=1),
    Column("begun", leave=2),
    Column("more", least=12),
)
_ANSWER_COLUMNS = (Column("id"), Column("answer", least=16))


@command(commands, "show")
def show(session: Session, job: JobId, as_json: Json = False) -> None:
    """Show everything about a job, with its history: its tries, its executors, why it ran twice."""
    info, events = session.run(lambda app: _known(app, job))
    if as_json:
        output.document({**of_job(info), "history": list(map(of_event, events))})
        return
    failure = info.error
    facts: dict[str, object] = {
        **of_job(info),
        "arguments": text_of(info.arguments),
        "headers": output.record(info.headers) if info.headers else None,
        "progress": words_of(info.progress) if info.progress else None,
        "error": failure.error_type if failure else None,
        "message": failure.message if failure else None,
    }
    output.facts(facts)
    if failure and failure.traceback:
        print(f"\n{output.lines(failure.traceback)}")
    if events:
        print()
        output.table(_EVENT_COLUMNS, events)


@command(commands, "wait")
def wait(
    session: Session, job: JobId, timeout: Timeout = None, follow: Follow = False, as_json: Json = False
) -> None:
    """Wait until a job has ended, and print its result as JSON. Exits with 1 if it ended without a result.

    With --follow --json, each line is a JSON object: a report of progress, or, in the last line, the end.
    """
    if not follow:
        print_end(session.run(lambda app: ended(app, job, timeout)), as_json=as_json)
        return
    shown = display(job, as_json=as_json)
    print_end(session.run(lambda app: followed(app, job, timeout, shown)), as_json=as_json, on_one_line=True)


@command(commands, "cancel")
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
            help="With ids: wait at most this long until running jobs have ended.",
        ),
    ] = "5s",
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, metavar="N", help="At most N jobs. Default: all.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Cancel jobs, by their ids or by options that select them. Running ones are asked to stop.

    With ids, it exits with 1 if one of the jobs had ended already, or still runs after --wait. With options, the
    command asks first; without a terminal it needs --yes.
    """
    if jobs and (which.given or dry_run):
        raise typer.BadParameter("name jobs by their ids, or select them with options, but not both")
    if jobs:
        _print_answers(session.run(lambda app: _cancelled(app, jobs, reason, wait)), as_json=as_json)
    if not which.given:
        raise typer.BadParameter(
            "name jobs by their ids, or select them with --queue, --task, --status or --older-than; "
            "--all selects every job"
        )
    selected = _Selected(session, which, limit, reason)
    count = selected.count()
    if dry_run or not count:
        _print_count(count, "would be cancelled" if dry_run else "to cancel", "count", as_json=as_json)
        return
    agree(f"Cancel {output.counted(count, 'job')}?", yes=yes)
    with progress("Cancelling", Steps(count), count, quiet=as_json) as steps:
        done = selected.cancel(steps)
    _print_count(done, "cancelled or asked to stop", "cancelled", as_json=as_json)


@command(commands, "retry")
def retry(session: Session, jobs: JobIds, as_json: Json = False) -> None:
    """Run dead jobs again, with all their retries: like `dlq replay`, for single jobs."""
    _print_answers(session.run(lambda app: _one_by_one(app, jobs, app.jobs.retry)), as_json=as_json)


@dataclass(frozen=True)
class _Selected:
    """The jobs that options select."""

    session: Session
    which: WhichJobs
    limit: int | None
    reason: str

    def count(self) -> int:
        """How many there are now."""

        async def counted(app: App) -> int:
            await require_queues(app, self.which.queue or ())
            count = await app.client.converse(self._cancelling(app, None).count())
            if not count:
                note_unknown_task(app, self.which.task)
            return count

        return self.session.run(counted)

    def cancel(self, steps: Steps) -> int:
        """Cancel them; returns how many."""
        return self.session.run(
            lambda app: steps.run(app.client.converse(self._cancelling(app, steps).run()))
        )

    def _cancelling(self, app: App, steps: Steps | None) -> Cancelling:
        return Cancelling(
            app,
            self.which.selection(),
            limit=self.limit,
            reason=self.reason,
            everything=self.which.everything,
            progress=steps,
        )


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


async def _known(app: App, job: str) -> tuple[JobInfo, list[Event]]:
    info = await app.jobs.info(job)
    if info is None:
        raise await no_record(app, job)
    return info, await app.jobs.history(job)


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


def _print_count(count: int, what: str, name: str, *, as_json: bool) -> None:
    if as_json:
        output.document({name: count})
    else:
        output.answer(count, "job", what)


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
