"""Prints the story of a job: its sentence, a bar for each run, and what happened."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from fennelq.cli import output
from fennelq.cli.tables.table import GAP, Column, folded
from fennelq.model.happened import StoryLine
from fennelq.model.job import JobInfo
from fennelq.model.runs import StoryRun, took
from fennelq.model.story import Story
from fennelq.streams import clean, is_terminal

_COLUMNS: Final = (
    Column("run"),
    Column("executor", least=10, end=True),
    Column("began"),
    Column("took"),
    Column("outcome", least=10),
)
_LONGEST_BAR: Final = 30
_ROOM_FOR_BARS: Final = 100
"""The width of a terminal at which each run gets a bar. In a narrower one, the times are more useful."""


def opening(info: JobInfo, story: Story) -> None:
    """Print all of it."""
    sentence(story)
    runs(info, story.runs)
    output.blank()
    happened(story.lines)


def sentence(story: Story) -> None:
    """Print the sentence; on a terminal in lines that fit."""
    output.labelled("story", story.sentence)


def runs(info: JobInfo, found: Iterable[StoryRun]) -> None:
    """Print a line for each run; on a wide terminal also a bar, from when the job was sent until its last run ended."""
    found = list(found)
    rows: list[list[object]] = [
        [run.number, run.executor, run.began, took(run.seconds), how(run)] for run in found
    ]
    if not is_terminal(sys.stdout):
        for run, row in zip(found, rows, strict=True):
            seconds = "" if run.seconds is None else f"{run.seconds:g}"
            print("\t".join(map(output.cell, ["run", *row[:3], seconds, *row[4:]])))
    elif rows:
        output.blank()
        room = shutil.get_terminal_size().columns
        wide = min(_LONGEST_BAR, room // 4) if room >= _ROOM_FOR_BARS else 0
        bars = bars_of(info.enqueued_at, found, wide)
        columns = (*_COLUMNS, Column("sent to end")) if wide else _COLUMNS
        output.table(columns, [[*row, *([bar] if wide else [])] for row, bar in zip(rows, bars, strict=True)])


def how(run: StoryRun) -> str:
    """How a run ended: `failed: ValueError`."""
    return f"{run.outcome}: {run.more}" if run.more else run.outcome


def happened(lines: Iterable[StoryLine]) -> None:
    """Print what happened, a line for each; on a terminal, long ones are continued below."""
    for line in lines:
        print(_happened(line), flush=True)


def _happened(line: StoryLine) -> str:
    at, text = output.cell(line.at), clean(line.text)
    if not is_terminal(sys.stdout):
        return f"happened\t{at}\t{text}"
    margin = " " * (len(output.moment(datetime.now().astimezone())) + len(GAP))
    room = max(1, shutil.get_terminal_size().columns - len(margin))
    return f"{at.ljust(len(margin))}{folded(text, room).replace(chr(10), chr(10) + margin)}"


def bars_of(sent: datetime | None, found: Iterable[StoryRun], wide: int) -> list[str]:
    """For each run, a bar that shows when it ran. All begin when the job was sent, and end when the last run ended."""
    found = list(found)
    moments = [moment for run in found for moment in (sent, run.began, run.ended) if moment is not None]
    if not moments or not wide:
        return [""] * len(found)
    begin, end = min(moments), max(moments)
    seconds = (end - begin).total_seconds() or 1.0
    full, empty = ("█", "·") if _shows_blocks() else ("#", ".")

    def bar(run: StoryRun) -> str:
        if run.began is None:
            return empty * wide
        ended = run.ended or (run.began if run.outcome != "running" else end)
        left = min(wide - 1, int((run.began - begin).total_seconds() / seconds * wide))
        right = max(left + 1, round((ended - begin).total_seconds() / seconds * wide))
        return empty * left + full * (right - left) + empty * (wide - right)

    return list(map(bar, found))


def _shows_blocks() -> bool:
    """Whether the terminal shows more than ASCII."""
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower()
    return os.environ.get("TERM") != "dumb" and encoding.startswith("utf")


def result_of(known: Any) -> str:
    """The result of a job as JSON; its beginning, if it is long."""
    text = output.record(known)
    most = 2000
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"
