"""`fennelq info`: which app, which Redis, how much is where, who works."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from fennelq import clock
from fennelq.broker import verbs
from fennelq.broker.trouble import ReplyError
from fennelq.cli import output
from fennelq.cli.options import AppDir, AppPath, Json
from fennelq.cli.queue import show_queues
from fennelq.cli.session import found, with_app
from fennelq.cli.table import Column
from fennelq.errors import BrokerUnavailable
from fennelq.executors import number
from fennelq.manage.queues import QueueInfo, Queues
from fennelq.reasons import executors_of

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


def show(app: AppPath = None, app_dir: AppDir = None, as_json: Json = False) -> None:
    """The app, its Redis, its queues and its workers."""
    named = found(app, app_dir)
    said = {**_of_app(named), **with_app(named.app, _of_redis)}
    if as_json:
        output.document(said)
        return
    _print(said)


def _of_app(named: FoundApp) -> dict[str, Any]:
    app = named.app
    return {
        "app": app.name,
        "path": named.path,
        "found": named.how,
        "namespace": app.namespace,
        "tasks": sorted(app.tasks),
        "redis": app.address.shown,
    }


async def _of_redis(app: App) -> dict[str, Any]:
    server = await _server(app)
    return {
        "server": verbs.server.named(server),
        "memory": int(server["used_memory"]) if "used_memory" in server else None,
        "memory_limit": int(server.get("maxmemory", 0)) or None,
        "clients": int(server["connected_clients"]) if "connected_clients" in server else None,
        "queues": await Queues(app).list(),
        "executors": await _executors(app),
    }


async def _server(app: App) -> dict[str, str]:
    """What the server says of itself: nothing, to a user who may not ask."""
    try:
        return await app.client.ask(verbs.server.server())
    except BrokerUnavailable as error:
        if isinstance(error.__cause__, ReplyError) and error.__cause__.word == "NOPERM":
            return {}
        raise


async def _executors(app: App) -> list[dict[str, Any]]:
    known = await app.client.converse(executors_of(app.namespace))
    if known is None:
        return []
    return [{"name": name, "state": known.state(name), **facts} for name, facts in known.facts.items()]


def _print(said: dict[str, Any]) -> None:
    queues: list[QueueInfo] = said.pop("queues")
    executors: list[dict[str, Any]] = said.pop("executors")
    output.facts(
        {
            **said,
            "tasks": len(said["tasks"]),
            "memory": _bytes(said["memory"]),
            "memory_limit": _bytes(said["memory_limit"]),
        }
    )
    print()
    show_queues(queues)
    print()
    output.table(
        _EXECUTOR_COLUMNS,
        [_row(executor) for executor in executors],
        empty="No workers: start one with `fennelq worker`.",
    )


def _row(executor: dict[str, Any]) -> tuple[object, ...]:
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
