"""How far a running job has come, as its task reports it."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

from fennelq.errors import UsageError
from fennelq.wording import a_kind_of

LONGEST_NOTE: Final = 200
_MOST: Final = 2**63
"""JSON readers lose larger numbers, and orjson refuses to write them."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job has come: `done` of `total`, and a note."""

    done: float
    """Pages, rows, bytes, per cent: the task chooses the unit."""
    total: float | None = None
    """None when the task does not know it."""
    note: str = ""

    @property
    def fraction(self) -> float | None:
        """The part that is done, from 0.0 to 1.0; None without a total."""
        if self.total is None:
            return None
        return self.done / self.total if self.total else 1.0


class Reported(NamedTuple):
    """Progress with its place in the order of all reports of a job. Two connections may deliver two reports in the
    wrong order; a reader skips the one that is older than what it has."""

    order: tuple[int, int]
    """The start of the job (the fence), and the number of the report in this run."""
    progress: Progress


def checked(done: Any, total: Any = None, note: Any = "") -> Progress:
    """The progress with these values. Raises ValueError when they make no sense, and UsageError when they are of the
    wrong kind."""
    if not isinstance(note, str):
        raise UsageError(f"the note of progress is a string, not {a_kind_of(note)}")
    if len(note) > LONGEST_NOTE:
        raise ValueError(f"the note of progress has {len(note)} characters, and may have {LONGEST_NOTE}")
    try:
        note.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the note of progress cannot be written as UTF-8: {error.reason}") from None
    progress = Progress(_number("done", done), None if total is None else _number("total", total), note)
    if progress.total is not None and progress.done > progress.total:
        raise ValueError(f"progress: done is {progress.done}, which is more than the total {progress.total}")
    return progress


def _number(name: str, given: Any) -> float:
    """The value as an int or a float of Python: numbers of other libraries cannot be written as JSON."""
    try:
        # Not `isinstance(given, SupportsIndex)`: that takes 6 µs.
        value: float = float(given) if isinstance(given, float) else operator.index(given)
    except TypeError:
        raise UsageError(f"progress: {name} is a number, not {a_kind_of(given)}") from None
    if not 0 <= value < _MOST or math.isnan(value):
        raise ValueError(f"progress: {name} is {value}; it must be a number from 0 to 2**63")
    return value


def to_wire(fence: int, number: int, progress: Progress) -> bytes:
    """The progress as a record stores it, and as messages carry it."""
    return orjson.dumps([fence, number, progress.done, progress.total, progress.note])


def from_wire(text: bytes | str | None) -> Reported | None:
    """The progress of a record or a message; None without progress, and for a text that this version cannot read."""
    try:
        fence, number, done, total, note = orjson.loads(text or b"")[:5]
        return Reported((int(fence), int(number)), checked(done, total, note))
    except (ValueError, TypeError, LookupError):
        return None


class Newest:
    """What one reader of a job's progress has seen so far."""

    def __init__(self) -> None:
        self._seen: Reported | None = None

    def news_in(self, reported: Reported | None) -> Progress | None:
        """The progress in a report; None when it is older than one that was seen, or says the same."""
        seen = self._seen
        if reported is None or (seen is not None and reported.order <= seen.order):
            return None
        self._seen = reported
        return None if seen is not None and seen.progress == reported.progress else reported.progress


def shown(text: str) -> Progress | None:
    """The progress that a record stores, for people."""
    reported = from_wire(text)
    return reported and reported.progress
