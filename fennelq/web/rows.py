"""Rows of tables that several pages show."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from fennelq.manage.executors.info import ExecutorInfo
from fennelq.manage.queues.info import QueueInfo
from fennelq.manage.watch import Rates, Snapshot
from fennelq.model.times import Times
from fennelq.web import drawing, words
from fennelq.web.looks import Look
from fennelq.web.series import Series

_ENDS = ("succeeded", "died", "cancelled")


class QueueRow(NamedTuple):
    """A queue in a table."""

    info: QueueInfo
    oldest: float | None
    """Seconds for which its oldest waiting job has been ready."""
    per_second: float | None
    """Jobs that ended per second."""
    line: str = ""
    """The runs of the last hour as the path of a small line; empty without runs."""
    wait: Times | None = None
    run: Times | None = None

    @property
    def name(self) -> str:
        """Its name."""
        return self.info.name

    @property
    def state(self) -> str:
        """What is special about it; empty for most queues."""
        info = self.info
        if info.damage:
            return "cannot be counted"
        if info.paused:
            only = "" if info.paused.consuming and info.paused.enqueuing else f" ({info.paused.what} only)"
            return f"paused{only} by {info.paused.who}" if info.paused.who else f"paused{only}"
        return "not served" if info.waiting_because else ""

    @property
    def later(self) -> int:
        """Jobs that are due later, or wait in lines."""
        return self.info.scheduled + self.info.in_lines

    @property
    def rank(self) -> tuple[int, float, str]:
        """Attention first: what is wrong, then what is late, then what is busy."""
        info = self.info
        wrong = bool(info.damage) * 8 + bool(info.dead) * 2 + bool(self.state) * 4
        busy = info.waiting + info.running + info.retry + self.later
        return -wrong, -(self.oldest or 0) - (1e-6 * busy if busy else 0), info.name

    @property
    def is_busy(self) -> bool:
        """Whether it has something to do."""
        info = self.info
        return bool(
            info.waiting
            or info.running
            or info.retry
            or self.later
            or info.dead
            or self.state
            or self.per_second
        )


def queue_rows(look: Look) -> list[QueueRow]:
    """All queues, by name."""
    return [queue_row(info, look.snapshot, look.at) for info in look.queues.values()]


def with_times(look: Look, rows: Iterable[QueueRow]) -> list[QueueRow]:
    """The rows with the runs of the last hour and the times of the last minutes, as far as the page has read them."""
    at = look.at.timestamp()
    return [_with_times(look.series, row, at) for row in rows]


def _with_times(series: Series, row: QueueRow, at: float) -> QueueRow:
    wait, run = series.times([row.name], at)
    line = drawing.spark([sum(counts) for counts in series.runs([row.name], at, 30, 2)])
    return row._replace(line=line, wait=wait, run=run)


def queue_row(info: QueueInfo, snapshot: Snapshot, now: datetime) -> QueueRow:
    """A queue."""
    since = info.waiting_since
    oldest = max(0.0, (now - since).total_seconds()) if since else None
    return QueueRow(info, oldest, ends_of(snapshot.rates.get(info.name)))


def ends_of(rates: Rates | None) -> float | None:
    """Jobs that ended per second."""
    return None if rates is None else sum(rates.get(name, 0.0) for name in _ENDS)


def rate_of(snapshot: Snapshot, *names: str) -> float | None:
    """How often per second these counters of all queues were counted; None before two looks."""
    if not snapshot.rates:
        return None
    return sum(rates.get(name, 0.0) for rates in snapshot.rates.values() for name in names)


class ExecutorRow(NamedTuple):
    """An executor in a table."""

    info: ExecutorInfo

    @property
    def dot(self) -> str:
        """The colour of its state."""
        state = self.info.state
        if state.startswith("ended") or state == "silent":
            return "none" if state in ("ended: done", "ended: drained", "ended: stopped") else "dead"
        return {"blocked": "retry", "draining": "wait", "stopping": "wait", "starting": "wait"}.get(state, "")

    @property
    def state(self) -> str:
        """Its state in words."""
        blocked = self.info.blocked
        if self.info.state == "blocked" and blocked:
            return f"loop blocked for {words.duration(blocked.seconds)}"
        return self.info.state

    @property
    def detail(self) -> str:
        """Where its loop is blocked, or was lately."""
        blocked = self.info.blocked
        if not blocked or not self.info.alive:
            return ""
        where = f"{blocked.at.rpartition('/')[2]}"
        if blocked.ago is None:
            return where
        return (
            f"was blocked for {words.duration(blocked.seconds)} at {where}, {words.duration(blocked.ago)} ago"
        )


def executor_rows(executors: Iterable[ExecutorInfo]) -> list[ExecutorRow]:
    """The executors: the living ones by name, then those that have ended."""
    return sorted(map(ExecutorRow, executors), key=lambda row: (not row.info.alive, row.info.name))


def slots_of(executors: Iterable[ExecutorInfo]) -> tuple[int, int]:
    """Jobs that run, and slots, of the living executors."""
    living = [one for one in executors if one.alive]
    return sum(one.running or 0 for one in living), sum(one.slots or 0 for one in living)
