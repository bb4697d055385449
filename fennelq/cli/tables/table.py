"""Fits a table into the width of a terminal.

Columns of text are shortened first, with `…`; then the least important columns are left out. An id is never cut,
because people copy it. When even that is not enough, the lines are longer than the terminal, which then wraps them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

GAP: Final = "  "
ELLIPSIS: Final = "…"
EMPTY: Final = 100
"""The value of `leave` for a column without values: it is left out before any other column is shortened."""
_EMOJI_STYLE: Final = "\ufe0f"


class Column(NamedTuple):
    """A column, and how it is shortened or left out in a narrow terminal."""

    name: str
    least: int = 0
    """The smallest width to which it may be shortened; 0 if it must not be shortened."""
    end: bool = False
    """Whether to keep its end and cut its beginning: in `shop.tasks:charge` the function is the important part."""
    leave: int = 0
    """0 if it is never left out; columns with the highest number are left out first."""


class Fit(NamedTuple):
    """The columns that are shown."""

    shown: list[int]
    """Their numbers."""
    widths: list[int]
    """Their widths."""

    def left_out(self, columns: Sequence[Column]) -> list[str]:
        """The names of the columns that were left out, except those without values."""
        hidden = (column for i, column in enumerate(columns) if i not in self.shown)
        return [column.name for column in hidden if column.leave != EMPTY]


def fit(columns: Sequence[Column], widths: Sequence[int], room: int) -> Fit:
    """The columns that fit into the width `room`, and their widths. `widths` has the widths that they need."""
    shown = list(range(len(columns)))
    if _total(widths) > room:
        shown = [i for i in shown if columns[i].leave != EMPTY]
    while _total([_least(columns[i], widths[i]) for i in shown]) > room:
        last = max(shown, key=lambda i: columns[i].leave)
        if not columns[last].leave:
            break
        shown.remove(last)
    return Fit(shown, _shrunk([columns[i] for i in shown], [widths[i] for i in shown], room))


def shortened(text: str, room: int, *, end: bool = False) -> str:
    """The text, or as much of its beginning (or end) as fits, with `…` for the rest."""
    if width(text, room) <= room:
        return text
    if end:
        return ELLIPSIS + _beginning(text[::-1], room - 1)[::-1].lstrip()
    return _beginning(text, room - 1).rstrip() + ELLIPSIS


def padded(text: str, room: int, *, right: bool = False) -> str:
    """The text with spaces up to this width."""
    spaces = " " * (room - width(text))
    return spaces + text if right else text + spaces


def width(text: str, most: int | None = None) -> int:
    """The number of columns that the text takes on a terminal. Counting ends when it is more than `most`."""
    if text.isascii():
        return len(text)
    taken, before = 0, 0
    for character in text:
        before = _width_of(character, before)
        taken += before
        if most is not None and taken > most:
            break
    return taken


def wrapped(text: str, room: int) -> str:
    """The text in lines of this width, broken at spaces. A word that is longer, and a command in backticks, stays in
    one piece."""
    if width(text, room) <= room:
        return text
    lines: list[str] = []
    for piece in re.findall(r"(?:`[^`]*`|[^\s`]|`)+", text):
        if lines and width(lines[-1]) + 1 + width(piece) <= room:
            lines[-1] += f" {piece}"
        else:
            lines.append(piece)
    return "\n".join(lines)


def folded(text: str, room: int) -> str:
    """The same as `wrapped`, but a word that is longer is broken as well: it may come out of Redis."""
    return "\n".join(part for line in wrapped(text, room).split("\n") for part in _parts(line, room))


def _parts(line: str, room: int) -> Iterator[str]:
    while width(line, room) > room and "`" not in line:
        begin = _beginning(line, room) or line[:1]
        yield begin
        line = line[len(begin) :]
    yield line


def _width_of(character: str, before: int) -> int:
    """The estimated width of a character. Where terminals differ, it is the larger width, so that no line is longer
    than the terminal."""
    if character == _EMOJI_STYLE:
        return (
            1 if before == 1 else 0
        )  # the character before it is drawn as an emoji, which is two columns wide
    if unicodedata.category(character) in ("Mn", "Me", "Cf") or "\u1160" <= character <= "\u11ff":
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _beginning(text: str, room: int) -> str:
    taken, before = 0, 0
    for i, character in enumerate(text):
        before = _width_of(character, before)
        taken += before
        if taken > room:
            return text[:i]
    return text


def _least(column: Column, wide: int) -> int:
    return min(wide, max(column.least, len(column.name))) if column.least else wide


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _shrunk(columns: Sequence[Column], widths: Sequence[int], room: int) -> list[int]:
    """Shorten the widest column of text, repeatedly, until all columns fit."""
    widths = [min(wide, room) if column.least else wide for column, wide in zip(columns, widths, strict=True)]
    while _total(widths) > room:
        able = [i for i, column in enumerate(columns) if widths[i] > _least(column, widths[i])]
        if not able:
            break
        widths[max(able, key=lambda i: widths[i])] -= 1
    return widths
