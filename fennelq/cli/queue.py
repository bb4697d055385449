"""`fennelq queue`: what waits, and how to empty a queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from fennelq.cli import output
from fennelq.cli.dlq import agree
from fennelq.cli.options import AppDir, AppPath, DryRun, Json, QueueName, Yes
from fennelq.cli.session import found, with_app
from fennelq.queues import Place, Progress, QueueInfo, Queues

if TYPE_CHECKING:
    from fennelq.app import App

commands = typer.Typer(no_args_is_help=True, help="Queues: how much is where, what comes next, empty one.")

COLUMNS = ("queue", "waiting", "running", "scheduled", "retry", "dead")


def row(queue: QueueInfo) -> tuple[object, ...]:
    """A queue as a row of the table with these columns."""
    if queue.damage:
        return (queue.name, *("?" for _ in COLUMNS[1:]))
    return (queue.name, queue.waiting, queue.running, queue.scheduled, queue.retry, queue.dead)


@commands.command("list")
def list_queues(app: AppPath = None, app_dir: AppDir = None, as_json: Json = False) -> None:
    """Every queue of the app, and how much is where in it."""
    queues = with_app(found(app, app_dir).app, lambda app: Queues(app).list())
    if as_json:
        output.document(queues)
    else:
        show_queues(queues)


def show_queues(queues: Sequence[QueueInfo]) -> None:
    """A table of queues, and below it what is wrong with any of them."""
    output.table(COLUMNS, [row(queue) for queue in queues])
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


@commands.command("peek")
def peek(
    queue: QueueName,
    app: AppPath = None,
    app_dir: AppDir = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="At most so many.")] = 10,
    scheduled: Annotated[bool, typer.Option("--scheduled", help="Jobs that wait for their time.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Failed jobs that wait for their next try.")] = False,
    as_json: Json = False,
) -> None:
    """The jobs that come next; nothing is taken."""
    if scheduled and retry:
        raise typer.BadParameter("--scheduled and --retry exclude each other")
    place: Place = "scheduled" if scheduled else "retry" if retry else "waiting"
    jobs = with_app(found(app, app_dir).app, lambda app: Queues(app).peek(queue, limit, place))
    if as_json:
        output.document([output.of_job(job) for job in jobs])
        return
    output.table(
        ("id", "task", "priority", "tries", "enqueued", "due", "arguments"),
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
    )


@commands.command("purge")
def purge(
    queue: QueueName,
    app: AppPath = None,
    app_dir: AppDir = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Cancel every job that has not started. Asks on a terminal, needs --yes elsewhere."""
    named = found(app, app_dir).app
    info = with_app(named, lambda app: Queues(app).info(queue))
    count = info.waiting + info.scheduled + info.retry
    if dry_run or not count:
        _say(count, "would be cancelled" if dry_run else "to cancel", "count", as_json=as_json)
        return
    agree(f"Cancel {output.counted(count, 'job')} in {queue} ({_where(info)})?", yes=yes)
    with output.progress("Cancelling", count, quiet=as_json) as progress:
        purged = with_app(named, lambda app: _purge(app, queue, progress))
    _say(purged, "cancelled", "cancelled", as_json=as_json)


async def _purge(app: App, queue: str, progress: Progress | None) -> int:
    return await Queues(app).purge(queue, progress)


def _where(info: QueueInfo) -> str:
    places = {"waiting": info.waiting, "scheduled": info.scheduled, "between two tries": info.retry}
    return ", ".join(f"{count:,} {place}" for place, count in places.items() if count)


def _say(count: int, what: str, name: str, *, as_json: bool) -> None:
    if as_json:
        output.document({name: count})
    else:
        output.line(f"{output.counted(count, 'job')} {what}")
