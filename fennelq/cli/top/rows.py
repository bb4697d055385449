"""What the views of `fennelq top` show: rows of cells, and the texts in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, Literal, NamedTuple

from fennelq.manage.words_of_time import duration_in_words
from fennelq.streams import clean

Role = Literal["plain", "urgent", "soon", "note", "calm", "title"]
"""What a row means; the screen gives each a colour."""

UNKNOWN: Final = "unknown"
"""What the user of Redis may not read."""
_LONGEST_CELL: Final = 1_000
_LONGEST_TEXT: Final = 10_000


class Span(float):
    """Seconds: `5 min`."""

    def __str__(self) -> str:
        return duration_in_words(self)


class PerSecond(float):
    """A rate: `12.3`."""

    def __str__(self) -> str:
        return f"{float(self):,.1f}"


class Subject(NamedTuple):
    """What a row is about: keys act on it."""

    queue: str = ""
    job: str = ""
    state: str = ""
    """The state of the job, in the words of filters; empty when it is not known."""
    task: str = ""
    group: str = ""
    """The fingerprint of a group of dead jobs."""
    executor: str = ""


class Row(NamedTuple):
    """A line of a list."""

    key: str
    """The same in each look: the cursor stays at the row when others come and go."""
    cells: tuple[object, ...]
    """Numbers, moments and texts, one for each column."""
    role: Role = "plain"
    more: str = ""
    """The text below the list while the cursor is at this row."""
    about: Subject = Subject()


class Line(NamedTuple):
    """A line of a page of text. It may be longer than the screen."""

    text: str
    role: Role = "plain"


def shown(value: object, now: datetime | None = None) -> str:
    """A value as text for a person: without control characters, and cut."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return moment(value, now or datetime.now().astimezone())
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return one_line(str(value))


def moment(value: datetime, now: datetime) -> str:
    """A moment in local time; without the date when it is today."""
    local = value.astimezone()
    today = local.date() == now.astimezone().date()
    return f"{local:{'%H:%M:%S' if today else '%Y-%m-%d %H:%M'}}"


def one_line(text: str) -> str:
    """A text for a cell."""
    return clean(cut(text, _LONGEST_CELL))


def several_lines(text: str) -> list[str]:
    """A text of several lines, such as a traceback."""
    return [clean(line) for line in cut(text, _LONGEST_TEXT).splitlines()]


def cut(text: str, most: int) -> str:
    """The beginning of a text."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def in_order(rows: Iterable[Row], column: int | None, *, reverse: bool) -> list[Row]:
    """The rows in the order of a column: numbers and moments the largest first, texts by the alphabet, and rows without
    a value last. Without a column they stay in the order of the view."""
    rows = list(rows)
    if column is None:
        return rows[::-1] if reverse else rows
    having = [row for row in rows if row.cells[column] not in (None, "", UNKNOWN)]
    without = [row for row in rows if row.cells[column] in (None, "", UNKNOWN)]
    texts = any(not isinstance(row.cells[column], int | float | datetime) for row in having)
    having.sort(key=lambda row: _weight(row.cells[column], texts=texts), reverse=texts == reverse)
    return [*having, *without]


def is_number(value: object) -> bool:
    """Whether a column of such values is aligned to the right."""
    return isinstance(value, int | float)


def _weight(value: object, *, texts: bool) -> tuple[str, float]:
    if isinstance(value, datetime) and not texts:
        return "", value.timestamp()
    return (str(value), 0.0) if texts or not isinstance(value, int | float) else ("", float(value))


def joined(parts: Sequence[str]) -> str:
    """Facts about one thing on one line."""
    return " · ".join(part for part in parts if part)
