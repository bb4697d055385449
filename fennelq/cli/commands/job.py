"""`fennelq job`: look at one job, wait for it, cancel it, run it again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import typer

from fennelq.cli import output
from fennelq.cli.command import command, family
from fennelq.cli.ending import ended, print_end
from fennelq.cli.exits import Exit
from fennelq.cli.following import display, followed
from fennelq.cli.known import name_unknown, no_record
from fennelq.cli.options import Follow, JobId, JobIds, Json, Timeout
from fennelq.cli.progress import Steps
from fennelq.cli.session import Session
from fennelq.cli.table import Column
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

    With --follow --json, each line is an object: the progress, and at last the end.
    """
    if not follow:
        print_end(session.run(lambda app: ended(app, job, timeout)), as_json=as_json)
        return
    shown = display(job, as_json=as_json)
    print_end(session.run(lambda app: followed(app, job, timeout, shown)), as_json=as_json, on_one_line=True)


@command(commands, "cancel")
def cancel(session: Session, jobs: JobIds, as_json: Json = False) -> None:
    """Cancel jobs that are not running, also those that wait for their next try. Exits with 1 if one of them is running
    or has ended."""
    _print_answers(session.run(lambda app: _one_by_one(app, jobs, app.jobs.cancel)), as_json=as_json)


@command(commands, "retry")
def retry(session: Session, jobs: JobIds, as_json: Json = False) -> None:
    """Run dead jobs again, with all their retries: like `dlq replay`, for single jobs."""
    _print_answers(session.run(lambda app: _one_by_one(app, jobs, app.jobs.retry)), as_json=as_json)


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


def _print_answers(answers: list[JobAnswer], *, as_json: bool) -> None:
    if as_json:
        output.document(list(map(of_answer, answers)))
    else:
        output.table(_ANSWER_COLUMNS, [(answer.id, answer.text) for answer in answers])
    raise typer.Exit(max(map(_code_of, answers)))


def _code_of(answer: JobAnswer) -> Exit:
    if not answer.known:
        return Exit.NOT_FOUND
    return Exit.OK if answer.done else Exit.FAILED
