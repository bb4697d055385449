"""`fennelq queue`: list queues, show their next jobs, pause, resume and empty one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from fennelq.cli import complete, output
from fennelq.cli.command import command, family
from fennelq.cli.consent import agree
from fennelq.cli.known import require_queues
from fennelq.cli.options import DryRun, Json, QueueName, Yes, one_line, one_of, queue_name
from fennelq.cli.pausing import outcome_of_pauses, pause_queue, resume_queue
from fennelq.cli.session import Session
from fennelq.cli.steps import Steps, progress
from fennelq.cli.tables.queues import note_ignoring, show_queues
from fennelq.cli.tables.running import show_running
from fennelq.cli.tables.table import Column
from fennelq.cli.watching import watch_queues
from fennelq.manage.documents import of_job, of_pause, of_queue, of_running, text_of_call
from fennelq.manage.queues.info import QueueInfo, unstarted
from fennelq.manage.queues.queues import Place
from fennelq.manage.running import RunningJob
from fennelq.model.job import JobInfo
from fennelq.model.pause import QueueSide

if TYPE_CHECKING:
    from fennelq.app import App

commands = family(
    "Queues: count their jobs, show the next ones, pause and resume a queue, cancel all its jobs."
)

_PLACES = {"waiting": "waiting", "line": "in lines", "scheduled": "scheduled", "retry": "between two tries"}
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
def list_queues(
    session: Session,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            "-w",
            help="Repeat the list every second, with the jobs per second, until Ctrl-C. With --json: a line each time.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """List every queue of the app, with its number of jobs in each state."""
    if watch:
        session.run(lambda app: watch_queues(app, as_json=as_json))
        return
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
    lines: Annotated[
        bool, typer.Option("--lines", help="Show jobs that wait in lines, for their limits.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the next jobs of a queue; they stay in the queue."""
    if scheduled + retry + lines > 1:
        raise typer.BadParameter("--scheduled, --retry and --lines exclude each other")
    place: Place = "scheduled" if scheduled else "retry" if retry else "line" if lines else "waiting"
    jobs, in_lines = session.run(lambda app: _peek(app, queue, limit, place))
    if as_json:
        output.document([of_job(job, session.redaction) for job in jobs])
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
                text_of_call(session.redaction.call(job.task, job.arguments)),
            )
            for job in jobs
        ],
        empty=f"No jobs {_PLACES[place]} in {queue}{_but(in_lines)}.",
    )


@command(commands, "running")
def running(
    session: Session,
    queue: Annotated[
        Any,
        typer.Argument(
            parser=queue_name,
            metavar="[QUEUE]",
            show_default=False,
            help="Name of the queue. Default: every queue.",
            autocompletion=complete.queues,
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, metavar="N", help="List at most N jobs.")
    ] = 100,
    as_json: Json = False,
) -> None:
    """List the running jobs, with their executors, run times and progress. The jobs that have been running for longest
    come first.

    Example: fennelq queue running mail
    """
    jobs = session.run(lambda app: _running(app, queue, limit + 1))
    if as_json:
        output.document(list(map(of_running, jobs[:limit])))
        return
    where = f" in {queue}" if queue else ""
    show_running(jobs[:limit], session.found.app.settings.lease, empty=f"No jobs run{where}.")
    if len(jobs) > limit:
        output.note(f"More jobs run{where}: --limit lists more than {limit:,}.")


def _only(text: str) -> Any:
    return typer.Option(
        "--only",
        parser=one_of(QueueSide),
        metavar="SIDE",
        help=text,
        autocompletion=complete.words(*get_args(QueueSide)),
    )


OnlyPause = Annotated[
    Any,
    _only("Only one side. consume: workers start no jobs; enqueue: callers get an error. Default: both."),
]
OnlyResume = Annotated[
    Any,
    _only(
        "Only one side. consume: workers start jobs again; enqueue: callers may send jobs again. Default: both."
    ),
]


@command(commands, "pause", changes=True)
def pause(
    session: Session,
    queue: QueueName,
    only: OnlyPause = None,
    why: Annotated[
        Any,
        typer.Option(
            "--why",
            parser=one_line,
            metavar="REASON",
            help="The reason, which callers and operators can read. Default: none.",
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Pause a queue: workers start none of its jobs, and callers that send jobs to it get an error.

    It stays paused until you resume it, even if every process restarts. Running jobs go on. Retries, due jobs, replayed
    jobs and jobs of schedules still enter the queue.

    Example: fennelq queue pause mail --only consume --why "the mail server is down"
    """
    _, paused = session.change(lambda app: pause_queue(app, queue, only, why), outcome=outcome_of_pauses)
    if as_json:
        output.document(of_pause(queue, paused))
    else:
        output.line(f"{queue}: {paused}")
    note_ignoring(queue, paused)


@command(commands, "resume", changes=True)
def resume(
    session: Session,
    queue: QueueName,
    only: OnlyResume = None,
    as_json: Json = False,
) -> None:
    """End the pause of a queue. Its workers start the jobs that wait."""
    before, left = session.change(lambda app: resume_queue(app, queue, only), outcome=outcome_of_pauses)
    if as_json:
        output.document(of_pause(queue, left))
    elif left is not None:
        output.line(f"{queue}: {left}")
    else:
        output.line(f"{queue} {'resumed' if before else 'was not paused'}")


@command(commands, "purge", changes=True)
def purge(
    session: Session,
    queue: QueueName,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Cancel the jobs of a queue that are not running: those that are ready, in lines, scheduled, or waiting for their
    next try. The command asks first; without a terminal it needs --yes."""
    info = session.run(lambda app: _info(app, queue))
    count = unstarted(info)
    if dry_run or not count:
        _print_count(count, "would be cancelled" if dry_run else "to cancel", "count", as_json=as_json)
        return
    agree(f"Cancel {output.counted(count, 'job')} in {queue} ({_where(info)})?", yes=yes)
    with progress("Cancelling", Steps(count), count, quiet=as_json) as steps:
        purged = session.change(lambda app: steps.run(app.queues.purge(queue, steps)), planned=count)
    _print_count(purged, "cancelled", "cancelled", as_json=as_json)


async def _peek(app: App, queue: str, limit: int, place: Place) -> tuple[list[JobInfo], int]:
    """The next jobs. If none waits, also how many are in lines, which are another place."""
    await require_queues(app, [queue])
    jobs = await app.queues.peek(queue, limit, place)
    in_lines = (await app.queues.info(queue)).in_lines if place == "waiting" and not jobs else 0
    return jobs, in_lines


async def _running(app: App, queue: str | None, limit: int) -> list[RunningJob]:
    if queue is not None:
        await require_queues(app, [queue])
    return await app.queues.running(queue, limit=limit)


def _but(in_lines: int) -> str:
    return f", but {in_lines:,} in lines (add --lines)" if in_lines else ""


async def _info(app: App, queue: str) -> QueueInfo:
    await require_queues(app, [queue])
    return await app.queues.info(queue)


def _where(info: QueueInfo) -> str:
    counts = {
        "waiting": info.waiting,
        "line": info.in_lines,
        "scheduled": info.scheduled,
        "retry": info.retry,
    }
    return ", ".join(f"{count:,} {_PLACES[place]}" for place, count in counts.items() if count)


def _print_count(count: int, what: str, name: str, *, as_json: bool) -> None:
    if as_json:
        output.document({name: count})
    else:
        output.answer(count, "job", what)
