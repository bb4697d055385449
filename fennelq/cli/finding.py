"""Searches jobs for a command: with a bar on a terminal, and with sentences about what is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Final

from fennelq.broker.verbs.search import Criteria
from fennelq.cli import output
from fennelq.cli.auditing import Outcome
from fennelq.cli.exits import Exit, Interrupted
from fennelq.cli.known import name_unknown, note_unknown_task, require_queues
from fennelq.cli.steps import Steps, progress
from fennelq.cli.tables.table import Column
from fennelq.errors import BrokerUnavailable
from fennelq.manage.documents import of_exported, of_job
from fennelq.manage.finding import Search, SearchProgress, check_live, jobs_found, read_filter, state_of
from fennelq.manage.history.parts import of_history, of_lists
from fennelq.model.query import Query, Term
from fennelq.redaction import WITH_SECRETS

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.cli.session import Session
    from fennelq.manage.dead.search import Filters
    from fennelq.model.job import JobInfo
    from fennelq.redaction import Redaction

_WITH_BAR: Final = 5_000
"""A search of more jobs than this takes so long that it shows a bar."""

_PAGE: Final = 500
"""Jobs that are read from the history at once."""

COLUMNS: Final = (
    Column("id"),
    Column("task", least=12, end=True, leave=1),
    Column("state"),
    Column("tries", leave=7),
    Column("sent", leave=5),
    Column("due", leave=6),
    Column("error", least=12, end=True, leave=4),
    Column("arguments", least=10, leave=2),
)


def row(job: JobInfo, redaction: Redaction) -> tuple[object, ...]:
    """The cells of a job, one for each of COLUMNS."""
    arguments = of_job(job, redaction)["arguments"]
    return (
        job.id,
        job.task,
        state_of(job),
        job.tries,
        job.enqueued_at,
        job.due_at,
        job.error.error_type if job.error else None,
        None if arguments is None else output.record(arguments),
    )


async def require_known(app: App, query: Query) -> None:
    """Raises a Problem for a queue that does not exist; a task that the app does not have gets a note."""
    await require_queues(app, (*query.values("queue"), *query.values("queue", excluded=True)))
    for task in query.values("task"):
        note_unknown_task(app, task)


async def named_dead(app: App, meant: Filters) -> list[str]:
    """The ids that the filters of dead jobs name. Raises a Problem for a queue that does not exist; a task that the app
    does not have gets a note."""
    await require_queues(app, meant.get("queue", ()))
    query = await app.client.converse(read_filter(meant.get("where", "")))
    await require_known(app, query)
    return [*meant.get("ids", ()), *query.ids]


async def known_filter(app: App, where: str | None) -> tuple[Query, Exit]:
    """The filter; and NOT_FOUND when an id in it is unknown, otherwise OK. Raises a Problem for a queue that does not
    exist; a task that the app does not have gets a note."""
    query = await app.client.converse(read_filter(where or ""))
    check_live(query)
    return await _known(app, query)


async def _known(app: App, query: Query) -> tuple[Query, Exit]:
    await require_known(app, query)
    unknown = await name_unknown(app, query.ids)
    return query, Exit.NOT_FOUND if unknown else Exit.OK


def list_found(session: Session, where: str | None, limit: int, *, as_json: bool) -> Exit:
    """Print the jobs that match the filter; those that were found too if the search could not end."""
    jobs: list[JobInfo] = []

    async def find(app: App) -> Exit:
        if app.settings.history_url is None:
            query, code = await known_filter(app, where)
            await search(app, query, limit, jobs.append, quiet=as_json)
            return code
        query = await app.client.converse(read_filter(where or ""))
        return await _find_with_history(app, query, limit, jobs.append, quiet=as_json)

    code, problem = Exit.OK, None
    try:
        code = session.run(find)
    except (Interrupted, BrokerUnavailable) as error:
        if not jobs:
            raise
        problem = error
    if as_json:
        output.document([of_job(job, session.redaction) for job in jobs])
    else:
        rows = [row(job, session.redaction) for job in jobs]
        output.table(COLUMNS, rows, empty="No job matches." if where else "No jobs.")
    if problem is not None:
        raise problem
    if len(jobs) == limit:
        output.note(
            f"The first {output.counted(limit, 'job')}: there may be more. `fennelq job export` has all of them."
        )
    return code


async def _find_with_history(
    app: App, query: Query, limit: int | None, add: Callable[[JobInfo], None], *, quiet: bool
) -> Exit:
    """Call `add` with the jobs that match the filter: those in lists, and then those that have ended, from the
    history."""
    # Commands of apps without a history do not load it.
    from fennelq.manage.history.looking import jobs_after
    from fennelq.manage.history.store import FIRST

    live, ended = of_lists(query), of_history(query)
    number, missing = 0, set(query.ids)

    def met(job: JobInfo) -> None:
        nonlocal number
        number += 1
        missing.discard(job.id)
        add(job)

    if live:
        await search(app, live, limit, met, quiet=quiet)
    if query.ids:
        ended = Query.of(Term("id", job) for job in query.ids if job in missing) if missing else None
    place = FIRST
    while ended and (limit is None or number < limit):
        most = _PAGE if limit is None else min(_PAGE, limit - number)
        jobs, place = await asyncio.to_thread(jobs_after, app.history, ended, most, place)
        for job in jobs:
            met(job)
        if len(jobs) < most:
            break
    unmet = Query.of(Term("id", job) for job in query.ids if job in missing)
    return (await _known(app, unmet if query.ids else query))[1]


def write_found(
    session: Session, where: str | None, limit: int | None, to: IO[str], *, quiet: bool, secrets: bool
) -> Exit:
    """Write the jobs that match the filter, a JSON object per line, as soon as each is found."""
    written, redaction = 0, WITH_SECRETS if secrets else session.redaction

    async def find(app: App) -> Exit:
        def write(job: JobInfo) -> None:
            nonlocal written
            print(output.record(of_exported(app.namespace, job, redaction)), file=to)
            written += 1

        if app.settings.history_url is not None:
            query = await app.client.converse(read_filter(where or ""))
            return await _find_with_history(app, query, limit, write, quiet=quiet)
        query, code = await known_filter(app, where)
        await search(app, query, limit, write, quiet=quiet)
        return code

    # It changes nothing, but operators want to know who has the secrets.
    code = session.change(find, outcome=lambda _: Outcome(written)) if secrets else session.run(find)
    if not quiet:
        output.note(f"{output.counted(written, 'job')} written to {to.name}")
    return code


async def search(
    app: App, query: Query, limit: int | None, add: Callable[[JobInfo], None], *, quiet: bool
) -> None:
    """Call `add` with each job that matches the filter. Ctrl-C ends it between two steps."""
    total = 0 if query.ids else await app.client.converse(Search(app, Criteria(query)).total())
    last = SearchProgress(0, total, 0)
    steps = Steps(total, "job", "the result is not complete")

    def looked(far: SearchProgress) -> None:
        nonlocal last
        last = far
        steps(min(far.looked, total))

    async def find() -> None:
        async for job in app.client.each(jobs_found(app, query, limit, looked)):
            add(job)

    try:
        with progress("Searching", steps, total, quiet=quiet or total < _WITH_BAR) as steps:
            await steps.run(find())
    finally:
        if last.unreadable:
            unread = output.counted(last.unreadable, "job")
            output.note(f"fennelq: {unread} passed over, because the records cannot be read")
