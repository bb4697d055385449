"""The invariants of limits: of the jobs that hold slots, and of the lines before the gates.

A job that runs holds its slots of concurrency, and one that waits in a lane holds a slot of each of its gates. A line
that is not empty waits at exactly one gate, and that gate is shut for it: otherwise no script would call its jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from fennelq.broker.keys import LANES, NORMAL
from fennelq.manage.invariants.picture import Hash, Key, Members
from fennelq.model.gates import RATE, TURN, Gate, definition_of, gates_in
from fennelq.model.job import Status

_RANKS: Final = {lane: rank for rank, lane in enumerate(LANES.values(), 1)}

Found = tuple[str | None, str]
"""The key of a job, and the sentence."""


class Place(NamedTuple):
    """The fields of a job's record that are about its limits."""

    status: Status
    place: str
    lane: str
    """The lane to which the job belongs."""
    gates: str

    @property
    def home(self) -> str:
        """The lane by which its turns and its line are named."""
        at = self.place.partition("/")[0]
        return at if at in _RANKS else self.lane or NORMAL

    def ids(self) -> dict[str, Gate]:
        """Its gates, by the names of their keys."""
        return {
            f"{gate.id}@{self.home}" if gate.kind == TURN else gate.id: gate for gate in gates_in(self.gates)
        }


@dataclass
class Lines:
    """The keys of the limits of one queue."""

    slots: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    """Gate → job → 0 it runs, or the rank of the lane in which it waits."""
    waits: dict[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """Gate → the lines that wait there."""
    jobs: dict[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """Line → its jobs, in order."""
    registered: Mapping[str, str] = field(default_factory=dict[str, str])
    """Line → the gate at which it waits."""
    alarms: Sequence[str] = ()
    changed: Mapping[str, str] = field(default_factory=dict[str, str])
    """Definition → numbers that an operator has set."""

    def add(self, key: Key, name: str) -> bool:
        """Add a key; returns whether it is one of these."""
        kind, _, rest = name.partition(":")
        match kind, key.content:
            case "slots", Members(members, scores):
                self.slots[rest] = {job: int(score) for job, score in zip(members, scores, strict=True)}
            case "wait", Members(members):
                self.waits[rest] = members
            case "line", Members(members):
                self.jobs[rest] = members
            case "lines", Hash(fields):
                self.registered = fields
            case "limits", Hash(fields):
                self.changed = fields
            case "turn", Members(members):
                self.alarms = members
            case _:
                return False
        return True

    def problems(self, records: Mapping[str, Place]) -> Iterator[Found]:
        """Everything that is wrong. `records` has the jobs with limits, ended ones included."""
        yield from self._problems_of_slots(records)
        for job, record in records.items():
            for text in self._problems_of_job(job, record):
                yield job, text
        for name, jobs in self.jobs.items():
            for text in self._problems_of_line(name, jobs, records):
                yield jobs[0], text
        for gate, names in self.waits.items():
            for name in names:
                if name not in self.jobs:
                    yield None, f"the line {name} waits at {gate}, but is empty"
        for name in self.registered.keys() - self.jobs.keys():
            yield None, f"the line {name} is registered, but is empty"

    def _problems_of_slots(self, records: Mapping[str, Place]) -> Iterator[Found]:
        for gate, holders in self.slots.items():
            for job in holders:
                if job not in records or gate not in records[job].ids():
                    yield job, f"job {job} holds a slot of {gate}, which is not one of its gates"
            running = [job for job, rank in holders.items() if rank == 0 and job in records]
            most = max(
                (
                    self._number(records[job].ids()[gate], gate)
                    for job in running
                    if gate in records[job].ids()
                ),
                default=0,
            )
            if len(running) > most:
                yield None, f"{len(running)} jobs run at {gate}, which lets {most} run: {sorted(running)}"

    def _problems_of_job(self, job: str, record: Place) -> Iterator[str]:
        at = record.place.partition("/")[0]
        for gate, facts in record.ids().items():
            rank = self.slots.get(gate, {}).get(job)
            if record.status is Status.EXECUTING and facts.kind == "c" and rank != 0:
                yield f"job {job} runs, but holds no slot of {gate}"
            if record.status is Status.EXECUTING and facts.kind != "c" and rank is not None:
                yield f"job {job} runs, but still waits for {gate}"
            if (
                record.status is not Status.EXECUTING
                and record.status is not Status.SENT
                and rank is not None
            ):
                yield f"job {job} ({record.status}) holds a slot of {gate}, but does not run"
            if at == "line" and rank is not None:
                yield f"job {job} waits in a line, but holds a slot of {gate}"
            if rank and record.status is Status.SENT and at in _RANKS and rank != _RANKS[at]:
                yield f"job {job} waits in the lane {at}, but its slot of {gate} has the rank {rank}"

    def _problems_of_line(
        self, name: str, jobs: Sequence[str], records: Mapping[str, Place]
    ) -> Iterator[str]:
        at = [gate for gate, names in self.waits.items() if name in names]
        registered = self.registered.get(name)
        if registered is None or at != [registered]:
            yield f"the line {name} is registered at {registered} and waits at {at}: it must wait at one gate"
        elif (head := records.get(jobs[0])) is not None and (gate := head.ids().get(registered)) is not None:
            yield from self._problems_of_gate(name, registered, gate, head)
        else:
            yield f"the line {name} waits at {registered}, which is not a gate of its first job"

    def _problems_of_gate(self, name: str, registered: str, gate: Gate, head: Place) -> Iterator[str]:
        through = sum(rank <= _RANKS[head.home] for rank in self.slots.get(registered, {}).values())
        if registered in self.alarms:
            return
        if gate.kind == RATE and not through:
            yield f"the line {name} waits at {registered}, which has no alarm, and no job is through it"
        elif gate.kind != RATE and through < self._number(gate, registered):
            yield f"the line {name} waits at {registered}, which is open: {through} are through"

    def _number(self, gate: Gate, name: str) -> int:
        changed = self.changed.get(definition_of(name))
        return int(changed.partition("/")[0]) if changed else gate.number
