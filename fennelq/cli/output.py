"""The output of commands: tables for people, tab-separated lines for pipes, JSON for programs.

Control characters in texts out of Redis are escaped: otherwise the message of an error could control the terminal of an
operator. Texts for people are cut after 10,000 characters; JSON has all of them.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

import orjson

from fennelq.cli.tables.table import (
    ELLIPSIS,
    EMPTY,
    GAP,
    Column,
    fit,
    folded,
    padded,
    shortened,
    width,
    wrapped,
)
from fennelq.manage.documents import plain
from fennelq.streams import clean, colours, is_terminal

_NO_NUMBER = (None, "", "?")
_LONGEST: Final = 10_000
"""Characters of a text. More would push everything else off the screen."""
_NOT_ASCII: Final = re.compile(r"[^ -~\n]")
"""A character that may have to be escaped."""
_LONGEST_LINES: Final = 65_536
"""Characters of a text of several lines. Workers keep 8 KiB of a traceback."""


def note(sentence: str) -> None:
    """Print a sentence for people on stderr, separate from the output for pipes. Programs read the exit code, so an
    error of stderr must not change it.

    On a terminal it is wrapped at spaces, but not within `commands`, which people copy.
    """
    text = clean(_cut(sentence))
    with suppress(OSError, ValueError):
        if is_terminal(sys.stderr):
            text = wrapped(text, shutil.get_terminal_size().columns)
        print(text, file=sys.stderr, flush=True)


def line(text: str) -> None:
    """Print one line."""
    print(clean(_cut(text)))


def title(text: str) -> None:
    """Print one line, in bold on a terminal that shows colours."""
    print(bold(clean(text)))


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[object]], *, empty: str = "", label: str = ""
) -> None:
    """Print a table on a terminal, as wide as the terminal; in a pipe, one line per row, with tabs and without a
    heading. With a label, each line in a pipe begins with it.

    Without rows, print the sentence `empty` on a terminal, and nothing in a pipe.
    """
    if not is_terminal(sys.stdout):
        for row in rows:
            print("\t".join(map(cell, (label, *row) if label else row)))
    elif rows:
        _draw(columns, rows)
    elif empty:
        print(empty)


def blank() -> None:
    """Print an empty line between two parts on a terminal; nothing in a pipe."""
    if is_terminal(sys.stdout):
        print()


def facts(known: Mapping[str, object]) -> None:
    """Print names and values, a line for each; values that are None or empty are left out."""
    cells = {name: cell(value) for name, value in known.items() if value not in (None, "", {}, ())}
    if not is_terminal(sys.stdout):
        for name, value in cells.items():
            print(f"{name}\t{value}")
        return
    widest = max(map(len, cells), default=0)
    for name, value in cells.items():
        print(f"{bold(name.ljust(widest))}{GAP}{value}")


def labelled(label: str, text: str) -> None:
    """Print a sentence: on a terminal in lines that fit, in a pipe on a line that begins with the label."""
    text = clean(_cut(text))
    terminal = is_terminal(sys.stdout)
    print(folded(text, shutil.get_terminal_size().columns) if terminal else f"{label}\t{text}", flush=True)


def answer(count: int, what: str, rest: str) -> None:
    """Print `2,000 jobs cancelled`; in a pipe the number has no separators."""
    line(f"{number(count)} {what}{'' if count == 1 else 's'} {rest}")


def document(value: object) -> None:
    """Print a value as JSON on several lines."""
    print(_json(value, orjson.OPT_INDENT_2))


def record(value: object) -> str:
    """A value as JSON on one line."""
    return _json(value, 0)


def _json(value: object, option: int) -> str:
    """JSON for programs. It may be printed on a terminal as well: orjson escapes only the first 32 characters."""
    text = orjson.dumps(value, default=plain, option=option | orjson.OPT_NON_STR_KEYS).decode()
    if text.isprintable():
        return text
    return _NOT_ASCII.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1]


def cell(value: object) -> str:
    """A value as text for a table. For people, numbers have thousands separators."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return moment(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return number(value)
    return clean(_cut(str(value)))


def number(value: int) -> str:
    """A number with thousands separators on a terminal, and without in a pipe."""
    return f"{value:,}" if is_terminal(sys.stdout) else str(value)


def lines(text: str) -> str:
    """A text of several lines, with control characters escaped."""
    return "\n".join(map(clean, _cut(text, _LONGEST_LINES).splitlines()))


def _cut(text: str, most: int = _LONGEST) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}{ELLIPSIS}"


def moment(value: datetime) -> str:
    """A moment in local time on a terminal, and in UTC in a pipe."""
    if is_terminal(sys.stdout):
        return f"{value.astimezone():%Y-%m-%d %H:%M:%S}"
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def counted(count: int, what: str) -> str:
    """`1 job`, `2,000 jobs`: for questions and sentences on stderr."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _draw(columns: Sequence[Column], rows: Sequence[Sequence[object]]) -> None:
    cells = [[cell(value) for value in row] for row in rows]
    columns = [_dispensable_if_empty(column, [row[i] for row in cells]) for i, column in enumerate(columns)]
    headings = [column.name.upper() for column in columns]
    room = shutil.get_terminal_size().columns
    widths = [
        max(width(text, room if column.least else None) for text in texts)
        for column, texts in zip(columns, zip(headings, *cells, strict=True), strict=True)
    ]
    fitted = fit(columns, widths, room)
    right = [_all_numbers([row[i] for row in rows]) for i in range(len(columns))]

    def drawn(texts: Sequence[str]) -> str:
        pairs = zip(fitted.shown, fitted.widths, strict=True)
        cut = ((shortened(texts[i], wide, end=columns[i].end), wide, right[i]) for i, wide in pairs)
        return GAP.join(padded(text, wide, right=to_right) for text, wide, to_right in cut).rstrip()

    print(bold(drawn(headings)))
    for row in cells:
        print(drawn(row))
    if missing := fitted.left_out(columns):
        note(f"Not shown in {room} columns: {', '.join(missing)}.")


def _dispensable_if_empty(column: Column, cells: Sequence[str]) -> Column:
    """The column. If it has no values, it is marked as the first to be left out."""
    return column if any(cells) or not column.leave else column._replace(leave=EMPTY)


def _all_numbers(values: Sequence[object]) -> bool:
    return all(isinstance(value, int) or value in _NO_NUMBER for value in values) and any(
        isinstance(value, int) for value in values
    )


def bold(text: str) -> str:
    """The text in bold on a terminal that shows colours."""
    return f"\x1b[1m{text}\x1b[0m" if colours(sys.stdout) else text
