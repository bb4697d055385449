"""What a process has counted since its start, by queue and task, and how an executor sends it to its supervisor.

The counts of a queue and a task are one row of numbers, so rows are added and compared number by number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import orjson

from fennelq.model.exposition import Page
from fennelq.model.metrics import OUTCOMES, RUN_TIMES, RUNS, SENDINGS, SENT, WAIT_TIMES
from fennelq.model.times import BUCKETS

MOST_TASKS: Final = 500
"""Tasks with rows of their own; the others are counted together."""
MOST_ROWS: Final = 2_000
"""Pairs of a queue and a task with rows of their own; the others are counted together."""
OTHER: Final = "other"
_VERSION: Final = 1
MOST_NAMES: Final = 50
"""Names of numbers in a message, besides the rows."""
LONGEST_NAME: Final = 1000
"""Characters of a name. Those of tasks and queues have at most 256."""
_LARGEST: Final = 2.0**53

Pair = tuple[str, str]
"""A queue and a task; an empty task where tasks are not told apart."""
Row = list[float]
Rows = dict[Pair, Row]

_AT_RUNS: Final = len(OUTCOMES)
_AT_WAITS: Final = _AT_RUNS + BUCKETS + 1
RUN_NUMBERS: Final = _AT_WAITS + BUCKETS + 1
"""The numbers of a row of runs: outcomes, run times by bucket and their sum, wait times by bucket and their sum."""
_OF_RUNS: Final = slice(_AT_RUNS, _AT_WAITS)
_OF_WAITS: Final = slice(_AT_WAITS, RUN_NUMBERS)
SENT_NUMBERS: Final = len(SENDINGS)
"""The numbers of a row of jobs sent."""


def row_of_runs(outcomes: Sequence[float], runs: Sequence[float], waits: Sequence[float]) -> Row:
    """A row. `runs` and `waits` are the counts by bucket, and the sum of the durations."""
    return [*outcomes, *runs, *waits]


def added(one: Sequence[float], other: Sequence[float]) -> Row:
    """The sum of two rows."""
    return [a + b for a, b in zip(one, other, strict=True)]


class Bounds:
    """Bounds the rows. A pair that has got a row of its own keeps it, so that no count ever falls."""

    def __init__(self, *, by_task: bool = True) -> None:
        self._by_task = by_task
        self._tasks: set[str] = set()
        self._pairs: set[Pair] = set()

    def pair_of(self, pair: Pair) -> Pair:
        """The pair under which this one is counted."""
        queue, task = pair
        pair = (queue, self._task(task))
        if pair not in self._pairs:
            if len(self._pairs) >= MOST_ROWS:
                return OTHER, self._task(OTHER)
            self._pairs.add(pair)
        return pair

    def _task(self, task: str) -> str:
        if not self._by_task:
            return ""
        if task not in self._tasks and task != OTHER:
            if len(self._tasks) >= MOST_TASKS:
                return OTHER
            self._tasks.add(task)
        return task


class Totals:
    """Rows since the start of a process. What is still being counted is added when it is asked for: `counting` has
    those rows, and `keep` gets them when they do not change any more."""

    def __init__(self, *, by_task: bool = True) -> None:
        self._bounds = Bounds(by_task=by_task)
        self._kept: Rows = {}
        self._since: set[Pair] = set()
        """The pairs that were kept since `changes` was called."""
        self._told: Rows = {}

    def keep(self, counting: Iterable[tuple[Pair, Row]]) -> None:
        """Add rows for good."""
        for pair, row in counting:
            bounded = self._bounds.pair_of(pair)
            known = self._kept.get(bounded)
            self._kept[bounded] = added(known, row) if known else [*row]
            self._since.add(bounded)

    def rows(self, counting: Iterable[tuple[Pair, Row]] = ()) -> Rows:
        """All rows."""
        return self._with(dict(self._kept), counting)

    def changes(self, counting: Iterable[tuple[Pair, Row]] = ()) -> Rows:
        """The rows that have changed since the last call."""
        found = self._with({pair: self._kept[pair] for pair in self._since}, counting)
        self._since.clear()
        changed = {pair: row for pair, row in found.items() if self._told.get(pair) != row}
        self._told |= changed
        return changed

    def _with(self, found: Rows, counting: Iterable[tuple[Pair, Row]]) -> Rows:
        for pair, row in counting:
            bounded = self._bounds.pair_of(pair)
            known = found.get(bounded) or self._kept.get(bounded)
            found[bounded] = added(known, row) if known else [*row]
        return found


class Message(NamedTuple):
    """What an executor sends: totals since its start of those rows that have changed, and all other numbers."""

    runs: Rows
    sent: Rows
    counters: Mapping[str, float]
    gauges: Mapping[str, float]


EMPTY: Final = Message({}, {}, {}, {})


class Unreadable(ValueError):
    """A message that no executor of this version has sent; the text is the reason."""


def to_line(message: Message) -> bytes:
    """A message as a line."""
    document = {
        "v": _VERSION,
        "runs": [[*pair, row] for pair, row in message.runs.items()],
        "sent": [[*pair, row] for pair, row in message.sent.items()],
        "counters": message.counters,
        "gauges": message.gauges,
    }
    return orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)


def from_line(line: bytes) -> Message:
    """The message that `to_line` wrote; raises Unreadable. The code of a job may write to any descriptor of its
    process, so every number is checked."""
    try:
        document: Any = orjson.loads(line)
    except ValueError as error:
        raise Unreadable(f"it is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise Unreadable("it is not an object")
    found = cast("dict[str, Any]", document)
    if found.get("v") != _VERSION:
        raise Unreadable(f"its version is {found.get('v')!r:.50}, and this supervisor reads {_VERSION}")
    return Message(
        _rows(found.get("runs"), RUN_NUMBERS),
        _rows(found.get("sent"), SENT_NUMBERS),
        _named(found.get("counters")),
        _named(found.get("gauges")),
    )


def _rows(given: object, length: int) -> Rows:
    rows: Rows = {}
    for one in _list(given):
        row = _list(one)
        if len(row) != 3 or not isinstance(row[0], str) or not isinstance(row[1], str):
            raise Unreadable("a row is not a queue, a task and numbers")
        numbers = [_number(number) for number in _list(row[2])]
        if len(numbers) != length:
            raise Unreadable(f"a row has {len(numbers)} numbers instead of {length}")
        rows[row[0][:LONGEST_NAME], row[1][:LONGEST_NAME]] = numbers
    return rows


def _named(given: object) -> Mapping[str, float]:
    if not isinstance(given, dict) or len(cast("dict[str, Any]", given)) > MOST_NAMES:
        raise Unreadable("its counters or gauges are not named numbers")
    return {name[:LONGEST_NAME]: _number(value) for name, value in cast("dict[str, Any]", given).items()}


def _list(given: object) -> list[Any]:
    if not isinstance(given, list):
        raise Unreadable("a list is missing")
    return given  # pyright: ignore[reportUnknownVariableType]


def _number(given: object) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < _LARGEST:
        raise Unreadable(f"{given!r:.50} is not a count")
    if not math.isfinite(given):
        raise Unreadable(f"{given!r:.50} is not a count")
    return given


def show_rows(page: Page, runs: Rows, sent: Rows) -> None:
    """Add the rows to a page."""
    for (queue, task), row in sorted(runs.items()):
        labels = (queue, task or None)
        page.add_each(RUNS, row[:_AT_RUNS], *labels)
    for metric, part in ((RUN_TIMES, _OF_RUNS), (WAIT_TIMES, _OF_WAITS)):
        for (queue, task), row in sorted(runs.items()):
            *counts, seconds = row[part]
            page.add_histogram(metric, counts, seconds, queue, task or None)
    for (queue, task), row in sorted(sent.items()):
        page.add_each(SENT, row, queue, task or None)


def sum_of(many: Iterable[Rows], bounds: Bounds) -> Rows:
    """The rows of several processes together."""
    found: Rows = {}
    for rows in many:
        for pair, row in rows.items():
            bounded = bounds.pair_of(pair)
            known = found.get(bounded)
            found[bounded] = added(known, row) if known else row
    return found
