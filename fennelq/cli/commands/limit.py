"""`fennelq limit`: lists limits, and changes their numbers at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fennelq.cli import complete, output
from fennelq.cli.auditing import Outcome
from fennelq.cli.command import command, family
from fennelq.cli.known import queue_of_limit, require_queues
from fennelq.cli.options import Json, queue_option
from fennelq.cli.session import Session
from fennelq.cli.tables.table import Column
from fennelq.manage.documents import of_limit
from fennelq.manage.limits import LimitInfo

if TYPE_CHECKING:
    from fennelq.app import App

commands = family("Limits: list them, change their numbers at run time.")

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="Name of the limit, or a task that has it.", autocompletion=complete.limits
    ),
]
Number = Annotated[
    str, typer.Argument(metavar="NUMBER", help="How many run at once: 3. Or a rate: 50/s, 100/m, 1/10s.")
]
InQueue = Annotated[Any, queue_option("The queue. Default: that of the tasks which have the limit.")]

_COLUMNS = (
    Column("queue", least=8),
    Column("limit", least=12),
    Column("kind", leave=2),
    Column("code"),
    Column("set"),
    Column("in lines"),
    Column("gates", leave=3),
    Column("tasks", least=10, end=True, leave=1),
)


@command(commands, "list")
def list_limits(
    session: Session,
    queue: Annotated[Any, queue_option("Only limits of this queue. Default: every queue.")] = None,
    as_json: Json = False,
) -> None:
    """List the limits of the app's tasks, and other limits that were changed or for which jobs wait."""
    infos = session.run(lambda app: _list(app, queue))
    if as_json:
        output.document(list(map(of_limit, infos)))
        return
    output.table(_COLUMNS, list(map(_row, infos)), empty="No limits.")
    for problem in dict.fromkeys(info.problem for info in infos if info.problem):
        output.note(f"fennelq: {problem}")


@command(commands, "set", changes=True)
def set_limit(
    session: Session,
    name: Name,
    number: Number,
    queue: InQueue = None,
    burst: Annotated[
        int | None,
        typer.Option(
            "--burst",
            metavar="N",
            help="With a rate: how many may start at once after a quiet time. Default: as in the code, or 1.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Change the number of a limit in a queue, for all jobs. It overrides the code until you reset it.

    If you raise a limit, waiting jobs start at once. If you lower it, running jobs go on.

    Example: fennelq limit set account 3
    """
    where = queue or queue_of_limit(session.found.app, name)
    _, info = session.change(
        lambda app: _set(app, name, number, where, burst),
        outcome=lambda infos: Outcome(1, f"in {where}", _numbers(infos[0]), _numbers(infos[1])),
    )
    if as_json:
        output.document(of_limit(info))
        return
    code = f"; the code says {info.code}" if info.code else ""
    output.line(f"{info.kind} {info.name} in {info.queue}: {info.numbers}{code}")


@command(commands, "reset", changes=True)
def reset(session: Session, name: Name, queue: InQueue = None, as_json: Json = False) -> None:
    """Undo `limit set` for a limit in a queue: the numbers in the code apply again."""
    where = queue or queue_of_limit(session.found.app, name)
    _, infos = session.change(
        lambda app: _reset(app, name, where),
        outcome=lambda some: Outcome(
            len(some[1]), f"in {where}", *(", ".join(map(_numbers, one)) for one in some)
        ),
    )
    if as_json:
        output.document(list(map(of_limit, infos)))
        return
    for info in infos:
        output.line(f"{info.kind} {info.name} in {info.queue}: {info.code or 'as each job says'}")
    if not infos:
        output.note(f"nothing was set for {name} in {where}")


async def _list(app: App, queue: str | None) -> list[LimitInfo]:
    if queue is not None:
        await require_queues(app, [queue])
    return await app.limits.list(queue)


async def _set(
    app: App, name: str, number: str, queue: str, burst: int | None
) -> tuple[LimitInfo | None, LimitInfo]:
    """The limit before and after."""
    await require_queues(app, [queue])
    known = await app.limits.list(queue)
    after = await app.limits.set(name, number, queue=queue, burst=burst)
    return next(iter(_same(known, [after])), None), after


async def _reset(app: App, name: str, queue: str) -> tuple[list[LimitInfo], list[LimitInfo]]:
    """The limits before and after."""
    await require_queues(app, [queue])
    known = await app.limits.list(queue)
    after = await app.limits.reset(name, queue=queue)
    return _same(known, after), after


def _same(known: list[LimitInfo], changed: list[LimitInfo]) -> list[LimitInfo]:
    """Those that were changed, as they were before."""
    names = {(info.kind, info.name) for info in changed}
    return [info for info in known if (info.kind, info.name) in names]


def _numbers(info: LimitInfo | None) -> str:
    return (info.numbers if info else None) or "as each job says"


def _row(info: LimitInfo) -> tuple[object, ...]:
    tasks = ", ".join(info.tasks)
    known = ("?", "?", "?") if info.problem else (info.changed, info.waiting, info.gates)
    return (info.queue, info.name, info.kind, info.code, *known, tasks)
