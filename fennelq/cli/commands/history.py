"""`fennelq history`: record how jobs end, and search the jobs that have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fennelq.cli import output
from fennelq.cli.auditing import Outcome
from fennelq.cli.command import command, family
from fennelq.cli.consent import agree
from fennelq.cli.options import Json, Yes, duration, one_of
from fennelq.cli.session import Session
from fennelq.cli.tables.history import CHART_COLUMNS, END_COLUMNS, chart_rows, row_of_end
from fennelq.cli.which_jobs import ago
from fennelq.manage.documents import of_job
from fennelq.manage.history.documents import of_bucket, of_facts, of_recorder
from fennelq.manage.history.looking import MONTH, MOST_FOUND, keep_of
from fennelq.model.job import Status

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.manage.history.looking import BlockingHistory
    from fennelq.manage.history.store import HistoryProgress

commands = family("The history: record how jobs end, and search the jobs that have ended.")

By = Literal["hour", "day"]
_ENDS = {str(status).lower(): status for status in Status if status.ended}


def _some_ends(text: str) -> frozenset[Status]:
    words = [word.strip().lower() for word in text.split(",")]
    for word in words:
        if word not in _ENDS:
            raise typer.BadParameter(
                f"{word[:100]!r} is not an end: write {', '.join(_ENDS)}, with commas between"
            )
    return frozenset(_ENDS[word] for word in words)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise typer.BadParameter(f"{text[:100]!r} is not a share: write a number from 0 to 1, such as 0.1")
    return share


def _or_never(text: str) -> float | None:
    return None if text == "forever" else duration(text)


KeepFor = Annotated[
    Any,
    typer.Option(
        "--keep",
        parser=_or_never,
        metavar="DURATION",
        help="Remove jobs that succeeded or were cancelled longer ago: 30d, or forever. Default: 30d.",
    ),
]
KeepDead = Annotated[
    Any,
    typer.Option(
        "--keep-dead",
        parser=_or_never,
        metavar="DURATION",
        help="Remove jobs that died longer ago: 180d, or forever. Default: 180d.",
    ),
]
MaxRows = Annotated[
    int | None,
    typer.Option(
        "--max-rows", min=1, metavar="N", help="Keep at most N jobs, the latest. Default: no bound."
    ),
]


@command(commands, "run")
def run(
    session: Session,
    only: Annotated[
        Any,
        typer.Option(
            "--only",
            parser=_some_ends,
            metavar="ENDS",
            help="Record only jobs with these ends: dead,cancelled. Default: success,dead,cancelled.",
        ),
    ] = None,
    sample: Annotated[
        Any,
        typer.Option(
            "--sample",
            parser=_share,
            metavar="SHARE",
            help="Record this share of the jobs, from 0 to 1, and all dead ones. Default: 1.",
        ),
    ] = None,
    keep: KeepFor = "30d",
    keep_dead: KeepDead = "180d",
    max_rows: MaxRows = None,
    once: Annotated[
        bool, typer.Option("--once", help="Record what waits to be recorded, and exit. Default: go on.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Record the jobs that end into the database of `history_url`, until Ctrl-C or SIGTERM.

    From the first run on, Redis keeps ended jobs for the recorder, in up to 10,000 entries per queue. While the
    database is away, the recorder waits, and workers go on.

    Example: fennelq history run --only dead,cancelled --keep-dead 1y
    """
    # Other commands load neither the logger nor the recorder.
    from fennelq import log
    from fennelq.cli.recording import Shown, record
    from fennelq.manage.history.recording import HistoryRecorder

    settings = session.found.app.settings
    log.setup(settings.log_format, settings.log_level, config=settings.log_config)
    kept = keep_of(keep, keep_dead, max_rows)
    shown = Shown(quiet=as_json)

    async def work(app: App) -> HistoryProgress:
        share = 1.0 if sample is None else sample
        recorder = HistoryRecorder(app, only=only or (), sample=share, keep=kept, report=shown)
        try:
            return await record(app, recorder, once=once)
        finally:
            shown.close()

    progress = session.run(work)
    if as_json:
        output.document(of_recorder(progress))


