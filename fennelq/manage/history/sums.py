"""The sums of the history, which are written together with the rows: jobs by hour, and ends that were missed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from fennelq.manage.history.row import Row
from fennelq.manage.history.store import Gap

HOUR_MS: Final = 3_600_000
_ADD_COUNT: Final = """
INSERT INTO counts (hour, queue, task, status, n, run_ms, wait_ms) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (hour, queue, task, status)
DO UPDATE SET n = counts.n + excluded.n, run_ms = counts.run_ms + excluded.run_ms, wait_ms = counts.wait_ms +
excluded.wait_ms"""
_ADD_HOUR: Final = """
INSERT INTO hours (hour, status, n, run_ms, wait_ms) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (hour, status)
DO UPDATE SET n = hours.n + excluded.n, run_ms = hours.run_ms + excluded.run_ms, wait_ms = hours.wait_ms +
excluded.wait_ms"""
_ADD_GAP: Final = "INSERT INTO gaps (queue, missed, since, until) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
_WIDEN_GAP: Final = (
    "UPDATE gaps SET missed = ?, until = ? WHERE queue = ? AND missed < ? AND until >= ? "
    "AND missed = (SELECT max(missed) FROM gaps WHERE queue = ?)"
)
_ONE_GAP_MS: Final = 600_000
"""Gaps with less time between them are one row: while a worker of an earlier version ends jobs, each look finds one."""

_Sums = dict[tuple[int, str, str, str], list[int]]
"""Hour, queue, task and status → the number of rows, and the sums of their times."""


def added(new: Iterable[Row], known: dict[str, Row]) -> Iterator[tuple[str, list[tuple[int | str, ...]]]]:
    """The statements that add these rows to the sums, each with its values."""
    changes = _changes(new, known)
    yield _ADD_COUNT, [(*of, *sums) for of, sums in changes.items()]
    yield _ADD_HOUR, _by_hour(changes)


def _changes(new: Iterable[Row], known: dict[str, Row]) -> _Sums:
    """What these rows change in `counts`, which always has the sums of all rows that were written: the end that a row
    replaces is taken out again."""
    changes: _Sums = {}

    def add(row: Row, sign: int) -> None:
        hour = row.ended // HOUR_MS * HOUR_MS
        sums = changes.setdefault((hour, row.queue, row.task or "", row.status), [0, 0, 0])
        for place, value in enumerate((1, row.run_ms, row.wait_ms)):
            sums[place] += sign * value

    for row in new:
        before = known.get(row.id)
        if before is not None:
            add(before, -1)
            row = row if row.task is not None else row._replace(task=before.task)
        add(row, 1)
    return changes


def _by_hour(changes: _Sums) -> list[tuple[int | str, ...]]:
    hours: dict[tuple[int, str], list[int]] = {}
    for (hour, _, _, status), sums in changes.items():
        all_sums = hours.setdefault((hour, status), [0, 0, 0])
        for place, value in enumerate(sums):
            all_sums[place] += value
    return [(*of, *sums) for of, sums in hours.items()]


def add_gap(gap: Gap, execute: Callable[[str, Sequence[object]], int]) -> None:
    """Write a gap. `execute` returns how many rows a statement has changed."""
    near = gap.since - _ONE_GAP_MS
    if not execute(_WIDEN_GAP, (gap.missed, gap.until, gap.queue, gap.missed, near, gap.queue)):
        execute(_ADD_GAP, (gap.queue, gap.missed, gap.since, gap.until))
