"""`fennelq audit`: lists the operations that have changed something."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fennelq.cli import complete, output
from fennelq.cli.options import Json
from fennelq.cli.session import Session
from fennelq.cli.tables.table import Column
from fennelq.cli.which_jobs import ago, past
from fennelq.manage.audit_entry import AuditEntry
from fennelq.manage.documents import of_operation
from fennelq.manage.recorded import recorded_operations

_COLUMNS = (
    Column("at"),
    Column("who", least=7, leave=1),
    Column("via", least=4, leave=6),
    Column("what", least=12),
    Column("on", least=6, leave=2),
    Column("options", least=10, leave=3),
    Column("done", leave=4),
    Column("outcome", least=7),
)

Since = Annotated[
    Any,
    typer.Option(
        "--since",
        parser=past,
        metavar="WHEN",
        help="Only operations since this time: 30m, 2h, 7d (ago), or a date. Default: the first operation.",
    ),
]
Until = Annotated[
    Any,
    typer.Option(
        "--until",
        parser=ago,
        metavar="WHEN",
        help="Only operations that began before this time: 30m, 2h, 7d (ago), or a date. Default: now.",
    ),
]
Who = Annotated[
    str | None,
    typer.Option(
        "--who",
        metavar="USER",
        help="Only operations of this user, host, or user@host: ada, web-1. Default: every user.",
    ),
]
What = Annotated[
    str | None,
    typer.Option(
        "--what",
        metavar="OPERATION",
        help="Only this command, or the commands of this family: 'dlq replay', dlq. Default: every command.",
        autocompletion=complete.words("dlq", "queue", "job", "cron", "limit"),
    ),
]


def show(
    session: Session,
    since: Since = None,
    until: Until = None,
    who: Who = None,
    what: What = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, metavar="N", help="List at most N; 0 lists all.")
    ] = 50,
    as_json: Json = False,
) -> None:
    """List the operations that have changed something, the newest first: who did what, to how many jobs, and the
    outcome.

    Every command that changes something is recorded, before it begins and when it has ended. Redis keeps some 5,000
    operations; with a history (`history_url`), older ones are listed as well.

    Example: fennelq audit --since 2h --what dlq
    """
    entries, problem = session.run(
        lambda app: recorded_operations(
            app, limit=limit or None, since=since, until=until, who=who, what=what
        )
    )
    if problem:
        output.note(f"Only what Redis keeps: {problem}")
    if as_json:
        output.document(list(map(of_operation, entries)))
        return
    filtered = any(one is not None for one in (since, until, who, what))
    empty = "No operation matches." if filtered else "No operations yet."
    output.table(_COLUMNS, list(map(_row, entries)), empty=empty)


def _row(entry: AuditEntry) -> tuple[object, ...]:
    return (
        entry.at,
        entry.who,
        entry.via,
        entry.what,
        entry.target,
        entry.filter,
        _how_many(entry),
        _outcome(entry),
    )


def _how_many(entry: AuditEntry) -> str | None:
    """`7`, or `7 of 300` when it was going to change more."""
    if entry.planned in (None, entry.done):
        return None if entry.done is None else output.number(entry.done)
    done = "?" if entry.done is None else output.number(entry.done)
    return f"{done} of {output.number(entry.planned or 0)}"


def _outcome(entry: AuditEntry) -> str:
    """The end of an operation: its state, unless it is done, and what has changed."""
    change = " → ".join(filter(None, (entry.before, entry.after)))
    words = "; ".join(filter(None, (entry.outcome, change)))
    if entry.state == "done":
        return words or entry.state
    return f"{entry.state}: {words}" if words else entry.state
