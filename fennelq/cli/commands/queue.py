"""`fennelq queue`: list queues, show their next jobs, empty one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fennelq.cli import output
from fennelq.cli.command import command, family
from fennelq.cli.consent import agree
from fennelq.cli.known import require_queues
from fennelq.cli.options import DryRun, Json, QueueName, Yes
from fennelq.cli.queue_table import show_queues
from fennelq.cli.session import Session
from fennelq.cli.steps import Steps, progress
from fennelq.cli.table import Column
from fennelq.manage.documents import of_job, of_queue, text_of
from fennelq.manage.queues import Place, QueueInfo
from fennelq.model.job import JobInfo

if TYPE_CHECKING:
    from fennelq.app import App

commands = family("Queues: count their jobs, show the next ones, cancel all of a queue.")

_PLACES = {"waiting": "waiting", "scheduled": "scheduled", "retry": "between two tries"}
_JOB_COLUMNS = (
    Column("id"),
    Column("task", least=12, end=True, leave=1),
    Column("priority", leave=5),
    Column("tries", leave=6),
    Column("enqueued", leave=4),
    Column("due", leave=3),
    Column("arguments", least=10, leave=2),
)


@command(commands, "list")
def list_queues(session: Session, as_json: Json = False) -> None:
    """List every queue of the app, with its number of jobs in each state."""
    queues = session.run(lambda app: app.queues.list())
    if as_json:
        output.document(list(map(of_queue, queues)))
    else:
        show_queues(queues)


@command(commands, "peek")
def peek(
    session: Session,
    queue: QueueName,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, metavar="N", help="List at most N jobs.")
    ] = 10,
    scheduled: Annotated[
        bool, typer.Option("--scheduled", help="Show jobs that wait for their time.")
    ] = False,
    retry: Annotated[
        bool, typer.Option("--retry", help="Show failed jobs that wait for their next try.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the next jobs of a queue; they stay in the queue."""
    if scheduled and retry:
        raise typer.BadParameter("--scheduled and --retry exclude each other")
    place: Place = "scheduled" if scheduled else "retry" if retry else "waiting"
    jobs = session.run(lambda app: _peek(app, queue, limit, place))
    if as_json:
        output.document([of_job(job) for job in jobs])
        return
    output.table(
        _JOB_COLUMNS,
        [
            (
                job.id,
                job.task,
                job.priority,
                job.tries,
                job.enqueued_at,
                job.due_at,
                text_of(job.arguments),
            )
            for job in jobs
        ],
        empty=f"No jobs {_PLACES[place]} in {queue}.",
    )


@command(commands, "purge")
def purge(
    session: Session,
    queue: QueueName,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Cancel the jobs of a queue that are not running: those that are ready, scheduled, or waiting for their next try.
    The command asks first; without a terminal it needs --yes."""
    info = session.run(lambda app: _info(app, queue))
    count = info.waiting + info.scheduled + info.retry
    if dry_run or not count:
        _print_count(count, "would be cancelled" if dry_run else "to cancel", "count", as_json=as_json)
        return
    agree(f"Cancel {output.counted(count, 'job')} in {queue} ({_where(info)})?", yes=yes)
    with progress("Cancelling", Steps(count), count, quiet=as_json) as steps:
        purged = session.run(lambda app: steps.run(app.queues.purge(queue, steps)))
    _print_count(purged, "cancelled", "cancelled", as_json=as_json)


async def _peek(app: App, queue: str, limit: int, place: Place) -> list[JobInfo]:
    await require_queues(app, [queue])
    return await app.queues.peek(queue, limit, place)


async def _info(app: App, queue: str) -> QueueInfo:
    await require_queues(app, [queue])
    return await app.queues.info(queue)


def _where(info: QueueInfo) -> str:
    counts = {"waiting": info.waiting, "scheduled": info.scheduled, "retry": info.retry}
    return ", ".join(f"{count:,} {_PLACES[place]}" for place, count in counts.items() if count)


def _print_count(count: int, what: str, name: str, *, as_json: bool) -> None:
    if as_json:
        output.document({name: count})
    else:
        output.answer(count, "job", what)
