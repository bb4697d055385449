"""All rows, in the order of the table; the quick ones are the same with smaller sizes."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.rows.backlog import Backlog
from benchmarks.rows.counting import Counting
from benchmarks.rows.dead import Dead
from benchmarks.rows.delayed_fleet import DelayedFleet
from benchmarks.rows.drain import Drain, TwoProcesses
from benchmarks.rows.empty_queues import EmptyQueues
from benchmarks.rows.enqueue import Enqueue
from benchmarks.rows.history import History, HistoryInPostgres
from benchmarks.rows.idle import Idle
from benchmarks.rows.idle_fleet import IdleFleet
from benchmarks.rows.imports import Imports
from benchmarks.rows.lanes import Lanes
from benchmarks.rows.latency import Latency
from benchmarks.rows.limits import Limits
from benchmarks.rows.looking import Looking
from benchmarks.rows.memory import Memory
from benchmarks.rows.payload import Payload
from benchmarks.rows.presence import Presence
from benchmarks.rows.punctual import DueAtOnce, Punctual
from benchmarks.rows.row import Row
from benchmarks.rows.sleep import Sleep
from benchmarks.rows.sleepers import Sleepers
from benchmarks.rows.waits import Waits
from benchmarks.rows.web import Web

FULL: Sequence[Row] = (
    Drain(),
    TwoProcesses(),
    Enqueue(),
    Latency(),
    Sleep(),
    Idle(),
    Memory(),
    Lanes(),
    Backlog(),
    Payload(),
    Waits(),
    Punctual(),
    DueAtOnce(),
    Sleepers(),
    EmptyQueues(),
    IdleFleet(),
    Presence(),
    DelayedFleet(),
    Limits(),
    Looking(),
    Dead(),
    Web(),
    History(),
    HistoryInPostgres(),
    Counting(),
    Imports(),
)

QUICK: Sequence[Row] = (
    Drain(jobs=20_000),
    TwoProcesses(jobs=40_000),
    Enqueue(alone=2_000, concurrent=10_000, bulk=20_000),
    Latency(samples=300),
    Sleep(jobs=1_000),
    Idle(seconds=5.0, settle=2.0),
    Memory(jobs=20_000, queues=500),
    Lanes(jobs=20_000),
    Backlog(rounds=5, large=100_000, measured=20_000),
    Payload(small_jobs=10_000, large_jobs=1_000),
    Waits(),
    Punctual(),
    DueAtOnce(),
    Sleepers(executors=128, jobs=500, settle=15.0, idle=10.0),
    EmptyQueues(jobs=20_000),
    IdleFleet(executors=200, real=50, settle=15.0, seconds=30.0),
    Presence(executors=400, more=2_000, settle=8.0, seconds=15.0),
    DelayedFleet(jobs=2, delay=5.0),
    Limits(jobs=10_000, keys=1_000, waiting=10_000),
    Looking(many=100_000, rounds=9),
    Dead(jobs=10_000, rounds=10),
    Web(waiting=10_000, dead=10_000, times=50, seconds=8.0),
    History(jobs=16_000, rows=100_000),
    HistoryInPostgres(jobs=16_000, rows=100_000),
    Counting(jobs=4_000, pairs=6, rounds=10),
    Imports(),
)

__all__ = ["FULL", "QUICK", "Row"]
