"""Draws a profile as a flame graph, an SVG without scripts: every browser shows it, and a page may embed it.

The outermost call is at the top, below the task that it serves. The width of a box is its share. Texts come from
another process: they are escaped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from html import escape
from typing import Final
from zlib import crc32

from fennelq.manage.executors.profile import ExecutorProfile, ProfiledStack
from fennelq.streams import clean

_WIDTH: Final = 1200
_ROW: Final = 18
_LETTER: Final = 6.6
"""Width of a letter, in the units of the drawing."""
_NARROWEST: Final = 1.0
_HEAD: Final = 48
_MOST_LINES: Final = 3
_DEEPEST: Final = 120
_LONGEST: Final = 200


class _Box:
    """A function, called by the functions above it."""

    def __init__(self, name: str, kind: str) -> None:
        self.name, self.kind, self.value = name, kind, 0
        self.inner: dict[str, _Box] = {}
        self.lines: Counter[int] = Counter()

    def entered(self, name: str, kind: str, value: int) -> _Box:
        """The box of this name inside of it, with this value more."""
        box = self.inner.setdefault(name, _Box(name, kind))
        box.value += value
        return box

    @property
    def depth(self) -> int:
        """The number of boxes below each other, this one included."""
        depth, row = 0, [self]
        while row:
            depth, row = depth + 1, [inner for box in row for inner in box.inner.values()]
        return depth


def svg(profile: ExecutorProfile) -> str:
    """The flame graph of a profile."""
    root = _Box("", "all")
    for stack in profile.stacks:
        root.value += stack.value
        _enter(root, stack)
    rows = max(1, root.depth - 1)
    height = _HEAD + rows * _ROW + 8
    boxes = "".join(_drawn(root, profile))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="11">'
        f'<rect width="{_WIDTH}" height="{height}" fill="#fffdf7"/>'
        f'<text x="8" y="20" font-size="14" fill="#222">{_text(_title(profile))}</text>'
        f'<text x="8" y="37" fill="#666">{_text(_subtitle(profile))}</text>{boxes}</svg>\n'
    )


def amount(value: int, *, memory: bool) -> str:
    """A value of a profile for people: `812 samples`, `1.4 MiB`."""
    if not memory:
        return f"{value:,} sample{'' if value == 1 else 's'}"
    size, units = float(value), ["B", "KiB", "MiB", "GiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.0f} B" if units[0] == "B" else f"{size:.1f} {units[0]}"


def _enter(root: _Box, stack: ProfiledStack) -> None:
    box = root.entered(stack.task, "task", stack.value)
    for call in stack.calls[-_DEEPEST:]:
        box = box.entered(f"{call.function} ({call.file})", call.file, stack.value)
        box.lines[call.line] += stack.value


def _drawn(root: _Box, profile: ExecutorProfile) -> Iterator[str]:
    """The boxes, row by row, each row from the widest to the narrowest of its parent."""
    scale = _WIDTH / (root.value or 1)
    waiting = [(root, 0.0, -1)]
    while waiting:
        box, left, row = waiting.pop()
        if row >= 0:
            yield _rectangle(box, left, row, box.value * scale, profile)
        for inner in sorted(box.inner.values(), key=lambda one: (-one.value, one.name)):
            if inner.value * scale >= _NARROWEST:
                waiting.append((inner, left, row + 1))
            left += inner.value * scale


def _rectangle(box: _Box, left: float, row: int, width: float, profile: ExecutorProfile) -> str:
    top = _HEAD + row * _ROW
    share = 100 * box.value / (profile.total or 1)
    tip = f"{box.name}: {amount(box.value, memory=profile.memory)}, {share:.1f} %"
    if box.lines:
        most = box.lines.most_common(_MOST_LINES)
        tip += ", line " + ", ".join(f"{line} ({100 * value / box.value:.0f} %)" for line, value in most)
    room = int((width - 6) / _LETTER)
    label = _fitting(clean(box.name), room)
    shown = f'<text x="{left + 3:.1f}" y="{top + 13}" fill="#1a1a1a">{_text(label)}</text>' if label else ""
    return (
        f'<g><title>{_text(tip)}</title><rect x="{left:.1f}" y="{top}" width="{max(width - 0.5, 0.5):.1f}" '
        f'height="{_ROW - 1}" rx="2" fill="{_colour(box.kind)}"/>{shown}</g>'
    )


def _fitting(text: str, room: int) -> str:
    if room < 3:
        return ""
    return text if len(text) <= room else f"{text[: room - 1]}…"


def _colour(kind: str) -> str:
    """Tasks are blue; each file has a warm colour of its own, the same in every profile."""
    if kind == "task":
        return "#8ab4d8"
    number = crc32(kind.encode("utf-8", "replace"))
    return f"hsl({15 + number % 40} {62 + number // 40 % 25}% {66 + number // 1000 % 12}%)"


def _title(profile: ExecutorProfile) -> str:
    what = "memory" if profile.memory else "time"
    return (
        f"{profile.executor}: {what}, {profile.seconds:g} s, {amount(profile.total, memory=profile.memory)}"
    )


def _subtitle(profile: ExecutorProfile) -> str:
    if profile.memory:
        return "Each box is a line that has allocated memory which is still kept, below the lines that called it."
    waited = 100 * profile.idle / (profile.samples or 1)
    return f"Each box is a function, below its caller. The event loop waited for {waited:.0f} % of the time."


def _text(text: str) -> str:
    """A text for XML. Characters that control something are escaped first: XML has no form for most of them."""
    shown = clean(text)
    return escape(shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 1]}…")
