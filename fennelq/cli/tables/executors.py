"""The executors of `fennelq worker list` and `worker show`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from fennelq.cli import output
from fennelq.cli.tables.table import Column
from fennelq.manage.executors.info import BlockedLoop, ExecutorInfo
from fennelq.manage.words_of_time import length_of
from fennelq.model.times import shown

_COLUMNS: Final = (
    Column("name", least=40),
    Column("state", least=8),
    Column("jobs"),
    Column("now", least=24, leave=1),
    Column("lag", leave=3),
    Column("rss", leave=4),
    Column("up", leave=5),
    Column("queues", least=10, leave=6),
    Column("version", leave=7),
    Column("host", least=8, leave=9),
    Column("pid", leave=8),
)


_LONGEST_NAME: Final = 100
"""Characters. The names of fennelq are shorter, but any client of Redis can write others."""


def show_executors(executors: Sequence[ExecutorInfo]) -> None:
    """Print a table."""
    rows = [(*_row(one), one.pid and str(one.pid)) for one in executors]
    output.table(_COLUMNS, rows, empty="No executors: start a worker with `fennelq worker`.")


def show_executor(executor: ExecutorInfo) -> None:
    """Print all that is known about an executor."""
    blocked, longest = executor.blocked, executor.longest
    output.facts(
        {
            "name": executor.name,
            "state": executor.state,
            "host": executor.host,
            "pid": executor.pid and str(executor.pid),
            "version": executor.version,
            "up": _up(executor),
            "seen": executor.seen_at,
            "jobs": _jobs(executor),
            "stuck": executor.stuck or None,
            "unsettled": executor.unsettled or None,
            "longest run": longest and f"{longest.task} ({longest.job}), {shown(longest.seconds)}",
            "lag": shown(executor.lag),
            "blocked": blocked and f"{_blocked(blocked)}, by {blocked.job}",
            "rss": size(executor.rss),
            "queues": ", ".join(executor.queues),
        }
    )


def size(number: int | None) -> str | None:
    """Bytes for people: `182 MiB`."""
    return None if number is None else f"{number / (1 << 20):,.0f} MiB"


def _row(executor: ExecutorInfo) -> tuple[object, ...]:
    return (
        executor.name[:_LONGEST_NAME],
        executor.state,
        _jobs(executor),
        now_of(executor),
        shown(executor.lag),
        size(executor.rss),
        _up(executor),
        ", ".join(executor.queues),
        executor.version,
        executor.host,
    )


def _jobs(executor: ExecutorInfo) -> str | None:
    """Running jobs and slots: `3/32`."""
    return None if executor.running is None else f"{executor.running}/{executor.slots or 0}"


def now_of(executor: ExecutorInfo) -> str | None:
    """What it does now: what blocks it, or its longest run."""
    if not executor.alive:
        seen = executor.seen_at
        ago = None if seen is None else length_of(int((datetime.now(UTC) - seen).total_seconds()))
        return f"last seen {ago} ago" if ago else None
    if executor.blocked is not None and executor.blocked.ago is None:
        return f"{shown(executor.blocked.seconds)} at {executor.blocked.at.rpartition('/')[2]}"
    if executor.longest is not None:
        more = (executor.running or 1) - 1
        return f"{executor.longest.task} {shown(executor.longest.seconds)}{f' +{more}' if more > 0 else ''}"
    return None


def _blocked(blocked: BlockedLoop) -> str:
    ago = "" if blocked.ago is None else f", {length_of(int(blocked.ago)) or '0 s'} ago"
    return f"{shown(blocked.seconds)} at {blocked.at}{ago}"


def _up(executor: ExecutorInfo) -> str | None:
    return None if executor.uptime is None else length_of(int(max(0.0, executor.uptime))) or "0 s"
