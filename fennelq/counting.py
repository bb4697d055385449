"""What this process has counted for metrics: the jobs that it has sent, and the runs of an executor in it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterable
from itertools import chain
from typing import Final, Protocol
from weakref import WeakSet

from fennelq.errors import BrokerUnavailable
from fennelq.model.job import AnyJob
from fennelq.model.metrics import SENDINGS
from fennelq.model.totals import Pair, Row, Rows, Totals

MOST_SENDING: Final = 10_000
"""Pairs of a queue and a task that are counted until they are added to the totals."""
_NOTHING: Final = [0.0] * len(SENDINGS)
_CREATED, _DUPLICATE, _REFUSED, _UNAVAILABLE = range(len(SENDINGS))


class SharedTotals(Totals):
    """Totals that several threads use. They hold `lock` around each call, and around what they do with rows that are
    still being counted."""

    def __init__(self, *, by_task: bool = True) -> None:
        super().__init__(by_task=by_task)
        self.lock = threading.Lock()


class Counts(Protocol):
    """An executor of this process, which counts its runs."""

    def counting(self) -> Iterable[tuple[Pair, Row]]:
        """What it has counted since it last added its counts to the totals."""
        ...


class Counting:
    """The counts of one app in this process, if metrics are on."""

    on = False
    """Whether it counts."""

    def __init__(self, by: str = "") -> None:
        """`by` is `task` or `queue`; otherwise it does not count yet."""
        if by:
            self.turn_on(by)

    def turn_on(self, by: str) -> None:
        """Count from now on. A call after the first changes nothing."""
        if not self.on:
            self._by_task, self.on = by != "queue", True
            self.begin()
            _all.add(self)

    def begin(self) -> None:
        """Count from 0: in a new process, also in one that was forked, which has neither sent the jobs of its parent
        nor run them. A thread of the parent may have held a lock, so the locks are new."""
        self.runs, self._executors = SharedTotals(by_task=self._by_task), WeakSet[Counts]()
        self._sent, self._sending = Totals(by_task=self._by_task), dict[Pair, Row]()
        self._lock = threading.Lock()

    def attach(self, executor: Counts) -> None:
        """Show the runs of this executor as well."""
        self._executors.add(executor)

    def note_sent(self, job: AnyJob, reply: object) -> None:
        """Count a call that has sent a job, or failed to. Any thread may call it."""
        place = _CREATED
        if reply != 1:
            if isinstance(reply, asyncio.CancelledError):
                return
            place = _place_of(reply)
        pair = (job.queue, job.task)
        with self._lock:
            row = self._sending.get(pair)
            if row is None:
                row = self._add(pair)
            row[place] += 1

    def sent(self) -> Rows:
        """The jobs sent so far."""
        with self._lock:
            return self._sent.rows(self._sending.items())

    def sent_changes(self) -> Rows:
        """The rows of jobs sent that have changed since the last call."""
        with self._lock:
            return self._sent.changes(self._sending.items())

    def ran(self) -> Rows:
        """The runs of the executors of this process. Any thread may call it."""
        with self.runs.lock:
            return self.runs.rows(chain.from_iterable(one.counting() for one in list(self._executors)))

    def _add(self, pair: Pair) -> Row:
        """A new row. Names of queues and tasks may come from requests, so their number is bounded."""
        if len(self._sending) >= MOST_SENDING:
            self._sent.keep(self._sending.items())
            self._sending = {}
        row = self._sending[pair] = [*_NOTHING]
        return row


_all: WeakSet[Counting] = WeakSet()


def every() -> list[Counting]:
    """The counts of all apps of this process that have metrics on."""
    return list(_all)


def _place_of(reply: object) -> int:
    if isinstance(reply, BrokerUnavailable):
        return _UNAVAILABLE
    if isinstance(reply, int):
        return _DUPLICATE if reply == 2 else _REFUSED
    # The key of an earlier job; otherwise an error, or the reason why the queue takes no jobs.
    return _DUPLICATE if isinstance(reply, bytes) else _REFUSED


def _begin_in_child() -> None:
    for counting in every():
        counting.begin()


os.register_at_fork(after_in_child=_begin_in_child)
