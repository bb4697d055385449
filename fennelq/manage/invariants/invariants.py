"""The invariants of the keys: they hold at any moment between two scripts, whatever happens to the processes.

A job is in exactly one place, and its record names that place; a delivered entry stays pending until its run is over;
the keys of an ended job expire. `problems_of` checks a picture of the keys. The caller takes the picture in one script,
or while no other client writes: a job that moves in the meantime looks as if it were in two places, or in none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from fennelq.broker.key_kinds import KeyKind
from fennelq.broker.keys import GROUP, STREAMS, QueueKeys, parse_key
from fennelq.manage.invariants.groups import DeadGroups
from fennelq.manage.invariants.lines import Lines
from fennelq.manage.invariants.picture import Group, Hash, Key, Length, Members, Stream, Value
from fennelq.manage.invariants.records import Record
from fennelq.model.job import Status
from fennelq.model.pause import pause_in


class Problem(NamedTuple):
    """A violation of an invariant, in one sentence."""

    app: str
    queue: str | None
    """None when it is about a key that belongs to no queue."""
    job: str | None
    """The key of the job; None when it is not known, or not about one."""
    text: str

    def __str__(self) -> str:
        return f"{self.app if self.queue is None else f'{self.app}/{self.queue}'}: {self.text}"


def problems_of(picture: Iterable[Key], *, all_stopped: bool = False) -> list[Problem]:
    """All problems in a picture of all keys of one or more apps.

    `all_stopped` means that no executor runs and none was killed: then an entry that is still pending is a problem too.
    """
    found: list[Problem] = []
    queues: dict[tuple[str, str], _Queue] = {}
    for key in picture:
        app, queue, _ = parse_key(key.name)
        if queue is None:
            found += [Problem(app, None, None, text) for text in _problems_of_app_key(key)]
        else:
            queues.setdefault((app, queue), _Queue(QueueKeys(app, queue))).add(key)
    for (app, queue), sorted_keys in queues.items():
        found += [Problem(app, queue, job, text) for job, text in sorted_keys.problems(all_stopped)]
    return found


def _problems_of_app_key(key: Key) -> Iterator[str]:
    name = parse_key(key.name)
    if name.kind is not None:
        yield from _misfits(key, name.rest, name.kind)
        if key.expires_ms is None and not name.kind.permanent:
            yield f"{name.rest} never expires"
    elif key.expires_ms is None:
        yield f"{name.rest} is not a key of fennelq"


def _misfits(key: Key, name: str, kind: KeyKind) -> Iterator[str]:
    if kind.type != key.type:
        yield f"{name} is a {key.type}, but must be a {kind.type}"
    elif kind.permanent and key.expires_ms is not None:
        yield f"{name} is permanent, but expires"


_SORTED_SETS: Final = {"sched": Status.SCHEDULED, "retry": Status.RETRY}
_GONE: Final = (Status.SUCCESS, Status.CANCELLED)
"""These jobs cannot run again. A dead job can be replayed, so it keeps its record and a place."""

_Found = tuple[str | None, str]
"""The key of a job, and the sentence."""


@dataclass
class _Queue:
    """The keys of one queue, sorted by kind."""

    keys: QueueKeys
    records: dict[str, Record] = field(default_factory=dict[str, Record])
    streams: dict[str, Stream] = field(default_factory=dict[str, Stream])
    sorted_sets: dict[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    results: dict[str, tuple[int, int | None]] = field(default_factory=dict[str, tuple[int, int | None]])
    """Job → elements, and when it expires."""
    holders: dict[str, tuple[str, int | None]] = field(default_factory=dict[str, tuple[str, int | None]])
    """Idempotency key → the job it names, and when it expires."""
    lines: Lines = field(default_factory=Lines)
    groups: DeadGroups = field(default_factory=DeadGroups)
    stopping: Sequence[str] = ()
    """The jobs of the set `stop`."""
    paused: str = ""
    """The value of the key `paused`."""
    sleepers: dict[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """Each set of executors that a new job wakes."""
    others: list[Key] = field(default_factory=list[Key])
    misfits: list[_Found] = field(default_factory=list[_Found])

    def add(self, key: Key) -> None:
        """Add a key to its kind, or record the problem with it."""
        _, _, name = parsed = parse_key(key.name)
        kind = parsed.kind
        job = name.partition(":")[2] if kind and "<key>" in kind.pattern else None
        misfits = list(_misfits(key, name, kind)) if kind else [f"{name} is not a key of fennelq"]
        self.misfits += [(job, text) for text in misfits]
        if not misfits:
            self._sort(key, name, job or "")

    def _sort(self, key: Key, name: str, job: str) -> None:
        if self.lines.add(key, name) or self.groups.add(key, name):
            return
        match key.content:
            case Hash(fields) if key.name.startswith(self.keys.record("")):
                self.records[job] = Record.of(fields, key.expires_ms)
            case Stream() as stream if name != "ends":
                self.streams[name] = stream
            case Members(members) if name in _SORTED_SETS:
                self.sorted_sets[name] = members
            case Members(members) if name == "stop":
                self.stopping = members
            case Members(members) if name.partition(":")[0] == "idle":
                self.sleepers[name] = members
            case Value(value) if name == "paused":
                self.paused = value
            case Length(length) if key.name.startswith(self.keys.result("")):
                self.results[job] = length, key.expires_ms
            case Value(holder) if key.name.startswith(self.keys.idempotency("")):
                self.holders[key.name.removeprefix(self.keys.idempotency(""))] = holder, key.expires_ms
            case _:
                self.others.append(key)

    def problems(self, all_stopped: bool) -> Iterator[_Found]:
        """All problems of this queue."""
        yield from self.misfits
        yield from self._problems_of_entries()
        yield from self._problems_of_records()
        yield from self._problems_of_groups()
        yield from self._problems_of_results()
        yield from self._problems_of_holders()
        yield from self.lines.problems(
            {job: record.limits for job, record in self.records.items() if record.limits}
        )
        yield from self.groups.problems(self.streams["dlq"].fields if "dlq" in self.streams else {})
        yield from self._problems_of_pause()
        yield from self._problems_of_others()
        if all_stopped:
            yield from self._left_pending()

    # Places

    @cached_property
    def _places(self) -> list[tuple[str, str | None]]:
        """Every place with a job, and the job."""
        streams = [
            (f"{name}/{entry}", job)
            for name, stream in self.streams.items()
            for entry, job in stream.entries.items()
        ]
        sets = [(name, job) for name, jobs in self.sorted_sets.items() for job in jobs]
        return streams + sets + [("line", job) for jobs in self.lines.jobs.values() for job in jobs]

    @cached_property
    def _entries(self) -> Counter[tuple[str, str | None]]:
        return Counter(self._places)

    def _problems_of_entries(self) -> Iterator[_Found]:
        for place, job in self._places:
            record = self.records.get(job or "")
            if job is None:
                yield None, f"the entry {place} names no job"
            elif record is None:
                yield job, f"the entry {place} is of job {job}, which has no record"
            elif place not in (record.place, record.twin):
                where = f"whose record names the place {record.place!r} ({record.shown_status})"
                yield job, f"the entry {place} is of job {job}, {where}"

    # Records

    def _problems_of_records(self) -> Iterator[_Found]:
        for job, record in self.records.items():
            entries = self._entries[record.place, job]
            if record.status is Status.UNKNOWN:
                wrong = iter(["has a status that does not exist"])
            elif record.status in _GONE:
                wrong = self._problems_of_gone(record, entries)
            else:
                wrong = self._problems_of_alive(job, record, entries)
            for text in (*wrong, *self._problems_of_twin(job, record)):
                yield job, f"job {job} ({record.shown_status}, at {record.place!r}) {text}"

    def _problems_of_gone(self, record: Record, entries: int) -> Iterator[str]:
        if entries:
            yield "has ended, but its entry is still there"
        if record.expires_ms is None:
            yield "has ended, but its record never expires"

    def _problems_of_alive(self, job: str, record: Record, entries: int) -> Iterator[str]:
        if entries != 1:
            yield f"has {entries} entries there" if entries else "has no entry there, so it can never go on"
        if record.expires_ms is not None:
            yield "can still run, but its record expires"
        if record.unmarked:
            yield "has a history, a key, limits, clients that wait or a request to stop, but its record is not marked"
        if record.status not in self._statuses_at(record.place):
            yield "cannot have this status at this place"
        if record.status is Status.EXECUTING and not self._consumer(record.place):
            yield "is executing, but its entry is pending for no consumer"
        if record.status is Status.EXECUTING and record.stopping and job not in self.stopping:
            yield "was asked to stop, but `stop` does not name it: no beat would tell its executor"
        if record.holds_key:
            yield from self._problems_of_its_key(job, record.idempotency[1:])

    def _problems_of_twin(self, job: str, record: Record) -> Iterator[str]:
        if not record.twin:
            return
        if record.status is not Status.EXECUTING:
            yield "does not run, but has a second copy"
        if record.twin == record.place or self._entries[record.twin, job] != 1:
            yield f"has a second copy at {record.twin}, which has {self._entries[record.twin, job]} entries"
        if record.twin_runs and not self._consumer(record.twin):
            yield f"runs a second time at {record.twin}, but that entry is pending for no consumer"

    def _statuses_at(self, place: str) -> tuple[Status, ...]:
        home = place.partition("/")[0]
        if place == "line":
            return (Status.SENT,)
        if home in STREAMS:
            return Status.SENT, Status.EXECUTING
        return (_SORTED_SETS.get(home, Status.DEAD if home == "dlq" else Status.UNKNOWN),)

    def _consumer(self, place: str) -> str | None:
        lane, _, entry = place.partition("/")
        groups = self.streams[lane].groups if lane in self.streams else ()
        return next((group.pending[entry] for group in groups if entry in group.pending), None)

    def _problems_of_its_key(self, job: str, name: str) -> Iterator[str]:
        holder, _ = self.holders.get(name, (None, None))
        if holder != job:
            yield f"has the idempotency key {name!r}, but that names {f'job {holder}' if holder else 'no job'}"

    # Delivered entries

    def _problems_of_groups(self) -> Iterator[_Found]:
        for name, stream in self.streams.items():
            if [group.name for group in stream.groups] not in ([], [GROUP]):
                yield (
                    None,
                    f"{name} has the groups {[group.name for group in stream.groups]}, not only {GROUP!r}",
                )
            for group in stream.groups:
                if group.name == GROUP:
                    yield from self._problems_of_pending(name, stream, group)

    def _problems_of_pending(self, name: str, stream: Stream, group: Group) -> Iterator[_Found]:
        for entry, consumer in group.pending.items():
            if entry not in stream.entries:
                job = self._job_at(f"{name}/{entry}")
                yield job, f"the entry {name}/{entry} is pending for {consumer!r}, but not in the stream"
        for entry, job in stream.entries.items():
            if _position(entry) <= _position(group.last_delivered) and entry not in group.pending:
                lost = "was delivered, but is not pending: no executor will ever get it"
                yield job, f"the entry {name}/{entry} (job {job}) {lost}"

    def _job_at(self, place: str) -> str | None:
        return next(
            (job for job, record in self.records.items() if place in (record.place, record.twin)), None
        )

    def _left_pending(self) -> Iterator[_Found]:
        for name, stream in self.streams.items():
            for group in stream.groups:
                for entry, consumer in group.pending.items():
                    job = stream.entries.get(entry)
                    still = f"is still pending for {consumer!r}, although every executor has stopped"
                    yield job, f"the entry {name}/{entry} (job {job}) {still}"

    # Keys that end with a job

    def _problems_of_results(self) -> Iterator[_Found]:
        for job, (elements, expires_ms) in self.results.items():
            if elements != 1:
                yield job, f"the result of job {job} has {elements} elements"
            for text in self._problems_of_lifetime(self.records.get(job), expires_ms):
                yield job, f"the result of job {job} {text}"

    def _problems_of_lifetime(self, record: Record | None, expires_ms: int | None) -> Iterator[str]:
        if expires_ms is None:
            yield "never expires"
        if record is None:
            yield "has outlived its record"
        elif not record.status.ended:
            yield f"exists, although the job has not ended ({record.shown_status})"
        elif record.expires_ms is not None and expires_ms is not None and record.expires_ms < expires_ms:
            yield f"outlives its record by {expires_ms - record.expires_ms} ms"

    def _problems_of_holders(self) -> Iterator[_Found]:
        """An idempotency key that expires may outlive its job. One that does not expire must name a job that can
        run."""
        for name, (job, expires_ms) in self.holders.items():
            record = self.records.get(job)
            its = f"the idempotency key {name!r} of job {job}"
            if expires_ms is None and record is None:
                yield job, f"{its} never expires, but the job is gone"
            elif expires_ms is None and record is not None and record.expires_ms is not None:
                yield job, f"{its} never expires, but the job's record does"
            elif record is not None and record.idempotency[1:] != name:
                yield job, f"{its} is not the one that its record names ({record.idempotency!r})"

    def _problems_of_pause(self) -> Iterator[_Found]:
        """No job may wake an executor while the queue is paused. An executor that knows no pause still adds its name to
        the sleepers, so this holds only when all are of this version."""
        pause = pause_in(self.paused.encode())
        if self.paused and pause is None:
            yield None, f"paused is {self.paused[:100]!r}, which pauses nothing"
        elif pause is not None and pause.consuming:
            for name, executors in self.sleepers.items():
                yield (
                    None,
                    f"{name} has {', '.join(executors)}, although executors start no jobs of this queue",
                )

    def _problems_of_others(self) -> Iterator[_Found]:
        for key in self.others:
            name = parse_key(key.name)
            job = name.rest.partition(":")[2]
            alive = job in self.records and self.records[job].expires_ms is None
            if key.expires_ms is None and not (name.kind and name.kind.permanent) and not alive:
                yield job, f"{name.rest} never expires, but it is not permanent and belongs to no live job"


def _position(entry: str) -> tuple[int, int]:
    ms, _, sequence = entry.partition("-")
    return int(ms), int(sequence)
