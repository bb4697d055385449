"""Verbs that search the jobs of a queue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import orjson

from fennelq.broker.keys import GROUP, LANES, QUARANTINE, QueueKeys
from fennelq.broker.scripts import script
from fennelq.broker.verb import Command, Verb, Word, text
from fennelq.model.job import JobInfo
from fennelq.model.options import OPTIONS
from fennelq.model.query import TEXT, Query, State

_LANES: Final = (*LANES.values(), QUARANTINE)
_MOST_RECORDS: Final = 150
"""These take less than half a millisecond. A call that arrives during a step waits for its end."""
_MOST_BYTES_READ: Final = 1 << 18
"""Of one letter, these take some 3 ms; the last record of a step adds a quarter."""
_BY_EVERY_ENCODER: Final = frozenset('"\\/\x7f')
"""Characters besides control characters that one encoder of JSON escapes and another does not."""
_SET_OF: Final = {State.SCHEDULED: "sched", State.RETRY: "retry"}


class Criteria(NamedTuple):
    """A filter for `find`."""

    query: Query
    until_ms: int | None = None
    """Only jobs that were sent until then, whatever the filter says."""
    entries_until_ms: int | None = None
    """Only jobs that have come to their lanes until then."""

    def to_wire(self) -> bytes:
        """The filter as the script reads it."""
        query, wire = self.query, dict[str, Any]()
        for word in ("task", "error", "fp", "on", "key"):
            wire[word] = query.values(word)
            wire[f"no_{word}"] = query.values(word, excluded=True)
        for word, read in (("header", _header), ("text", _text)):
            own = TEXT if word == "text" else word
            wire[word] = list(map(read, query.values(own)))
            wire[f"no_{word}"] = list(map(read, query.values(own, excluded=True)))
        untils = [ms for ms in (query.until_ms, self.until_ms) if ms is not None]
        wire |= {"since": query.since_ms, "until": min(untils, default=None)}
        wire |= {str(state): True for state in (State.WAITING, State.RUNNING) if state in query.states}
        # As text, because Redis takes it as an entry.
        wire["entries_until"] = None if self.entries_until_ms is None else str(self.entries_until_ms)
        wire["headers"] = OPTIONS["headers"].letter
        return orjson.dumps({name: value for name, value in wire.items() if value not in (None, [], ())})

    def has_texts(self, job: JobInfo) -> bool:
        """Whether a job has the texts of the filter: the same as the script decides about smaller jobs."""
        error = "" if job.error is None else job.error.message
        texts = [text for pair in job.headers.items() for text in pair] + [error]

        def has(part: str) -> bool:
            in_arguments = part.encode() in job.arguments or _text(part)[1].encode() in job.arguments
            return in_arguments or any(part in str(text) for text in texts)

        texts_of = self.query.values
        return all(map(has, texts_of(TEXT))) and not any(map(has, texts_of(TEXT, excluded=True)))


def _header(value: str) -> tuple[str, str, bool]:
    name, _, wanted = value.partition("=")
    return name, wanted, _is_same_in_json(wanted)


def _text(part: str) -> tuple[str, str, bool]:
    return part, orjson.dumps(part)[1:-1].decode(), _is_same_in_json(part)


def _is_same_in_json(part: str) -> bool:
    return part.isascii() and part.isprintable() and _BY_EVERY_ENCODER.isdisjoint(part)


class Hit(NamedTuple):
    """A job that was found."""

    key: str
    mark: str
    """Its entry, or its score in a sorted set."""


class Step(NamedTuple):
    """The result of one step of a search."""

    done: int
    """How many of the places are done."""
    cursor: str
    """Where the next step goes on, in the first place that is not done."""
    looked: int
    """The number of jobs that were looked at."""
    unreadable: int
    """How many of them have a record that cannot be read."""
    problem: str
    """Why a place could not be read, as the server put it; empty when all could."""
    hits: list[Hit]
    unsure: list[int]
    """The numbers of the hits with large arguments: in these, the step has not looked for the texts of the filter."""
    ahead: int
    """How many jobs would be hits, but were sent later than it is now by the server's clock: it was set back."""


def places_of(states: Iterable[State]) -> list[str]:
    """The places, besides lines, where jobs in these states are. A job that moves on comes to a later one of them."""
    wanted = set(states)
    places = [place for state, place in _SET_OF.items() if state in wanted]
    if State.WAITING in wanted:
        places += _LANES
    elif State.RUNNING in wanted:
        places += [f"run/{lane}" for lane in _LANES]
    if State.DEAD in wanted:
        places.append("dlq")
    return places


def line_place(line: str) -> str:
    """The place of a line."""
    return f"line:{line}"


def find(
    keys: QueueKeys,
    places: Sequence[str],
    criteria: Criteria,
    cursor: str = "",
    *,
    most: int = 1000,
    records: int = _MOST_RECORDS,
    read_bytes: int = _MOST_BYTES_READ,
) -> Verb[Step]:
    """One step of a search in these places, from the cursor on: at most `most` jobs that meet the criteria."""
    arrow = script("find")

    def read(reply: Any) -> Step:
        done, at, looked, unreadable, problem, flat, unsure, ahead = reply
        hits = [Hit(text(flat[i]), text(flat[i + 1])) for i in range(0, len(flat), 2)]
        return Step(done, text(at), looked, unreadable, text(problem), hits, unsure, ahead)

    args: list[Word] = [keys.prefix, criteria.to_wire(), cursor, most, records, read_bytes, *places]
    return Verb(arrow, arrow.of(keys), args, read)


def size(keys: QueueKeys, place: str) -> Command[int]:
    """How many jobs a search in this place, which is not a line, looks at."""
    if place.startswith("run/"):

        def pending(reply: Any) -> int:
            return int(reply[0])

        return Command(["XPENDING", keys[place.removeprefix("run/")], GROUP], pending)
    return Command(["ZCARD" if place in _SET_OF.values() else "XLEN", keys[place]], int)
