"""`fennelq info`: the app, its Redis, its queues and executors."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, cast

from fennelq import clock
from fennelq.cli import output
from fennelq.cli.options import Json
from fennelq.cli.queue_table import show_queues
from fennelq.cli.session import Session
from fennelq.cli.table import Column
from fennelq.executors import number
from fennelq.manage.documents import Document, of_executor, of_queue, of_server
from fennelq.manage.executors import ExecutorInfo
from fennelq.manage.queues import QueueInfo
from fennelq.manage.server import ServerInfo, server

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.worker.processes.discovery import FoundApp

_EXECUTOR_COLUMNS = (
    Column("executor", least=16, end=True),
    Column("state", least=12),
    Column("running"),
    Column("of", leave=1),
    Column("stuck", leave=4),
    Column("done", leave=3),
    Column("seen", leave=5),
    Column("queues", least=10, leave=2),
)


def show(session: Session, as_json: Json = False) -> None:
    """Show the app, its Redis, its queues and its workers."""
    seen = session.run(_look)
    facts = {**_of_app(session.found), **of_server(seen.server)}
    executors = list(map(of_executor, seen.executors))
    if as_json:
        output.document({**facts, "queues": list(map(of_queue, seen.queues)), "executors": executors})
        return
    _print(facts, seen.queues, executors)


class _Seen(NamedTuple):
    server: ServerInfo
    queues: list[QueueInfo]
    executors: list[ExecutorInfo]


async def _look(app: App) -> _Seen:
    return _Seen(await app.client.converse(server()), await app.queues.list(), await app.executors.list())


def _of_app(found: FoundApp) -> Document:
    app = found.app
    return {
        "app": app.name,
        "path": found.path,
        "found": found.how,
        "namespace": app.namespace,
        "tasks": sorted(app.tasks),
        "redis": app.address.shown,
    }


def _print(facts: Document, queues: list[QueueInfo], executors: list[Document]) -> None:
    output.facts(
        {
            **facts,
            "tasks": len(facts["tasks"]),
            "memory": _bytes(facts["memory"]),
            "memory_limit": _bytes(facts["memory_limit"]),
        }
    )
    print()
    show_queues(queues)
    print()
    output.table(
        _EXECUTOR_COLUMNS,
        list(map(_row, executors)),
        empty="No workers: start one with `fennelq worker`.",
    )


def _row(executor: Document) -> tuple[object, ...]:
    queues = executor.get("queues")
    return (
        executor["name"],
        executor["state"],
        *(executor.get(fact) for fact in ("running", "concurrency", "stuck", "done")),
        _moment(number(executor, "beat_ms")),
        ", ".join(map(str, cast("list[object]", queues))) if isinstance(queues, list) else None,
    )


def _moment(ms: float) -> datetime | None:
    try:
        return clock.from_ms(int(ms)) if ms else None
    except (ValueError, OverflowError, OSError):
        return None


def _bytes(size: int | None) -> str | None:
    return None if size is None else f"{size / (1 << 20):,.1f} MiB"
