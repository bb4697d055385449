"""`fennelq top --once` and `--json`: what the screen shows, as tables, lines in a pipe, or a document per look."""

from __future__ import annotations

from asyncio import sleep
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fennelq import clock
from fennelq.cli import output
from fennelq.cli.top.rows import UNKNOWN, PerSecond, Row, Span
from fennelq.cli.top.views import DeadView, OverviewView, QueuesView, RunningView, View, numbers
from fennelq.errors import BrokerUnavailable
from fennelq.manage.attention import in_a_sentence
from fennelq.manage.documents import Document, of_executor, of_group, of_need, of_running, of_snapshot
from fennelq.manage.overview import DeadGroups, Overview, Running, overview, running_jobs
from fennelq.manage.watch import LONGEST, SHARE, Snapshot, Watch

if TYPE_CHECKING:
    from fennelq.app import App

_ROWS: Final = 20
"""Running jobs and groups of dead jobs in the tables of `--once`: the longest runs, and the largest groups."""
_MOST: Final = 500
"""Running jobs in a document."""


async def printed(app: App) -> None:
    """Print one snapshot."""
    async with Watch(app) as watch:
        snapshot = await watch.snapshot()
    seen, running = await _seen(app, snapshot)
    needs = seen.needs
    output.labelled("attention", f"{in_a_sentence(needs, snapshot)}.")
    output.labelled("numbers", numbers(snapshot))
    dead = DeadGroups(seen.groups, seen.unread)
    _print("overview", OverviewView(), OverviewView().rows(snapshot, seen))
    _print("queue", QueuesView(), QueuesView().rows(snapshot, None))
    lease = app.settings.lease
    _print(
        "running",
        RunningView(lease),
        RunningView(lease).rows(snapshot, running),
        "fennelq queue running --limit 500",
    )
    _print("dead", DeadView(), DeadView().rows(snapshot, dead), "fennelq dlq list --group")


async def written(app: App, *, once: bool) -> None:
    """Write a document per look, each on a line, until a person presses Ctrl-C; with `once`, only the first. It goes on
    when Redis was away."""
    noted = False
    async with Watch(app) as watch:
        while True:
            try:
                async with aclosing(watch.follow()) as snapshots:
                    async for snapshot in snapshots:
                        began = clock.monotonic()
                        seen, running = await _seen(app, snapshot)
                        print(output.record(_document(app, seen, running)), flush=True)
                        if once:
                            return
                        noted = False
                        await sleep(min(LONGEST, SHARE * (clock.monotonic() - began)) - snapshot.interval)
            except BrokerUnavailable as error:
                if once or not error.retriable:
                    raise
                if not noted:
                    output.note(f"fennelq: {error} The command goes on when Redis is reachable again.")
                noted = True


async def _seen(app: App, snapshot: Snapshot) -> tuple[Overview, Running]:
    """The overview and the jobs that run; what could not be read of either is a part of the overview."""
    seen = await app.client.converse(overview(app, snapshot))
    running = await app.client.converse(running_jobs(app, snapshot, _MOST))
    return replace(seen, unread={**seen.unread, **running.unread}), running


def _document(app: App, seen: Overview, running: Running) -> Document:
    snapshot, needs = seen.snapshot, seen.needs
    executors = snapshot.executors.values()
    return {
        "app": app.name,
        **of_snapshot(snapshot),
        "sentence": f"{in_a_sentence(needs, snapshot)}.",
        "attention": list(map(of_need, needs)),
        "executors": list(map(of_executor, executors)) if snapshot.executors_known else None,
        "running": list(map(of_running, running.jobs)),
        "dead": list(map(of_group, seen.groups)),
        "unknown": dict(seen.unread),
    }


def _print(label: str, view: View, rows: Sequence[Row], more: str = "") -> None:
    """Print the rows of a view. With `more`, which is the command that lists all, only the first rows."""
    if not rows:
        return
    shown = rows[:_ROWS] if more else rows
    output.blank()
    output.table(view.columns, [*_cells(shown)], label=label)
    if len(rows) > len(shown):
        output.note(f"{len(shown)} of {len(rows):,} shown: `{more}` lists more")


def _cells(rows: Sequence[Row]) -> Iterator[tuple[object, ...]]:
    for row in rows:
        yield tuple(_cell(value) for value in row.cells)


def _cell(value: object) -> object:
    return str(value) if isinstance(value, Span | PerSecond) else "?" if value == UNKNOWN else value
