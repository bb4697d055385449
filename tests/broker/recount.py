"""Counts a queue by walking every entry, to compare with what the scripts find that walk none."""

from __future__ import annotations

from typing import cast

from fennelq.broker.keys import STREAMS
from fennelq.broker.verbs.survey import Run, Survey
from tests.broker.desk import Desk

LaneCount = tuple[int, int, int | None]
"""How many of its jobs wait, and how many entries are pending; since when the first of those that wait is there."""


def recounted(desk: Desk) -> dict[str, object]:
    """Every number of a queue."""
    dead = [entry for entry, _ in desk.entries("dlq")]
    scheduled, retry = desk.due("sched"), desk.due("retry")
    dues = [*scheduled.values(), *retry.values()]
    return {
        "lanes": {lane: recounted_lane(desk, lane) for lane in STREAMS},
        "scheduled": len(scheduled),
        "retry": len(retry),
        "dead": len(dead),
        "due_ms": min(dues, default=None),
        "died_ms": _ms_of(dead[-1]) if dead else None,
        "in_lines": len(desk.in_lines()),
        "lines": len(cast("list[bytes]", desk.redis.keys(f"{desk.keys.prefix}line:*"))),
        "counters": {name: count for name, count in desk.stats().items() if name != "parked"},
        "damage": "",
    }


def recounted_lane(desk: Desk, lane: str) -> LaneCount:
    """The numbers of a lane."""
    pending = desk.pending(lane)
    untaken = [entry for entry, _ in desk.entries(lane) if entry not in pending]
    return len(untaken), len(pending), _ms_of(untaken[0]) if untaken else None


def numbers_of(survey: Survey) -> dict[str, object]:
    """A survey in the form of `recounted`."""
    lanes = {name: (lane.waiting, lane.running, lane.since_ms) for name, lane in survey.lanes.items()}
    every = survey._asdict() | {"lanes": lanes}
    return {name: value for name, value in every.items() if name not in ("now_ms", "paused")}


def recounted_runs(desk: Desk) -> set[tuple[str, str, str, str]]:
    """Lane, entry, executor and job of each entry that an executor holds, if the record of the job names it."""
    held: list[tuple[str, str, str, str]] = []
    for lane in STREAMS:
        if pending := desk.pending(lane):
            job_of = {entry: fields.get("i", "") for entry, fields in desk.entries(lane)}
            held += [(lane, entry, owner, job_of.get(entry, "")) for entry, owner in pending.items()]
    records = desk.records({job for *_, job in held})
    return {
        (lane, entry, owner, job)
        for lane, entry, owner, job in held
        if f"{lane}/{entry}" in _places(records[job][0])
    }


def facts_of(runs: list[Run]) -> set[tuple[str, str, str, str]]:
    """Runs in the form of `recounted_runs`."""
    return {(run.lane, run.entry, run.executor, run.key) for run in runs}


def _places(record: dict[str, str]) -> set[str]:
    return {record.get("p", ""), record.get("S", "").partition(" ")[0]}


def _ms_of(entry: str) -> int:
    return int(entry.partition("-")[0])
