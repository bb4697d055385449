"""What must hold of the keys at any moment between two scripts, whatever was done to the processes.

A job is in exactly one place and its record names it; nothing that was delivered can be forgotten; what has
ended goes away by itself. One script takes a picture of everything, so nothing moves while it is looked at
and plain functions judge the picture: all that is wrong is told at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple, cast

import redis

from fennelq.broker.keys import GROUP, KEY_KINDS, STREAMS, KeyKind
from tests.kit.server import Server

LIVE: Final = "QXLR"
"""Letters of jobs that go on by themselves; no letter is Q. D (dead) is alive too: it waits for somebody."""
ENDED: Final = "SNK"
SETS: Final = {"sched": "L", "retry": "R"}
MOST_SHOWN = 30

PICTURE: Final = """
local picture = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  local kind, content = redis.call('TYPE', key).ok, {}
  if kind == 'hash' then
    content = redis.call('HMGET', key, 's', 'p', 'k', 'z', 'W', 'H', 'L')
  elseif kind == 'zset' then
    content = redis.call('ZRANGE', key, 0, -1)
  elseif kind == 'list' then
    content = {redis.call('LLEN', key)}
  elseif kind == 'string' then
    content = {redis.call('GET', key)}
  elseif kind == 'stream' then
    content = {redis.call('XRANGE', key, '-', '+'), {}}
    for _, group in ipairs(redis.call('XINFO', 'GROUPS', key)) do
      local facts = {}
      for i = 1, #group, 2 do facts[group[i]] = group[i + 1] end
      local pending = redis.call('XPENDING', key, facts.name, '-', '+', 10000000)
      table.insert(content[2], {facts.name, facts['last-delivered-id'], pending})
    end
  end
  table.insert(picture, {key, kind, redis.call('PEXPIRETIME', key), content})
end
return picture
"""


def audit(
    where: Server | redis.Redis,
    app: str | None = None,
    *,
    unfinished: bool = False,
    lost: Collection[str] = (),
) -> None:
    """Fails, naming everything that is wrong, unless the keys of `app` (of all apps) are as they must be.

    Every job that was delivered must have been settled or handed back, unless executors may be `unfinished`:
    still at work, or killed. Jobs that a test has robbed of a record or an entry are `lost`, by id
    (`queue:key`): nothing is asked of them.
    """
    __tracebackhide__ = True
    if isinstance(where, Server):
        with where.client() as client:
            wrong = problems(client, app, unfinished=unfinished, lost=lost)
    else:
        wrong = problems(where, app, unfinished=unfinished, lost=lost)
    if wrong:
        more = [f"… and {len(wrong) - MOST_SHOWN} more"] if len(wrong) > MOST_SHOWN else []
        raise AssertionError("\n  ".join(["the keys are not as they must be:", *wrong[:MOST_SHOWN], *more]))


def problems(
    client: redis.Redis, app: str | None = None, *, unfinished: bool = False, lost: Collection[str] = ()
) -> list[str]:
    """Everything that is wrong, one sentence each."""
    found: list[str] = []
    queues: dict[str, _Queue] = {}
    for key in _picture(client, app):
        prefix, brace, name = key.name.partition("}:")
        tag = prefix.removeprefix("fq:{")
        if not brace or "/" not in tag:
            found += _problems_of_app_key(key)
        else:
            queues.setdefault(prefix + brace, _Queue(tag.partition("/")[2])).add(key._replace(name=name))
    for prefix, queue in queues.items():
        for problem in queue.problems(unfinished):
            if f"{queue.name}:{problem.job}" not in lost:
                found.append(f"{prefix} {problem.text}")
    return found


class _Key(NamedTuple):
    name: str
    type: str
    expires: int
    """When, in milliseconds of the server's clock; -1 is never."""
    content: list[Any]


class _Record(NamedTuple):
    status: str
    place: str
    idem: str
    expires: int
    unmarked: bool
    """Its end concerns others, and the one who settles it is not told so."""


class _Problem(NamedTuple):
    job: str | None
    text: str


@dataclass
class _Stream:
    jobs: dict[str, str] = field(default_factory=dict[str, str])
    """Entry → the job it names; '' when it names none."""
    owners: dict[str, str] = field(default_factory=dict[str, str])
    """Pending entry → consumer."""
    delivered: str = "0-0"
    groups: list[str] = field(default_factory=list[str])


