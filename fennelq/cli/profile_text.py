"""Shows a profile: a table of tasks and their lines for people, or a file for other programs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import typer

from fennelq.cli import output
from fennelq.cli.exits import Exit, Problem
from fennelq.cli.tables.table import Column
from fennelq.manage.executors.flame_graph import amount, svg
from fennelq.manage.executors.profile import ExecutorProfile, ProfiledTask
from fennelq.manage.executors.profile_files import collapsed, speedscope

_FORMATS: Final[Mapping[str, Callable[[ExecutorProfile], str]]] = {
    ".svg": svg,
    ".json": speedscope,
    ".txt": collapsed,
}
_MOST_TASKS: Final = 20
_MOST_LINES: Final = 3


def profile_file(text: str) -> Path:
    """The file of the option --output; raises BadParameter, before the executor is asked, when it cannot be written."""
    path = Path(text)
    if path.suffix not in _FORMATS:
        raise typer.BadParameter(
            f"{text[:200]!r}: write a name that ends with .svg (a flame graph), .json (for speedscope) or .txt "
            "(collapsed stacks)"
        )
    place = path if path.exists() else path.parent
    if path.is_dir() or not place.exists() or not os.access(place, os.W_OK):
        raise typer.BadParameter(f"{text[:200]!r} cannot be written")
    return path


def write_profile(profile: ExecutorProfile, path: Path) -> None:
    """Write the profile in the format that the name of the file ends with."""
    try:
        path.write_text(_FORMATS[path.suffix](profile), encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise Problem(f"{str(path)!r} cannot be written: {error.strerror}", Exit.FAILED) from None


def show_profile(profile: ExecutorProfile) -> None:
    """Print what each task costs, and its most expensive lines."""
    rows = [row for task in profile.tasks[:_MOST_TASKS] for row in _rows(task, memory=profile.memory)]
    columns = [Column("task", least=12), Column("share"), Column("memory" if profile.memory else "samples")]
    output.table([*columns, Column("line", least=20)], rows)
    left = len(profile.tasks) - _MOST_TASKS
    if left > 0:
        output.note(f"{output.counted(left, 'further task')} not shown: add -o profile.svg.")


def _rows(task: ProfiledTask, *, memory: bool) -> list[list[object]]:
    """One row for each line; that of the task is the first."""
    shown: list[tuple[object, int]] = [*task.lines[:_MOST_LINES]] or [("", task.value)]
    return [
        [
            task.task if number == 0 else "",
            f"{100 * task.share * value / (task.value or 1):.1f} %",
            amount(value, memory=True) if memory else value,
            str(call),
        ]
        for number, (call, value) in enumerate(shown)
    ]
