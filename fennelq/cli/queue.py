"""`fennelq queue`: what waits, and how to empty a queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from fennelq.cli import output
from fennelq.cli.dlq import agree
from fennelq.cli.helps import Command, Group
from fennelq.cli.known import require_queues
from fennelq.cli.options import AppDir, AppPath, DryRun, Json, QueueName, Yes
from fennelq.cli.progress import Steps, progress
from fennelq.cli.session import found, with_app
from fennelq.cli.table import Column
from fennelq.manage.queues import Place, QueueInfo, Queues
from fennelq.model.job import JobInfo

if TYPE_CHECKING:
    from fennelq.app import App

commands = typer.Typer(
    cls=Group, no_args_is_help=True, help="Queues: count their jobs, see which come next, empty one."
)

COLUMNS = (
    Column("queue", least=16),
    *map(Column, ("waiting", "running", "scheduled", "retry", "dead")),
)
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


def row(queue: QueueInfo) -> tuple[object, ...]:
    """A queue as a row of the table with these columns."""
    if queue.damage:
        return (queue.name, *("?" for _ in COLUMNS[1:]))
    return (queue.name, queue.waiting, queue.running, queue.scheduled, queue.retry, queue.dead)


@commands.command("list", cls=Command)
def list_queues(app: AppPath = None, app_dir: AppDir = None, as_json: Json = False) -> None:
    """Every queue of the app, and how many jobs it has in each state."""
    queues = with_app(found(app, app_dir).app, lambda app: Queues(app).list())
    if as_json:
        output.document(queues)
    else:
        show_queues(queues)


def show_queues(queues: Sequence[QueueInfo]) -> None:
    """A table of queues, and below it what is wrong with any of them."""
    output.table(COLUMNS, [row(queue) for queue in queues], empty="No queues yet: send a job.")
    for queue in queues:
        if queue.damage:
            output.say(f"queue {queue.name} is not served: {queue.damage}")
    for because, names in _waiting(queues).items():
        output.say(f"jobs wait in {', '.join(names)}: {because}")


def _waiting(queues: Sequence[QueueInfo]) -> dict[str, list[str]]:
    """Why jobs wait that no worker can run, and in which queues: most often the reason is the same for all."""
    found: dict[str, list[str]] = {}
    for queue in queues:
        for because in queue.waiting_because:
            found.setdefault(because, []).append(queue.name)
    return found


@commands.command("peek", cls=Command)
def peek(
    queue: QueueName,
    app: AppPath = None,
    app_dir: AppDir = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, metavar="N", help="At most so many jobs.")
    ] = 10,
    scheduled: Annotated[
        bool, typer.Option("--scheduled", help="Show jobs that wait for their time.")
    ] = False,
    retry: Annotated[
        bool, typer.Option("--retry", help="Show failed jobs that wait for their next try.")
    ] = False,
    as_json: Json = False,
) -> None:
    """The jobs that come next; they stay in the queue."""
    if scheduled and retry:
        raise typer.BadParameter("--scheduled and --retry exclude each other")
    place: Place = "scheduled" if scheduled else "retry" if retry else "waiting"
    jobs = with_app(found(app, app_dir).app, lambda app: _peek(app, queue, limit, place))
    if as_json:
        output.document([output.of_job(job) for job in jobs])
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
                output.text_of(job.arguments),
            )
            for job in jobs
        ],
        empty=f"No jobs {_PLACES[place]} in {queue}.",
    )


@commands.command("purge", cls=Command)
def purge(
    queue: QueueName,
    app: AppPath = None,
    app_dir: AppDir = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Cancel every job that has not started. Asks on a terminal, needs --yes in a pipe."""
    named = found(app, app_dir).app
    info = with_app(named, lambda app: _info(app, queue))
    count = info.waiting + info.scheduled + info.retry
    if dry_run or not count:
        _say(count, "would be cancelled" if dry_run else "to cancel", "count", as_json=as_json)
        return
    agree(f"Cancel {output.counted(count, 'job')} in {queue} ({_where(info)})?", yes=yes)
    with progress("Cancelling", Steps(count), count, quiet=as_json) as steps:
        purged = with_app(named, lambda app: steps.run(Queues(app).purge(queue, steps)))
    _say(purged, "cancelled", "cancelled", as_json=as_json)


async def _peek(app: App, queue: str, limit: int, place: Place) -> list[JobInfo]:
    await require_queues(app, [queue])
    return await Queues(app).peek(queue, limit, place)


async def _info(app: App, queue: str) -> QueueInfo:
    await require_queues(app, [queue])
    return await Queues(app).info(queue)


def _where(info: QueueInfo) -> str:
    counts = {"waiting": info.waiting, "scheduled": info.scheduled, "retry": info.retry}
    return ", ".join(f"{count:,} {_PLACES[place]}" for place, count in counts.items() if count)


def _say(count: int, what: str, name: str, *, as_json: bool) -> None:
    if as_json:
        output.document({name: count})
    else:
        output.answer(count, "job", what)
