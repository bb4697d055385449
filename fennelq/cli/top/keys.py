"""The keys of `fennelq top`, and the two lines that name them: the views at the top, the hints at the bottom."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from rich.text import Text

from fennelq.cli.tables.table import GAP, width

KEYS: Final = (
    ("1 2 3 4", "overview, queues, running, dead"),
    ("↑ ↓ j k", "move; page up, page down, home, end"),
    ("enter", "open what is at the cursor"),
    ("esc", "back"),
    ("/", "find jobs by a filter"),
    ("s S", "sort by the next column; reverse the order"),
    ("p r", "pause a queue; resume it"),
    ("c C", "cancel a job; cancel all jobs that the filter finds"),
    ("R A", "replay a dead job or a group; all jobs of the group"),
    ("q", "leave"),
)
COMMON: Final = (("/", "find"), ("s", "sort"), ("?", "help"), ("q", "quit"))
ACTS: Final = {
    "p": "pause",
    "r": "resume",
    "c": "cancel",
    "C": "cancel_all",
    "R": "replay",
    "A": "replay_group",
}
BACK: Final = ("esc", "back")
_ALWAYS: Final = 2
"""The last hints, which are shown in any width."""


def tabs(open_: str, title: str, room: int) -> Text:
    """The four views, and the app with the time, as far as there is room."""
    text = Text()
    for number, name in enumerate(("overview", "queues", "running", "dead"), 1):
        text.append(f" {number} {name} ", style="reverse" if name == open_ else "")
    right = f"{title}{GAP}{datetime.now().astimezone():%H:%M:%S}"
    for one in (right, right.rpartition(GAP)[2]):
        if (spaces := room - width(text.plain) - width(one)) > 0:
            text.append(" " * spaces + one)
            break
    return text


def hints(keys: Sequence[tuple[str, str]], room: int) -> str:
    """As many hints as there is room for; the last two are always among them."""
    shown, last = list(keys[:-_ALWAYS]), keys[-_ALWAYS:]

    def line() -> str:
        return GAP.join(f"{key} {what}" for key, what in (*shown, *last))

    while shown and width(line()) > room:
        shown.pop()
    return line()
