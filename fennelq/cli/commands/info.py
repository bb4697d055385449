"""`fennelq info`: the app, its Redis, its queues and executors."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, cast

from fennelq import clock
from fennelq.cli import output
from fennelq.cli.options import Json
from fennelq.cli.session import Session
from fennelq.cli.tables.queues import show_queues
from fennelq.cli.tables.table import Column
from fennelq.executors import number
from fennelq.manage.documents import Document, of_executor, of_queue, of_server, of_task_times
from fennelq.manage.executors.info import ExecutorInfo
from fennelq.manage.queues.info import QueueInfo
from fennelq.manage.server import ServerInfo, server
from fennelq.manage.times import TaskTimes
from fennelq.model.times import shown

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
    Column("run p95", leave=6),
    Column("wait p95", leave=6),
)
_TASK_COLUMNS = (
    Column("task", least=16, end=True),
    Column("runs"),
    *map(Column, ("run p50", "run p95", "wait p50", "wait p95")),
)


def show(session: Session, as_json: Json = False) -> None:
    """Show the app, its Redis, its queues and its workers."""
    seen = session.run(_look)
    facts = {**_of_app(session.found), **of_server(seen.server)}
    executors, times = list(map(of_executor, seen.executors)), list(map(of_task_times, seen.times))
    if as_json:
        queues = list(map(of_queue, seen.queues))
        output.document({**facts, "queues": queues, "times": times, "executors": executors})
        return
    _print_facts(facts)
    print()
    show_queues(seen.queues)
    print()
    if times:
        output.table(_TASK_COLUMNS, list(map(_row_of_task, times)))
        print()
    no_executors = "No workers: start one with `fennelq worker`."
    output.table(_EXECUTOR_COLUMNS, list(map(_row, executors)), empty=no_executors)


class _Seen(NamedTuple):
    server: ServerInfo
    queues: list[QueueInfo]
    times: list[TaskTimes]
    executors: list[ExecutorInfo]


async def _look(app: App) -> _Seen:
    return _Seen(
        await app.client.converse(server()),
        await app.queues.list(),
        await app.times.list(),
        await app.executors.list(),
    )


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


def _print_facts(facts: Document) -> None:
    output.facts(
        {
            **facts,
            "tasks": len(facts["tasks"]),
            "memory": _bytes(facts["memory"]),
            "memory_limit": _bytes(facts["memory_limit"]),
        }
    )


def _row(executor: Document) -> tuple[object, ...]:
    queues = executor.get("queues")
    return (
        executor["name"],
        executor["state"],
        *(executor.get(fact) for fact in ("running", "concurrency", "stuck", "done")),
        _moment(number(executor, "beat_ms")),
        ", ".join(map(str, cast("list[object]", queues))) if isinstance(queues, list) else None,
        # Executors of an earlier version report no times.
        *(_percentile(executor.get(times), "p95") for times in ("run_times", "wait_times")),
    )


def _row_of_task(times: Document) -> tuple[object, ...]:
    percentiles = (_percentile(times[of], which) for of in ("run", "wait") for which in ("p50", "p95"))
    return (times["task"], times["run"]["count"], *percentiles)


def _percentile(times: object, which: str) -> str | None:
    return shown(cast("Document", times).get(which)) if isinstance(times, dict) else None


def _moment(ms: float) -> datetime | None:
    try:
        return clock.from_ms(int(ms)) if ms else None
    except (ValueError, OverflowError, OSError):
        return None


def _bytes(size: int | None) -> str | None:
    return None if size is None else f"{size / (1 << 20):,.1f} MiB"