@command(commands, "search")
def search(
    session: Session,
    where: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILTER]",
            help="Only jobs that match this filter: 'state:dead task:welcome since:7d \"no card\"'. Default: all jobs.",
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=MOST_FOUND, metavar="N", help="List at most N jobs.")
    ] = 100,
    as_json: Json = False,
) -> None:
    """List jobs that have ended, the latest end first. `since:` and `until:` in the filter compare the times when jobs
    ended.

    It reads the database only, so it needs no Redis.

    Example: fennelq history search 'state:dead task:welcome since:7d'
    """
    jobs = _history(session).find(where or "", limit=limit)
    if as_json:
        output.document([of_job(job, session.redaction) for job in jobs])
        return
    rows = [row_of_end(job, session.redaction) for job in jobs]
    output.table(END_COLUMNS, rows, empty="No job matches." if where else "No jobs yet.")
    if len(jobs) == limit:
        output.note(
            f"The latest {output.counted(limit, 'job')}: there may be more. --limit lists up to {MOST_FOUND:,}."
        )


@command(commands, "stats")
def stats(
    session: Session,
    since: Annotated[
        Any,
        typer.Option(
            "--since",
            parser=ago,
            metavar="WHEN",
            help="Count from this time on: 2d (ago), or a date. Default: 30d.",
        ),
    ] = None,
    by: Annotated[Any, typer.Option("--by", parser=one_of(By), metavar="WIDTH", help="hour or day.")] = "day",
    queue: Annotated[
        str | None,
        typer.Option("--queue", "-q", metavar="QUEUE", help="Only this queue. Default: every queue."),
    ] = None,
    task: Annotated[
        str | None, typer.Option("--task", metavar="TASK", help="Only this task. Default: every task.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what the history has, and how many jobs ended on each day or in each hour.

    `missed` is the number of ends that were not recorded, because the recorder was away for too long.
    """
    history = _history(session)
    facts, buckets = (
        history.stats(),
        history.chart(MONTH if since is None else since, by=by, queue=queue, task=task),
    )
    if as_json:
        output.document({**of_facts(facts), "chart": list(map(of_bucket, buckets))})
        return
    shown = {**of_facts(facts), "size": f"{facts.size / 1e6:,.1f} MB", "missed": output.number(facts.missed)}
    output.facts(shown)
    output.blank()
    output.table(CHART_COLUMNS, chart_rows(buckets), empty="No jobs in this time.")


@command(commands, "prune", changes=True)
def prune(
    session: Session,
    keep: KeepFor = "30d",
    keep_dead: KeepDead = "180d",
    max_rows: MaxRows = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Remove old jobs from the history, in small steps. A recorder does this as well, every ten minutes.

    The command asks first; without a terminal it needs --yes.
    """
    facts = _history(session).stats()
    agree(f"Remove the old ones of {output.counted(facts.rows, 'job')} from {facts.where}?", yes=yes)
    removed = session.change(lambda app: app.history.prune(keep, keep_dead, max_rows), outcome=Outcome)
    if as_json:
        output.document({"removed": removed})
    else:
        output.answer(removed, "job", "removed")


@command(commands, "migrate", changes=True)
def migrate(session: Session, as_json: Json = False) -> None:
    """Create the tables of the history, or bring them up to the version that this fennelq needs. `history run` does
    it too."""
    before, now = session.change(
        lambda app: app.history.migrate(),
        outcome=lambda versions: Outcome(before=str(versions[0]), after=str(versions[1])),
    )
    if as_json:
        output.document({"before": before, "version": now})
    else:
        output.line(
            f"version {now}" + (" already" if before == now else f", was {before}" if before else ", new")
        )


def _history(session: Session) -> BlockingHistory:
    return session.found.app.sync.history
