"""`fennelq op`: operations on many jobs, which outlive the command that began them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fennelq.cli import output
from fennelq.cli.acting import performed
from fennelq.cli.auditing import Outcome
from fennelq.cli.command import command, family
from fennelq.cli.exits import Exit
from fennelq.cli.options import Json
from fennelq.cli.session import Session
from fennelq.cli.tables.table import Column
from fennelq.errors import ConfigurationError, UnknownOperation
from fennelq.manage.documents import of_bulk
from fennelq.model.checks import valid_name

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.manage.operation_record import OperationInfo

commands = family("Operations on many jobs, such as `job cancel --where`: list, show, stop and resume them.")

_COLUMNS = (
    Column("operation"),
    Column("act", least=6),
    Column("state", least=7),
    Column("done"),
    Column("total", leave=4),
    Column("begun", leave=3),
    Column("who", least=10, leave=2),
    Column("where", least=12, leave=1),
)


def _operation(text: str) -> str:
    try:
        return valid_name("operation", text)
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from None


Id = Annotated[Any, typer.Argument(parser=_operation, metavar="ID", help="Id of the operation.")]


@command(commands, "list")
def list_operations(
    session: Session,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=1000, metavar="N", help="List at most N operations.")
    ] = 20,
    as_json: Json = False,
) -> None:
    """List the operations of the last thirty days, the newest first."""
    operations = session.run(lambda app: app.operations.list(limit))
    if as_json:
        output.document([of_bulk(one, session.redaction) for one in operations])
        return
    shown = [(one, session.redaction.filter(one.where)) for one in operations]
    rows = [
        (one.id, one.act, one.state, one.done, one.total, one.begun, one.who, where) for one, where in shown
    ]
    output.table(_COLUMNS, rows, empty="No operations in the last thirty days.")


@command(commands, "show")
def show(session: Session, operation: Id, as_json: Json = False) -> None:
    """Show everything about an operation: what it does, to which jobs, how far it has come, who performs it."""
    info = session.run(lambda app: _known(app, operation))
    document = of_bulk(info, session.redaction)
    if as_json:
        output.document(document)
    else:
        output.facts(document)


@command(commands, "stop", changes=True)
def stop(session: Session, operation: Id, as_json: Json = False) -> None:
    """Stop an operation, after it has finished the jobs on which it acts now. `op resume` continues it."""
    info = session.change(
        lambda app: app.operations.stop(operation),
        outcome=lambda info: Outcome(text=f"{info.state}, {info.done:,} of {info.total:,} jobs"),
    )
    if as_json:
        output.document(of_bulk(info, session.redaction))
    else:
        output.line(
            f"{info.id}: {info.state}, {output.number(info.done)} of {output.number(info.total)} jobs"
        )
    raise typer.Exit(Exit.OK if info.state == "stopped" else Exit.FAILED)


@command(commands, "resume", changes=True)
def resume(session: Session, operation: Id, as_json: Json = False) -> None:
    """Continue an operation that was stopped, or whose process has ended. An operation that is done does not change."""
    info = session.run(lambda app: _known(app, operation))
    raise typer.Exit(performed(session, info, quiet=as_json, as_json=as_json))


async def _known(app: App, operation: str) -> OperationInfo:
    info = await app.operations.get(operation)
    if info is None:
        raise UnknownOperation(operation)
    return info