@dataclass
class _Queue:
    """The picture of one queue, sorted."""

    name: str
    records: dict[str, _Record] = field(default_factory=dict[str, _Record])
    streams: dict[str, _Stream] = field(default_factory=dict[str, _Stream])
    sets: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    results: dict[str, _Key] = field(default_factory=dict[str, _Key])
    idem: dict[str, _Key] = field(default_factory=dict[str, _Key])
    others: list[_Key] = field(default_factory=list[_Key])
    strange: list[_Problem] = field(default_factory=list[_Problem])

    def add(self, key: _Key) -> None:
        kind = _kind_of(key.name)
        job = key.name.partition(":")[2] if kind and "<key>" in kind.pattern else None
        if kind is None:
            self._strange(job, f"{key.name}: no such key is in KEY_KINDS")
        elif kind.type != key.type:
            self._strange(job, f"{key.name} is a {key.type} and should be a {kind.type}")
        elif kind.permanent and key.expires >= 0:
            self._strange(job, f"{key.name} is permanent, and expires")
        else:
            self._sort(key, job or "")

    def problems(self, unfinished: bool) -> Iterator[_Problem]:
        yield from self.strange
        yield from self._problems_of_entries()
        for job, record in self.records.items():
            for text in self._problems_of_record(job, record):
                yield _Problem(job, f"job {job} ({_word(record.status)}, at {record.place!r}): {text}")
        yield from self._problems_of_pending()
        yield from self._problems_of_results()
        yield from self._problems_of_idem()
        yield from self._problems_of_others()
        if not unfinished:
            yield from self._left_behind()

    # Sorting

    def _strange(self, job: str | None, text: str) -> None:
        self.strange.append(_Problem(job, text))

    def _sort(self, key: _Key, job: str) -> None:
        if key.name.startswith("j:"):
            status, place, idem = (_text(value or b"") for value in key.content[:3])
            concerned = any(key.content[i] is not None for i in (2, 4, 5, 6))
            unmarked = concerned and (key.content[3] is None or not status)
            self.records[job] = _Record(status or "Q", place, idem, key.expires, unmarked)
        elif key.type == "stream":
            self.streams[key.name] = _stream(key.content)
        elif key.name in SETS:
            self.sets[key.name] = [_text(member) for member in key.content]
        elif key.name.startswith("r:"):
            self.results[job] = key
        elif key.name.startswith("idem:"):
            self.idem[key.name.removeprefix("idem:")] = key
        else:
            self.others.append(key)

    @cached_property
    def _places(self) -> list[tuple[str, str]]:
        """Every place that is taken, and the job that is said to be there."""
        streams = [(f"{s}/{e}", job) for s, stream in self.streams.items() for e, job in stream.jobs.items()]
        return streams + [(name, job) for name, jobs in self.sets.items() for job in jobs]

    # Judging

    def _problems_of_entries(self) -> Iterator[_Problem]:
        """Every entry belongs to a job whose record says that it is there."""
        for place, job in self._places:
            record = self.records.get(job)
            if not job:
                yield _Problem(None, f"the entry {place} names no job")
            elif record is None:
                yield _Problem(job, f"the entry {place} is of job {job}, which has no record")
            elif record.place != place:
                said = f"whose record says it is at {record.place!r} ({_word(record.status)})"
                yield _Problem(job, f"the entry {place} is of job {job}, {said}")

    def _problems_of_record(self, job: str, record: _Record) -> Iterator[str]:
        there = self._taken[record.place, job]
        if record.status in ENDED:
            yield from self._problems_of_ended(record, there)
        elif record.status == "D" or record.status in LIVE:
            yield from self._problems_of_living(job, record, there)
        else:
            yield f"there is no status {record.status!r}"

    @cached_property
    def _taken(self) -> Counter[tuple[str, str]]:
        return Counter(self._places)

    def _problems_of_ended(self, record: _Record, there: int) -> Iterator[str]:
        if there:
            yield "it has ended, and an entry is left of it"
        if record.expires < 0:
            yield "it has ended, and its record never expires"

    def _problems_of_living(self, job: str, record: _Record, there: int) -> Iterator[str]:
        if there != 1:
            yield f"{there or 'no'} such entr{'ies are' if there > 1 else 'y is'} there: it can never go on"
        if record.expires >= 0:
            yield "it has not ended for good, and its record expires"
        if record.unmarked:
            yield "its end concerns others, and its record is not marked"
        if record.status not in self._statuses_at(record.place):
            yield "that is no place for a job of this status"
        if record.status == "X" and not self._owner(record.place):
            yield "it is executing, and nobody owns its entry"
        if record.idem.startswith("=") and self._holder(record.idem[1:]) != job:
            holder = self._holder(record.idem[1:]) or "nothing"
            yield f"its idempotency key {record.idem[1:]!r} names {holder}"

    def _statuses_at(self, place: str) -> str:
        home = place.partition("/")[0]
        return SETS.get(home) or ("D" if home == "dlq" else "QX" if home in STREAMS else "")

    def _owner(self, place: str) -> str | None:
        lane, _, entry = place.partition("/")
        return self.streams[lane].owners.get(entry) if lane in self.streams else None

    def _holder(self, name: str) -> str | None:
        return _text(self.idem[name].content[0]) if name in self.idem else None

    def _problems_of_pending(self) -> Iterator[_Problem]:
        for name, stream in self.streams.items():
            if stream.groups not in ([], [GROUP]):
                yield _Problem(None, f"{name} has the groups {stream.groups}, not just {GROUP!r}")
            for entry in stream.owners.keys() - stream.jobs.keys():
                told = f"{name}/{entry} is pending for {stream.owners[entry]!r}, and not in the stream"
                yield _Problem(self._job_at(f"{name}/{entry}"), told)
            for entry, job in stream.jobs.items():
                if stream.groups and _id(entry) <= _id(stream.delivered) and entry not in stream.owners:
                    told = f"{name}/{entry} (job {job}) was delivered and is not pending"
                    yield _Problem(job, f"{told}: nobody will ever get it")

    def _job_at(self, place: str) -> str | None:
        return next((job for job, record in self.records.items() if record.place == place), None)

    def _problems_of_results(self) -> Iterator[_Problem]:
        for job, key in self.results.items():
            for text in self._problems_of_result(self.records.get(job), key):
                yield _Problem(job, f"the result of job {job} {text}")

    def _problems_of_result(self, record: _Record | None, key: _Key) -> Iterator[str]:
        if key.content[0] != 1:
            yield f"has {key.content[0]} elements"
        if key.expires < 0:
            yield "never expires"
        if record is None:
            yield "has outlived its record"
        elif record.status not in (*ENDED, "D"):
            yield f"is there although the job has not ended ({_word(record.status)})"
        elif 0 <= record.expires < key.expires:
            yield f"outlives its record by {key.expires - record.expires} ms"

    def _problems_of_idem(self) -> Iterator[_Problem]:
        """A key that never expires is held by a job that lives; one that does may outlive its job."""
        for name, key in self.idem.items():
            job = _text(key.content[0])
            record = self.records.get(job)
            told = f"the idempotency key {name!r} of job {job} "
            if key.expires < 0 and record is None:
                yield _Problem(job, f"{told}never expires, and the job is gone")
            elif key.expires < 0 and record is not None and record.expires >= 0:
                yield _Problem(job, f"{told}never expires, but its record does")
            elif record is not None and record.idem[1:] != name:
                yield _Problem(job, f"{told}is not the one its record names ({record.idem!r})")

    def _problems_of_others(self) -> Iterator[_Problem]:
        for key in self.others:
            kind, job = _kind_of(key.name), key.name.partition(":")[2]
            record = self.records.get(job)
            lives = record is not None and record.expires < 0
            if key.expires < 0 and not (kind and kind.permanent) and not lives:
                yield _Problem(job, f"{key.name} never expires, is not permanent and belongs to no live job")

    def _left_behind(self) -> Iterator[_Problem]:
        for name, stream in self.streams.items():
            for entry, owner in stream.owners.items():
                job = stream.jobs.get(entry, "?")
                told = f"{name}/{entry} (job {job}) was left in the hands of {owner!r}"
                yield _Problem(job, f"{told}; pass unfinished=True where that may be")


def _picture(client: redis.Redis, app: str | None) -> Iterator[_Key]:
    taken = cast("list[list[Any]]", client.eval(PICTURE, 0, f"fq:{{{app}*" if app else "fq:*"))
    for name, kind, expires, content in taken:
        tag = _text(name).partition("{")[2].partition("}")[0].partition("/")[0]
        if app is None or tag == app:
            yield _Key(_text(name), _text(kind), expires, content)


def _problems_of_app_key(key: _Key) -> Iterator[str]:
    """Keys of an app that belong to no queue are in KEY_KINDS as `{app} name`."""
    name = key.name.partition("}:")[2]
    kind = _kind_of(f"{{app}} {name}")
    if kind is None and key.expires < 0:
        yield f"{key.name}: no such key is in KEY_KINDS"
    elif kind is not None and kind.type != key.type:
        yield f"{key.name} is a {key.type} and should be a {kind.type}"
    elif kind is not None and kind.permanent is (key.expires >= 0):
        yield f"{key.name} {'is permanent, and expires' if kind.permanent else 'never expires'}"


def _kind_of(name: str) -> KeyKind | None:
    def fits(pattern: str) -> bool:
        fixed, variable, _ = pattern.partition("<")
        return name.startswith(fixed) if variable else name == pattern

    return next((kind for kind in KEY_KINDS if any(map(fits, kind.pattern.split(", ")))), None)


def _stream(content: list[Any]) -> _Stream:
    entries, groups = content
    stream = _Stream({_text(entry): _named_job(fields) for entry, fields in entries})
    for name, delivered, pending in groups:
        stream.groups.append(_text(name))
        stream.delivered = _text(delivered)
        stream.owners |= {_text(entry): _text(owner) for entry, owner, _, _ in pending}
    return stream


def _named_job(fields: list[bytes]) -> str:
    return _text(fields[1]) if fields[0] == b"i" else ""


def _id(entry: str) -> tuple[int, int]:
    ms, _, sequence = entry.partition("-")
    return int(ms), int(sequence)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


_WORDS = {
    "Q": "sent",
    "L": "scheduled",
    "X": "executing",
    "R": "waiting for its retry",
    "S": "succeeded",
    "N": "succeeded without a value",
    "D": "dead",
    "K": "cancelled",
}


def _word(status: str) -> str:
    return _WORDS.get(status, status)
